// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

// resolved runs the sources of settings over the defaults of serve.
func resolved(t *testing.T, file string, env, flags []string) (Config, *settings, error) {
	t.Helper()
	c := serveDefaults()
	s := newSettings(&c)
	set := pflag.NewFlagSet("test", pflag.ContinueOnError)
	s.bind(set)
	if file != "" {
		flags = append(flags, "--config", written(t, "config.yaml", file))
	}
	if err := set.Parse(flags); err != nil {
		t.Fatal(err)
	}
	err := s.resolve(env)
	return c, s, err
}

func written(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestFlagThenEnvironmentThenFileThenDefault(t *testing.T) {
	for name, c := range map[string]struct {
		file, env, flag string
		want            time.Duration
		origin          string
	}{
		"none":                {want: 3 * time.Second, origin: "default"},
		"file":                {file: "4s", want: 4 * time.Second, origin: "file "},
		"environment":         {env: "5s", want: 5 * time.Second, origin: "environment LEDGERD_DRAIN_DELAY"},
		"flag":                {flag: "6s", want: 6 * time.Second, origin: "flag --drain-delay"},
		"environment, file":   {file: "4s", env: "5s", want: 5 * time.Second, origin: "environment LEDGERD_DRAIN_DELAY"},
		"flag, file":          {file: "4s", flag: "6s", want: 6 * time.Second, origin: "flag --drain-delay"},
		"flag, environment":   {env: "5s", flag: "6s", want: 6 * time.Second, origin: "flag --drain-delay"},
		"all":                 {file: "4s", env: "5s", flag: "6s", want: 6 * time.Second, origin: "flag --drain-delay"},
		"the default by flag": {file: "4s", flag: "3s", want: 3 * time.Second, origin: "flag --drain-delay"},
	} {
		t.Run(name, func(t *testing.T) {
			var env, flags []string
			file := ""
			if c.file != "" {
				file = "# of a test\n\ndrain-delay: " + c.file + "\n"
			}
			if c.env != "" {
				env = []string{"LEDGERD_DRAIN_DELAY=" + c.env, "OTHER=1"}
			}
			if c.flag != "" {
				flags = []string{"--drain-delay", c.flag}
			}
			got, s, err := resolved(t, file, env, flags)
			if err != nil {
				t.Fatal(err)
			}
			if got.DrainDelay != c.want {
				t.Errorf("drain-delay %s, want %s", got.DrainDelay, c.want)
			}
			if origin := s.byName["drain-delay"].origin; !strings.HasPrefix(origin, c.origin) {
				t.Errorf("origin %q, want %q", origin, c.origin)
			}
			if c.origin == "file " && !strings.HasSuffix(s.byName["drain-delay"].origin, "config.yaml:3") {
				t.Errorf("origin %q does not name the line", s.byName["drain-delay"].origin)
			}
		})
	}
}

func TestEverySettingCanBeGivenByEverySource(t *testing.T) {
	for _, x := range newSettings(&Config{}).all {
		text := "12"
		switch {
		case x.twin != nil:
			text = written(t, "secret", "12\n")
		case x.field.Type() == reflect.TypeFor[time.Duration]():
			text = "12s"
		}
		for source, give := range map[string]func() (Config, *settings, error){
			"file":        func() (Config, *settings, error) { return resolved(t, x.name+": "+text, nil, nil) },
			"environment": func() (Config, *settings, error) { return resolved(t, "", []string{envName(x.name) + "=" + text}, nil) },
			"flag":        func() (Config, *settings, error) { return resolved(t, "", nil, []string{"--" + x.name + "=" + text}) },
		} {
			_, s, err := give()
			if err != nil {
				t.Errorf("%s by %s: %v", x.name, source, err)
				continue
			}
			got := s.byName[x.name]
			field := got
			if got.twin != nil {
				field = got.twin
			}
			if value := fmt.Sprintf("%v", field.field.Interface()); value != hidden && !strings.HasPrefix(value, "12") {
				t.Errorf("%s by %s: is %s", x.name, source, value)
			}
			if !strings.HasPrefix(field.origin, source) {
				t.Errorf("%s by %s: origin %s", x.name, source, field.origin)
			}
		}
	}
}

func TestWhatIsNoSettingIsAnError(t *testing.T) {
	for name, c := range map[string]struct {
		file string
		env  []string
		want string
	}{
		"unknown key":          {file: "log-level: info\nlog-levle: canary4711", want: "config.yaml:2: unknown key"},
		"nested":               {file: "store:\n  dsn: canary4711", want: "config.yaml:1: store must be one plain value"},
		"key given twice":      {file: "log-level: info\nlog-level: canary4711", want: "config.yaml:2: log-level is given twice"},
		"null":                 {file: "log-level:", want: "config.yaml:1: log-level must be one plain value"},
		"broken":               {file: "log-level: [canary4711", want: "must be valid YAML"},
		"not a mapping":        {file: "- canary4711", want: "config.yaml:1: must be a mapping of settings"},
		"bad duration in file": {file: "drain-delay: canary4711", want: "config.yaml:1: --drain-delay (LEDGERD_DRAIN_DELAY): must be a number with its unit"},
		"bare number":          {file: "drain-delay: 3", want: "must be a number with its unit"},
		"unknown variable":     {env: []string{"LEDGERD_LOG_LEVLE=canary4711"}, want: "environment variable LEDGERD_LOG_LEVLE: is no setting"},
		"variable in another case": {
			env: []string{"LEDGERD_log_level=canary4711"}, want: "environment variable LEDGERD_log_level: is no setting",
		},
		"bad number": {env: []string{"LEDGERD_STORE_CONNECTIONS=canary4711"}, want: "--store-connections (LEDGERD_STORE_CONNECTIONS): must be a whole number"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := resolved(t, c.file, c.env, nil)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %s", err, c.want)
			}
			if strings.Contains(err.Error(), "canary4711") {
				t.Errorf("shows a value: %v", err)
			}
		})
	}
}

func TestAFileOfCommentsSaysNothing(t *testing.T) {
	got, _, err := resolved(t, "# log-level: info\n\n  # drain-delay: 4s\n", nil, nil)
	if diff := cmp.Diff(serveDefaults(), got); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
}

func TestVariablesThatKubernetesAddsForAServiceAreNoSettings(t *testing.T) {
	env := []string{
		"LEDGERD_SERVICE_HOST=10.0.0.1", "LEDGERD_SERVICE_PORT=7443", "LEDGERD_SERVICE_PORT_GRPC=7443", "LEDGERD_PORT=tcp://10.0.0.1:7443",
		"LEDGERD_PORT_7443_TCP=tcp://10.0.0.1:7443", "LEDGERD_PORT_7443_TCP_PROTO=tcp", "LEDGERD_PORT_7443_TCP_PORT=7443",
		"LEDGERD_PORT_7443_TCP_ADDR=10.0.0.1", "LEDGERD_ADMIN_SERVICE_HOST=10.0.0.2", "LEDGERD_ADMIN_PORT_7490_TCP_ADDR=10.0.0.2",
	}
	got, _, err := resolved(t, "", env, nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(serveDefaults(), got); diff != "" {
		t.Error(diff)
	}
	for _, x := range newSettings(&Config{}).all {
		if serviceLink.MatchString(envName(x.name)) {
			t.Errorf("%s looks like one of Kubernetes'", envName(x.name))
		}
	}
}

func TestSecretsMayBeFiles(t *testing.T) {
	const dsn = "postgres://u:canary4711@db/l"
	path := written(t, "dsn", dsn+"\n")
	for name, c := range map[string]struct {
		file       string
		env, flags []string
		want       string
		wantErr    string
	}{
		"file":                           {env: []string{"LEDGERD_STORE_FILE=" + path}, want: dsn},
		"above a lower rank":             {file: "store: other", env: []string{"LEDGERD_STORE_FILE=" + path}, want: dsn},
		"below a higher rank":            {env: []string{"LEDGERD_STORE_FILE=" + path}, flags: []string{"--store=other"}, want: "other"},
		"both of one rank":               {env: []string{"LEDGERD_STORE_FILE=" + path, "LEDGERD_STORE=other"}, wantErr: "is given both itself and as a file"},
		"missing":                        {flags: []string{"--store-file", path + "-missing"}, wantErr: "dsn-missing: no such file"},
		"an empty variable is not given": {env: []string{"LEDGERD_STORE_FILE=" + path, "LEDGERD_STORE="}, want: dsn},
	} {
		t.Run(name, func(t *testing.T) {
			got, _, err := resolved(t, c.file, c.env, c.flags)
			if c.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), c.wantErr) {
					t.Errorf("got %v, want %s", err, c.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got.Store.Reveal() != c.want {
				t.Errorf("another store than wanted")
			}
		})
	}
}

func TestConfigPrintHidesSecretsAndCanBeReadAgain(t *testing.T) {
	const canary = "postgres://u:canary4711@db/l"
	args := []string{"config", "print", "--log-level", "debug"}
	env := []string{"LEDGERD_STORE=" + canary}
	var yaml, table bytes.Buffer
	if err := run(t.Context(), args, env, &yaml, os.Stderr); err != nil {
		t.Fatal(err)
	}
	if err := run(t.Context(), append(args, "--origin"), env, &table, os.Stderr); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{yaml.String(), table.String(), fmt.Sprintf("%v %+v %#v", Secret(canary), Config{Store: canary}, Config{Store: canary})} {
		if strings.Contains(text, "canary4711") || !strings.Contains(text, hidden) {
			t.Errorf("the secret is not hidden:\n%s", text)
		}
	}
	for _, line := range []string{"log-level debug flag --log-level", "store *** environment LEDGERD_STORE", "drain-delay 3s default"} {
		found := false
		for got := range strings.Lines(table.String()) {
			found = found || strings.Join(strings.Fields(got), " ") == line
		}
		if !found {
			t.Errorf("no line %q in\n%s", line, table.String())
		}
	}
	got, _, err := resolved(t, yaml.String(), nil, nil)
	if err != nil {
		t.Fatalf("%v in\n%s", err, yaml.String())
	}
	want := serveDefaults()
	want.LogLevel, want.Store = "debug", hidden
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	// A secret out of a file is printed as that file.
	path := written(t, "dsn", canary)
	yaml.Reset()
	if err := run(t.Context(), args, []string{"LEDGERD_STORE_FILE=" + path}, &yaml, os.Stderr); err != nil {
		t.Fatal(err)
	}
	if got, _, err = resolved(t, yaml.String(), nil, nil); err != nil || got.Store.Reveal() != canary {
		t.Errorf("%v in\n%s", err, yaml.String())
	}
}

func TestServeAsksForWhatProtectsIt(t *testing.T) {
	err := run(t.Context(), []string{"serve", "--log-level", "loud", "--grpc-addr", "7443", "--drain-delay", "-1s"}, nil, os.Stdout, os.Stderr)
	if exitCode(err) != 2 {
		t.Fatalf("exit code %d of %v", exitCode(err), err)
	}
	for _, want := range []string{
		"--store (LEDGERD_STORE): is required", "--tls-cert (LEDGERD_TLS_CERT): is required", "--tls-key (", "--tls-ca (", "--policy (", "--secrets (",
		"--log-level (LEDGERD_LOG_LEVEL): must be one of debug, info", "--grpc-addr (LEDGERD_GRPC_ADDR): must be host:port", "--drain-delay (",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("does not say %q:\n%v", want, err)
		}
	}
}

func TestDevListensOnLoopbackOnly(t *testing.T) {
	for addr, want := range map[string]bool{
		"127.0.0.1:7443": true, "127.8.8.8:0": true, "[::1]:7443": true, "localhost:7443": true,
		":7443": false, "0.0.0.0:7443": false, "[::]:7443": false, "192.0.2.1:7443": false, "ledger.example:7443": false,
		"localhost.example:7443": false, "7443": false,
	} {
		for _, setting := range []string{"grpc-addr", "admin-addr"} {
			c := devDefaults()
			if setting == "grpc-addr" {
				c.GRPCAddr = addr
			} else {
				c.AdminAddr = addr
			}
			if err := c.validateDev(); (err == nil) != want {
				t.Errorf("%s %s: %v", setting, addr, err)
			}
		}
	}
	for addr, want := range map[string]bool{
		"127.0.0.1:7470": true, "[::1]:7470": true, "127.0.0.1:0": false, "localhost:7470": false, "192.0.2.1:7470": false, ":7470": false, "": false, "[::1%lo]:7470": false,
	} {
		c := devDefaults()
		c.DemoTarget = addr
		if err := c.validateDev(); (err == nil) != want {
			t.Errorf("demo-target %s: %v", addr, err)
		}
	}
	dir := filepath.Join(t.TempDir(), "state")
	err := run(t.Context(), []string{"dev", "--state-dir", dir, "--grpc-addr", "0.0.0.0:0"}, nil, os.Stdout, os.Stderr)
	if err == nil || exitCode(err) != 2 || !strings.Contains(err.Error(), "dev listens on loopback only") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("a refused start has made files")
	}
}

func TestUnknownFlagsAndCommandsAreWrongUsage(t *testing.T) {
	for _, args := range [][]string{{"serv"}, {}, {"config"}, {"config", "show"}, {"serve", "--polcy", "x"}, {"serve", "extra"}, {"dev", "--store", "x"}, {"version", "-o", "xml"}} {
		if err := run(t.Context(), args, nil, os.Stdout, os.Stderr); exitCode(err) != 2 {
			t.Errorf("%v: exit code %d, %v", args, exitCode(err), err)
		}
	}
}
