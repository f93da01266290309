// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"time"
)

// frame of a profile, with its share of the samples in per cent.
type frame struct {
	Share float64
	Name  string
}

// profiled is the processor profile of a variant: what it is spent on, the functions with the most time of their own, and those with
// the most below them.
type profiled struct {
	Of              variant
	Parts, Own, Sum []frame
}

const topFrames = 20

// wrappers are functions that only call the next one. They would fill a list by what is below.
const wrappers = `google\.golang\.org/grpc\.|go-grpc-middleware|/rpc\.Interceptors|Interceptor\)\.Unary$|Limiter\)\.unary|_Handler$|` +
	`runtime\.(goexit|main|mcall|systemstack)$|^main\.|sync\.\(\*WaitGroup\)`

// leastProfile is how long a profile takes at least: at a hundred samples a second, a short one shows chance.
const leastProfile = 5 * time.Second

// profile runs a variant once more, under a profile. The run counts for nothing else.
func (b *bench) profile(ctx context.Context, v variant, p plan) (profiled, error) {
	p.Window = max(p.Window, leastProfile)
	path := b.site.path(fmt.Sprintf("profile-%d.pb.gz", time.Now().UnixNano()))
	var s sample
	if server := b.servers[v.Target]; server != nil {
		seconds := int(p.Window / time.Second)
		fetched := make(chan error, 1)
		go func() {
			data, err := get(ctx, fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", server.profiles, seconds))
			if err == nil {
				err = os.WriteFile(path, []byte(data), 0o600)
			}
			fetched <- err
		}()
		s = b.measure(ctx, v, p)
		if err := <-fetched; err != nil {
			return profiled{}, err
		}
	} else {
		file, err := os.Create(path)
		if err != nil {
			return profiled{}, err
		}
		if err := pprof.StartCPUProfile(file); err != nil {
			return profiled{}, err
		}
		s = b.measure(ctx, v, p)
		pprof.StopCPUProfile()
		if err := file.Close(); err != nil {
			return profiled{}, err
		}
	}
	if s.Failed != "" {
		return profiled{}, fmt.Errorf("profile of %v: %s", v, s.Failed)
	}
	own, err := top(ctx, path)
	if err != nil {
		return profiled{}, err
	}
	traces, err := exec.CommandContext(ctx, "go", "tool", "pprof", "-traces", path).Output()
	if err != nil {
		return profiled{}, fmt.Errorf("go tool pprof: %w", err)
	}
	parts, err := parseTraces(string(traces))
	if err != nil {
		return profiled{}, err
	}
	sum, err := top(ctx, path, "-cum", "-hide="+wrappers)
	return profiled{Of: v, Parts: parts, Own: own, Sum: sum}, err
}

func top(ctx context.Context, path string, more ...string) ([]frame, error) {
	args := append(append([]string{"tool", "pprof", "-top", "-nodecount=" + strconv.Itoa(topFrames)}, more...), path)
	out, err := exec.CommandContext(ctx, "go", args...).Output()
	if err != nil {
		return nil, fmt.Errorf("go tool pprof: %w", err)
	}
	return parseTop(string(out), len(more) > 0)
}

// parseTop reads what go tool pprof -top prints: flat, flat%, sum%, cum, cum%, name.
func parseTop(text string, cumulative bool) ([]frame, error) {
	_, rows, ok := strings.Cut(text, "cum%\n")
	if !ok {
		return nil, fmt.Errorf("go tool pprof printed no table: %q", text)
	}
	var frames []frame
	for line := range strings.Lines(rows) {
		fields := strings.Fields(line)
		if len(fields) < 6 {
			continue
		}
		column := 1
		if cumulative {
			column = 4
		}
		share, err := strconv.ParseFloat(strings.TrimSuffix(fields[column], "%"), 64)
		if err != nil {
			return nil, fmt.Errorf("go tool pprof: %w", err)
		}
		frames = append(frames, frame{share, strings.Join(fields[5:], " ")})
	}
	return frames, nil
}

// parts are what a stack is spent on: the first whose word is in one of its functions. What is more particular comes first.
var parts = []struct {
	name  string
	words []string
}{
	{"garbage collector", []string{"runtime.gcBgMarkWorker", "runtime.gcAssistAlloc", "runtime.bgsweep", "runtime.bgscavenge", "runtime.gcMarkDone"}},
	{"allocation", []string{"runtime.mallocgc"}},
	{"stack growth", []string{"runtime.newstack"}},
	{"TLS", []string{"crypto/tls."}},
	{"JSON", []string{"encoding/json.", "jsontext."}},
	{"protobuf", []string{"google.golang.org/protobuf/"}},
	{"SQLite", []string{"modernc.org/sqlite", "ledger/sqlite."}},
	{"pgx", []string{"github.com/jackc/"}},
	{"telemetry", []string{"go.opentelemetry.io/", "client_golang/", "log/slog."}},
	{"hashes", []string{"crypto/sha256.", "crypto/hmac.", "fips140/sha256."}},
	{"core", []string{"opsledger/ledger.Decide", "opsledger/ledger/fingerprint."}},
	{"store", []string{"ledger/postgres.", "ledger/coalesce.", "opsledger/ledger."}},
	{"service and authorization", []string{"opsledger/ledger/rpc.", "opsledger/authz."}},
	{"gRPC", []string{"google.golang.org/grpc"}},
	{"scheduler", []string{"runtime.schedule", "runtime.findRunnable", "runtime.mcall", "runtime.park_m"}},
}

// parseTraces adds up what go tool pprof -traces prints: of each stack its time, beside the innermost function, and then its callers.
func parseTraces(text string) ([]frame, error) {
	sums, total := map[string]time.Duration{}, time.Duration(0)
	_, text, _ = strings.Cut(text, "-----------+") // what is before is about the file
	for stack := range strings.SplitSeq(text, "-----------+") {
		_, stack, _ = strings.Cut(stack, "\n")
		fields := strings.Fields(stack)
		if len(fields) < 2 {
			continue
		}
		took, err := time.ParseDuration(fields[0])
		if err != nil {
			return nil, fmt.Errorf("go tool pprof -traces: %w", err)
		}
		sums[partOf(stack)] += took
		total += took
	}
	var out []frame
	for name, sum := range sums {
		out = append(out, frame{100 * float64(sum) / float64(total), name})
	}
	slices.SortFunc(out, func(a, b frame) int { return cmp.Or(cmp.Compare(b.Share, a.Share), cmp.Compare(a.Name, b.Name)) })
	return out, nil
}

func partOf(stack string) string {
	for _, p := range parts {
		for _, word := range p.words {
			if strings.Contains(stack, word) {
				return p.name
			}
		}
	}
	return "other"
}
