//go:build !unix

package supervisor

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// platform is empty: there is no supervisor here.
type platform struct{}

func (*Command) supervise(time.Duration) {}

// Keep does nothing.
func (*Command) Keep(syscall.Conn) {}

// Wait waits until the command has ended. The error is an *ExitError if the exit code is not 0.
func (c *Command) Wait() error {
	err := c.Cmd.Wait()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return &ExitError{Code: exit.ExitCode()}
	}
	return err
}

// Signal kills the command, because there is no other signal here.
func (c *Command) Signal(os.Signal) { c.Kill() }

// End kills the command.
func (c *Command) End() { c.Kill() }

// Kill kills the command. The command may have ended already.
func (c *Command) Kill() { _ = c.Process.Kill() }
