// Package supervisor runs a command so that everything that the command starts ends with the calling process, even if that process is
// killed with SIGKILL.
//
// Between the two processes is a third one, the supervisor: the same program, started again under another name. The supervisor starts
// the command in a process group of its own and reads a pipe whose other end the calling process holds. The kernel closes that end when
// the calling process dies.
//
//	calling process ──pipe──▶ supervisor ──▶ command ──▶ processes that the command starts
//
// A byte in the pipe is the number of a signal for the command's group; SIGKILL is for the whole tree. When the pipe is closed, the
// supervisor ends the tree: it sends SIGTERM, and SIGKILL after the patience. On Linux the tree is every descendant of the supervisor,
// because a child subreaper becomes the parent of orphans: the supervisor also finds a process that calls setsid or forks twice. On
// other Unix systems the tree is the command's group. On systems without process groups there is no supervisor, and the command runs
// alone.
//
// The caller may give the supervisor sockets to keep open. A server that holds a lock for the caller's connection then holds it until
// the tree has ended.
//
// A command has ended when its whole group has ended. A process that left the group, as daemons do, continues unless the tree is ended.
package supervisor

import (
	"fmt"
	"os/exec"
	"sync"
	"time"
)

// Command is a command that runs under a supervisor. The caller sets streams, Env and WaitDelay of the Cmd before Start.
// Signal, End and Kill may be called at any time after Start, and are safe for concurrent use.
type Command struct {
	*exec.Cmd
	platform
	mu    sync.Mutex
	ended bool // End was called, or Wait has returned
}

// ExitError means that the exit code of a command is not 0.
type ExitError struct {
	Code int // 128 and the number of the signal, if a signal ended the command
}

func (e *ExitError) Error() string { return fmt.Sprintf("exit status %d", e.Code) }

// New returns a command that is not started. patience is the time between SIGTERM and SIGKILL when the tree is ended.
func New(args []string, patience time.Duration) *Command {
	c := &Command{Cmd: exec.Command(args[0], args[1:]...)} //nolint:noctx // End and Kill end it
	c.supervise(patience)
	return c
}
