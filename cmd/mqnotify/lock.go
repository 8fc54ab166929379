package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/mqnotify/mqnotify/guard"
	"github.com/mqnotify/mqnotify/internal/supervisor"
	"github.com/mqnotify/mqnotify/notify"
)

const (
	kindAdvisory = "advisory"
	kindLease    = "lease"
)

// exitNotGot is the exit code of lock when another session holds the lock: EX_TEMPFAIL of sysexits.h.
const exitNotGot = 75

type lockOptions struct {
	kind    string
	timeout time.Duration
	waits   bool // no --timeout: it waits without a limit
	ttl     time.Duration
	notGot  int
}

func newLock(a *app) *cobra.Command {
	var o lockOptions
	cmd := &cobra.Command{
		Use:   "lock NAME [flags] -- COMMAND ARGS...",
		Short: "Run a command while a lock is held, one at a time on all machines",
		Long: `Takes the lock NAME, runs COMMAND, and releases the lock when COMMAND has ended: flock(1) for all
machines that use the database. NAME is any text of 1 to 255 characters.

lock waits until it gets the lock, or for --timeout; 0s tries once. After 5 s of waiting it logs
the holder. It fails at once if a command above it holds the same lock, because each would wait
for the other. The exit code is that of COMMAND (128 plus the signal's number if a signal ended
it); 75, or that of -E, if another session holds the lock; 1 if the server can't be reached.

COMMAND gets mqnotify's stdin, the signals that mqnotify gets, and the lock's name in
MQNOTIFY_LOCK. It can't read from a terminal, which would stop it while it holds the lock.

The lock is held until COMMAND and all processes of its process group have ended, including
those that COMMAND leaves running in the background. A process that leaves the group, as a
daemon does (setsid), may outlive the lock. When mqnotify is killed (kill -9), COMMAND and all
that it has started, including daemons, get SIGTERM, and SIGKILL 5 s later. On other Unix systems
than Linux only the process group gets them, without daemons; on Windows COMMAND goes on.

An advisory lock (GET_LOCK, the default) needs no table. It is free as soon as its connection
ends, and the session that has waited longest gets it. When mqnotify is killed, the lock is free
when all that COMMAND has started has ended.

A lease (--kind lease) is a row in a table that init makes. It expires --ttl after mqnotify or its
host has died, works in clusters where several servers take writes (Galera), and has a fencing
token, in MQNOTIFY_TOKEN, which grows with each holder.

When the lock is lost, for example because the server can't be reached, COMMAND and all that it
has started get SIGTERM, and then SIGKILL. For an advisory lock, SIGKILL comes 5 s later, when
another session may hold the lock. For a lease that was not renewed, it comes before another
session can hold the lease.`,
		Example: `  mqnotify lock nightly-report -- ./report
  mqnotify lock deploy --timeout 0s -E 1 -- ./deploy production
  mqnotify lock import --kind lease --ttl 1m -- sh -c './import --fence "$MQNOTIFY_TOKEN"'`,
		Args: oneNameAndCommand("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.waits = !cmd.Flags().Changed("timeout")
			if cmd.Flags().Changed("ttl") && o.kind != kindLease {
				return usagef("--ttl is for leases: give --kind lease too")
			}
			return a.lock(cmd.Context(), o, args[0], args[1:])
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.kind, "kind", kindAdvisory, "advisory or lease")
	flags.DurationVar(&o.timeout, "timeout", 0, "how long to wait for the lock; 0s tries once (default no limit)")
	flags.DurationVar(&o.ttl, "ttl", 30*time.Second, "how long after its holder's death a lease expires")
	flags.IntVarP(&o.notGot, "conflict-exit-code", "E", exitNotGot, "the exit `code` if another session holds the lock")
	a.registerInherit(cmd, "COMMAND")
	completeWith(cmd, "kind", kindAdvisory, kindLease)
	return cmd
}

func (a *app) lock(ctx context.Context, o lockOptions, name string, args []string) error {
	if err := oneOf("kind", o.kind, kindAdvisory, kindLease); err != nil {
		return err
	}
	switch {
	case o.timeout < 0:
		return usagef("--timeout %v: 0s or more", o.timeout)
	case o.ttl == 0: // guard takes 0 for the default
		return usagef("a lease's TTL of 0s: give 50ms or more")
	case o.notGot < 0 || o.notGot > 255:
		return usagef("-E %d: 0 to 255", o.notGot)
	}
	if err := findCommand(args); err != nil {
		return err
	}
	var kept sockets
	db, err := a.openWith(kept.dial)
	if err != nil {
		return err
	}
	defer closeDB(db)
	mutex, err := o.mutex(db, name)
	if err != nil {
		return err
	}
	above := a.heldAbove()
	lock, err := a.lockOf(o, name)
	if err != nil {
		return err
	}
	inherited := slices.Contains(above, lock) // the command that took it may have ended, and this one may have outlived it
	if inherited {
		o.waits, o.timeout = false, 0
	}
	done := a.reportWait(ctx, o, db, name, above)
	held, err := o.take(ctx, mutex)
	done()
	switch {
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("the command was not run: %w", err)
	case errors.Is(err, notify.ErrNotAcquired) && inherited:
		return fmt.Errorf("a command above this one holds the lock %q and waits for this one to end, so both would wait forever: give the two locks different names", name)
	case errors.Is(err, notify.ErrNotAcquired):
		a.log.InfoContext(ctx, "another session holds the lock: the command is not run", "lock", name)
		return &exitError{code: o.notGot}
	case err != nil:
		return err
	}
	variables := []string{"MQNOTIFY_LOCK=" + name, withHeld(above, lock)}
	if token := held.Token(); token != 0 {
		variables = append(variables, "MQNOTIFY_TOKEN="+strconv.FormatUint(token, 10))
	}
	patience := killAfter
	if o.kind == kindLease {
		// The holder counts the lease as lost a sixth of the TTL before it expires. A tenth of the TTL is for SIGTERM, and the
		// rest of the sixth for the kill itself.
		patience = min(killAfter, o.ttl/10)
	}
	command := supervisor.New(args, patience)
	if o.kind == kindAdvisory {
		kept.keptBy(command)
	}
	holding, stop := held.Context(context.WithoutCancel(ctx))
	err = a.guarded(ctx, command, variables, holding.Done())
	stop()
	released := held.Release(ctx)
	if err == nil { // the command's exit code is more important than an error of Release
		err = released
	}
	return err
}

// lockOf returns a name of the lock that is unique across databases and servers.
func (a *app) lockOf(o lockOptions, name string) (string, error) {
	config, err := a.config()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s %s of the database %s at %s", o.kind, name, config.DBName, config.Addr), nil
}

func (o lockOptions) mutex(db *notify.DB, name string) (*guard.Mutex, error) {
	options := guard.MutexOptions{Kind: o.kind}
	if o.kind == kindLease {
		options.TTL = o.ttl
	}
	return guard.NewMutex(db, name, options)
}

// take takes the lock, and waits for it for at most --timeout.
func (o lockOptions) take(ctx context.Context, mutex *guard.Mutex) (guard.Held, error) {
	switch {
	case o.waits:
		return mutex.Lock(ctx)
	case o.timeout == 0:
		return mutex.TryLock(ctx)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.timeout, fmt.Errorf("no answer within --timeout %v", o.timeout))
	defer cancel()
	return mutex.Lock(ctx)
}
