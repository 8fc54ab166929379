package main

import (
	"cmp"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// newRoot returns the whole command line. Each command is a function in a file of its own, and a line here.
func newRoot(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "mqnotify COMMAND",
		Short: "A notification queue in MySQL and MariaDB tables",
		Long: `mqnotify publishes, consumes and follows the rows of MySQL and MariaDB tables. It needs ordinary
table privileges. It loses no row that commits late, if its account can see open transactions
("mqnotify doctor" checks this).

A topic is a table: one that init made, or any table with an AUTO_INCREMENT key.

Name the server with --dsn or MQNOTIFY_DSN, in the driver's form
(user:password@tcp(host:3306)/database) or as a URL
(mysql://user:password@host:3306/database?tls=true), or with --defaults-file. The default is
~/.my.cnf. Other users of the machine can see the command line: put a password into MQNOTIFY_DSN
or a file.

Data goes to stdout, logs to stderr. The exit code is 0 for success, 1 for a failure, and 2 for a
wrong command line. Ctrl-C finishes the work in hand and exits with 0. If that takes longer than
0.7 s mqnotify says so, and a second Ctrl-C ends it at once.`,
		Example: `  export MQNOTIFY_DSN='mysql://user:password@127.0.0.1:3306/shop'
  mqnotify demo                                  # see a producer and a consumer work
  mqnotify init orders
  mqnotify consume orders                        # in one terminal
  mqnotify produce orders 'hello'                # in another`,
		Version:       version(),
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			log, err := a.logging.logger(a.stderr)
			if err != nil {
				return err
			}
			a.log, a.started = log, true
			a.setDefault(log)
			if !a.inheritDSN { // a program that bridge --to exec: runs inherits the process's environment
				for _, name := range secretVariables {
					if err := a.unsetenv(name); err != nil {
						return err
					}
				}
			}
			return a.awaitServer(cmd.Context())
		},
	}
	root.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp)
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.stderr)
	root.SetVersionTemplate("mqnotify {{.Version}}\n")
	a.connection.register(root)
	a.logging.register(root)
	root.AddCommand(
		newInit(a),
		newProduce(a),
		newConsume(a),
		newTail(a),
		newBridge(a),
		newImport(a),
		newListen(a),
		newNotify(a),
		newFlag(a),
		newLock(a),
		newOnce(a),
		newEnqueue(a),
		newWork(a),
		newTasks(a),
		newSchedule(a),
		newRing(a),
		newWake(a),
		newCapture(a),
		newServe(a),
		newGrants(a),
		newStatus(a),
		newDead(a),
		newDoctor(a),
		newDemo(a),
		newBench(a),
		newMan(a),
	)
	return root
}

// released is the version of a build outside a repository, such as that of the container image.
var released string // -ldflags "-X main.released=v1.2.3"

// version returns the version that the build recorded, and that of Go.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "(unknown) " + runtime.Version()
	}
	return cmp.Or(released, info.Main.Version) + " " + info.GoVersion
}
