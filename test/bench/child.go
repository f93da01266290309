// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/opsledger/opsledger/authz"
)

// The load and the echo server are processes of their own, so that their processor time is not ledgerd's: this program again, told by
// its environment what to be. A child ends with its standard input, so it never outlives the one that started it.

const (
	asChild = "OPSLEDGER_BENCH_AS"
	asLoad  = "load"
	asEcho  = "echo"
)

// setup is what a child needs to know.
type setup struct {
	Files authz.Files
	// Connections to each address.
	Connections int
	Addresses   map[string]string // for the load: by target
	Sizes       []messageSizes    // for the load: of the calls of an echo's unit
}

// order is one run that the load is told to do.
type order struct {
	Target string
	Plan   plan
}

// said is what the load answers: begun, ended, then done with the outcome.
type said struct {
	What    string
	Outcome outcome
}

// beChild does what a child is for. False: this process is none.
func beChild() bool {
	what := os.Getenv(asChild)
	if what == "" {
		return false
	}
	in := json.NewDecoder(os.Stdin)
	var s setup
	err := in.Decode(&s)
	switch {
	case err != nil:
	case what == asEcho:
		err = beEcho(s, in, os.Stdout)
	case what == asLoad:
		err = beLoad(s, in, os.Stdout)
	default:
		err = errors.New("there is no such child")
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "bench: %s: %v\n", what, err)
		os.Exit(1)
	}
	return true
}

func beLoad(s setup, in *json.Decoder, stdout io.Writer) error {
	out := json.NewEncoder(stdout)
	material, err := authz.NewMaterialReloader(s.Files, time.Now, nil)
	if err != nil {
		return err
	}
	units := map[string]func(context.Context, int) error{}
	for target, addr := range s.Addresses {
		conns := make([]*grpc.ClientConn, s.Connections)
		for i := range conns {
			if conns[i], err = grpc.NewClient(addr, grpc.WithTransportCredentials(credentials.NewTLS(authz.ClientTLS(material, "")))); err != nil {
				return err
			}
		}
		if target == targetEcho {
			units[target] = echoUnits(conns, s.Sizes)
		} else {
			units[target] = remoteUnits(conns)
		}
	}
	for {
		var o order
		if err := in.Decode(&o); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		tell := func(what string) func() { return func() { _ = out.Encode(said{What: what}) } } // who does not listen has gone
		result := drive(context.Background(), o.Plan, tell("begun"), tell("ended"), units[o.Target])
		if err := out.Encode(said{What: "done", Outcome: result}); err != nil {
			return err
		}
	}
}

// child is such a process, seen by the one that started it.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func startChild(what string, s setup, env ...string) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &child{cmd: exec.Command(self)}
	c.cmd.Env = append(append(os.Environ(), env...), asChild+"="+what)
	c.cmd.Stderr = os.Stderr
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.out = bufio.NewScanner(out)
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	return c, json.NewEncoder(c.in).Encode(s)
}

func (c *child) stop() error {
	return errors.Join(c.in.Close(), c.cmd.Wait())
}

func (c *child) hear(v any) error {
	if !c.out.Scan() {
		return fmt.Errorf("a child has ended: %w", errors.Join(c.out.Err(), io.ErrUnexpectedEOF))
	}
	return json.Unmarshal(c.out.Bytes(), v)
}

// run lets the load do a run.
func (c *child) run(target string, p plan, begun, ended func()) (outcome, error) {
	if err := json.NewEncoder(c.in).Encode(order{target, p}); err != nil {
		return outcome{}, err
	}
	for {
		var s said
		if err := c.hear(&s); err != nil {
			return outcome{}, err
		}
		switch s.What {
		case "begun":
			begun()
		case "ended":
			ended()
		default:
			return s.Outcome, nil
		}
	}
}
