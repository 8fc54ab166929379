// Package supervisor runs a command so that everything the command starts ends with the process that runs it, also when that process is
// killed with SIGKILL.
//
// Between the two processes is a third one, the supervisor: the same program, started again under another name. The supervisor starts the
// command in a process group of its own and reads a pipe whose other end the running process holds. The kernel closes that end when the
// running process dies.
//
//	running process ──pipe──▶ supervisor ──▶ command ──▶ what the command starts
//
// A byte in the pipe is the number of a signal for the command's group; SIGKILL is for the whole tree. The end of the pipe means that the
// tree is to end: the supervisor sends SIGTERM, and SIGKILL after the patience. The tree is, on Linux, every descendant of the supervisor,
// because a child subreaper becomes the parent of orphans: a process that calls setsid or forks twice is found too. On other Unix systems
// the tree is the command's group. Where there are no process groups there is no supervisor, and a command is alone.
//
// The caller may give the supervisor sockets to keep open, so that a server that holds a lock for the caller's connection holds it until the
// tree has ended.
//
// A command has ended when its whole group has ended. A process that left the group, as daemons do, goes on if nothing ended the tree.
package supervisor

import (
	"fmt"
	"os/exec"
	"sync"
	"time"
)

// Command is a command that runs under a supervisor. The caller sets streams, Env and WaitDelay of the Cmd before Start.
// Signal, End and Kill may be called at any time after Start, by several goroutines.
type Command struct {
	*exec.Cmd
	platform
	mu    sync.Mutex
	ended bool // End was called, or Wait has returned
}

// ExitError is the end of a command whose exit code is not 0.
type ExitError struct {
	Code int // 128 and the number of the signal, if a signal ended the command
}

func (e *ExitError) Error() string { return fmt.Sprintf("exit status %d", e.Code) }

// New returns the command args, which is not started. patience is the time between SIGTERM and SIGKILL when the tree is ended.
func New(args []string, patience time.Duration) *Command {
	c := &Command{Cmd: exec.Command(args[0], args[1:]...)} //nolint:noctx // End and Kill end it
	c.supervise(patience)
	return c
}
