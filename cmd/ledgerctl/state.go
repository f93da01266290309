// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/opsledger/opsledger/client"
)

// devLedger is how to reach a development ledger: what ledgerd dev writes into its state directory.
type devLedger struct {
	GRPCAddr   string              `json:"grpc_addr"`
	AdminAddr  string              `json:"admin_addr"`
	CAFile     string              `json:"ca_file"`
	Identities map[string]identity `json:"identities"`
	// DemoTarget is where its contracts ask the services of the demonstration; empty: it has other contracts.
	DemoTarget string `json:"demo_target"`
}

// identity is one of the client certificates that a development ledger makes.
type identity struct {
	CertFile string `json:"cert_file"`
	KeyFile  string `json:"key_file"`
}

// devFile is the file's name in the state directory.
const devFile = "dev.json"

// worker is the identity that the demonstration's workers have, all of them: a key belongs to the principal that claims it.
const worker = "agent-a"

// access is how a worker reaches the ledger.
func (d devLedger) access() client.Config {
	who := d.Identities[worker]
	return client.Config{Endpoint: d.GRPCAddr, CAFile: d.CAFile, CertFile: who.CertFile, KeyFile: who.KeyFile}
}

// stateDir is where a development ledger keeps its files: the flag, also as a variable, else what ledgerd would use under this environment.
func stateDir(flag string, env []string) (string, error) {
	switch {
	case flag != "":
		return flag, nil
	case variable(env, "LEDGERCTL_STATE_DIR") != "":
		return variable(env, "LEDGERCTL_STATE_DIR"), nil
	case variable(env, "LEDGERD_STATE_DIR") != "":
		return variable(env, "LEDGERD_STATE_DIR"), nil
	case filepath.IsAbs(variable(env, "XDG_STATE_HOME")): // relative ones are ignored, says the XDG base directory specification
		return filepath.Join(variable(env, "XDG_STATE_HOME"), "ledgerd"), nil
	case variable(env, "HOME") != "":
		return filepath.Join(variable(env, "HOME"), ".local", "state", "ledgerd"), nil
	default:
		return "", usageError{errors.New("--state-dir: is required where neither LEDGERD_STATE_DIR nor HOME is set")}
	}
}

// variable returns the value of an environment variable; of several the last, as os/exec has it.
func variable(env []string, name string) string {
	for i := len(env) - 1; i >= 0; i-- {
		if v, ok := strings.CutPrefix(env[i], name+"="); ok {
			return v
		}
	}
	return ""
}

// readDev reads how to reach the development ledger of a state directory.
func readDev(dir string) (devLedger, error) {
	var d devLedger
	text, err := os.ReadFile(filepath.Join(dir, devFile))
	if errors.Is(err, fs.ErrNotExist) {
		return d, unavailableError{fmt.Errorf("no development ledger in %s: start one with: go run ./cmd/ledgerd dev", dir)}
	}
	if err != nil {
		return d, fmt.Errorf("development ledger: %w", err)
	}
	if err := json.Unmarshal(text, &d); err != nil {
		return d, fmt.Errorf("development ledger: %s: %w", devFile, err)
	}
	if _, ok := d.Identities[worker]; !ok || d.GRPCAddr == "" || d.CAFile == "" {
		return d, fmt.Errorf("development ledger: %s: must have grpc_addr, ca_file, and the identity %s", devFile, worker)
	}
	return d, nil
}
