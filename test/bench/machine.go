// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
)

// machine describes where a run was made, in general words: nothing that names it.
func machine(ctx context.Context, b *bench) ([]string, error) {
	var version, pages string
	if err := b.control.QueryRow(ctx, "SELECT current_setting('server_version'), current_setting('full_page_writes')").Scan(&version, &pages); err != nil {
		return nil, err
	}
	version, _, _ = strings.Cut(version, " ")
	cpuinfo, _ := os.ReadFile("/proc/cpuinfo")
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	mounts, _ := os.ReadFile("/proc/mounts")
	lines := []string{
		fmt.Sprintf("%d processors (%s), Linux %s, stores on %s", runtime.NumCPU(), processor(string(cpuinfo)), release(string(kernel)),
			fileSystem(string(mounts), b.site.dir)),
		fmt.Sprintf("%s, PostgreSQL %s (fsync, synchronous_commit and full_page_writes %s), SQLite in WAL mode with synchronous=FULL",
			runtime.Version(), version, pages),
		fmt.Sprintf("garbage collector of every process: %v, as ledgerd has it", b.pacing),
	}
	return lines, nil
}

func processor(cpuinfo string) string {
	for line := range strings.Lines(cpuinfo) {
		if name, model, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(model)
		}
	}
	return "unknown"
}

// release keeps the number and drops who built it.
func release(kernel string) string {
	number, _, _ := strings.Cut(strings.TrimSpace(kernel), "-")
	return number
}

// fileSystem is the kind of the mount that is nearest above a folder.
func fileSystem(mounts, dir string) string {
	kind, nearest := "an unknown file system", 0
	for line := range strings.Lines(mounts) {
		fields := strings.Fields(line)
		if len(fields) < 3 {
			continue
		}
		at := strings.TrimSuffix(fields[1], "/") + "/"
		if strings.HasPrefix(dir+"/", at) && len(at) >= nearest {
			kind, nearest = fields[2], len(at)
		}
	}
	return kind
}

// commit that is measured; + says that files differ from it.
func commit(ctx context.Context) string {
	id, err := exec.CommandContext(ctx, "git", "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		return "unknown"
	}
	changed, err := exec.CommandContext(ctx, "git", "status", "--porcelain", "--untracked-files=no").Output()
	mark := ""
	if err != nil || len(changed) > 0 {
		mark = "+"
	}
	return strings.TrimSpace(string(id)) + mark
}
