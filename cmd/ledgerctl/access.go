// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"

	"github.com/opsledger/opsledger/client"
	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// person is the identity of a development ledger that people have.
const person = "operator"

// access is where the ledger is and who calls, as the flags that every command for people has say it.
type access struct {
	flags      *pflag.FlagSet
	endpoint   string
	cert       string
	key        string
	ca         string
	serverName string
	stateDir   string
	timeout    time.Duration
	output     output
}

// accessHelp ends the help of the groups of commands.
const accessHelp = `The ledger is the development ledger of this host and the caller its identity "operator", unless --endpoint, --cert, --key and --ca say
otherwise. Flags can be set in the environment: --endpoint is LEDGERCTL_ENDPOINT.

` + exitHelp

// access defines the flags on a command and all below it. What is not said on the command line comes out of the environment.
func (p program) access(cmd *cobra.Command) *access {
	a := &access{flags: cmd.PersistentFlags(), output: outputText}
	a.flags.StringVar(&a.endpoint, "endpoint", "", "host:port of the ledger")
	a.flags.StringVar(&a.cert, "cert", "", "file of your certificate (PEM)")
	a.flags.StringVar(&a.key, "key", "", "file of its private key (PEM)")
	a.flags.StringVar(&a.ca, "ca", "", "file of the authorities that the ledger's certificate may come from (PEM)")
	a.flags.StringVar(&a.serverName, "server-name", "", "name that the ledger's certificate must have (default the endpoint's host)")
	a.flags.StringVar(&a.stateDir, "state-dir", "", "state directory of the development ledger (default as for ledgerd dev)")
	a.flags.DurationVar(&a.timeout, "timeout", 15*time.Second, "how long one call may take")
	a.flags.VarP(&a.output, "output", "o", "text, json, or jsonl: one line for each operation or event")
	return a
}

// environment sets flags that the command line has not.
func (a *access) environment(env []string) error {
	if a.stateDir != "" { // it names a ledger and who calls, whatever the environment says of another one
		for _, name := range []string{"endpoint", "cert", "key", "ca", "server-name"} {
			if a.flags.Changed(name) {
				return usageError{fmt.Errorf("--%s: can't be used with --state-dir", name)}
			}
		}
	}
	var err error
	a.flags.VisitAll(func(f *pflag.Flag) {
		name := "LEDGERCTL_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		value := variable(env, name)
		connects := f.Name != "output" && f.Name != "timeout"
		if value == "" || f.Changed || f.Name == "state-dir" || connects && a.stateDir != "" {
			return
		}
		if bad := f.Value.Set(value); bad != nil {
			err = errors.Join(err, usageError{fmt.Errorf("%s: %w", name, bad)})
		}
	})
	return err
}

// config is how to connect.
func (a *access) config(ctx context.Context, env []string) (client.Config, error) {
	if err := a.environment(env); err != nil {
		return client.Config{}, err
	}
	if a.timeout <= 0 {
		return client.Config{}, usageError{errors.New("--timeout: must be more than 0s")}
	}
	c := client.Config{Endpoint: a.endpoint, CAFile: a.ca, CertFile: a.cert, KeyFile: a.key, ServerName: a.serverName}
	if c == (client.Config{}) {
		dir, err := stateDir(a.stateDir, env)
		if err != nil {
			return c, err
		}
		d, err := findLedger(ctx, dir)
		if err != nil {
			return c, err
		}
		who, ok := d.Identities[person]
		if !ok {
			return c, fmt.Errorf("development ledger: %s: must have the identity %s", devFile, person)
		}
		return client.Config{Endpoint: d.GRPCAddr, CAFile: d.CAFile, CertFile: who.CertFile, KeyFile: who.KeyFile}, nil
	}
	for _, f := range []struct{ name, value string }{{"endpoint", a.endpoint}, {"cert", a.cert}, {"key", a.key}, {"ca", a.ca}} {
		if f.value == "" {
			return c, usageError{fmt.Errorf("--%s: is required where another ledger than the development ledger is named", f.name)}
		}
	}
	return c, nil
}

// session is one command's conversation with the ledger.
type session struct {
	program
	operators pb.OperatorServiceClient
	conn      *grpc.ClientConn
	me        string // the caller's principal; empty: only the policy knows it
	timeout   time.Duration
	printer
	talk io.Writer
}

// connect prepares a conversation; nothing is sent before the first call.
func (p program) connect(cmd *cobra.Command, a *access) (*session, error) {
	c, err := a.config(cmd.Context(), p.env)
	if err != nil {
		return nil, err
	}
	conn, err := client.Connect(cmd.Context(), c)
	if err != nil {
		return nil, err
	}
	return &session{
		program: p, operators: pb.NewOperatorServiceClient(conn), conn: conn, me: principalOf(c.CertFile), timeout: a.timeout,
		printer: printer{w: cmd.OutOrStdout(), output: a.output}, talk: cmd.ErrOrStderr(),
	}, nil
}

func (s *session) close() { _ = s.conn.Close() }

// say talks: what is not the answer.
func (s *session) say(format string, args ...any) { _, _ = fmt.Fprintf(s.talk, format+"\n", args...) }

// principalOf is what a certificate names its holder, where that needs no policy: the SPIFFE ID. It only helps to word and to filter
// (--mine): who the caller is, the ledger finds itself.
func principalOf(file string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return ""
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil || len(cert.URIs) != 1 {
		return ""
	}
	return cert.URIs[0].String()
}

// call makes one call within the time that it may take.
func call[Request, Response any](
	ctx context.Context, s *session, f func(context.Context, Request, ...grpc.CallOption) (Response, error), r Request,
) (Response, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	return f(ctx, r)
}

// view reads an operation.
func (s *session) view(ctx context.Context, id string) (*pb.GetOperationResponse, error) {
	return call(ctx, s, s.operators.GetOperation, &pb.GetOperationRequest{OperationId: id})
}
