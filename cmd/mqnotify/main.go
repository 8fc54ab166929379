// Mqnotify publishes, consumes and follows the rows of MySQL and MariaDB tables
// from the command line. See `mqnotify --help` and docs/reference/cli.md.
package main

import (
	"context"
	"log/slog"
	"os"
)

func main() {
	a := newApp(streams{in: os.Stdin, out: os.Stdout, err: os.Stderr, environ: os.Environ()})
	a.setDefault, a.unsetenv = slog.SetDefault, os.Unsetenv
	ctx := a.stopOnSignals(context.Background())
	os.Exit(a.run(ctx, os.Args[1:]))
}
