// SPDX-License-Identifier: Apache-2.0

// Command target runs the service of package target until SIGINT or SIGTERM.
// It depends on that package only.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"

	"github.com/opsledger/opsledger/test/target"
)

func main() {
	err := target.Main(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "target:", err)
		os.Exit(1)
	}
}
