//go:build unix

package supervisor

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// platform is the part of a Command on systems with supervisors.
type platform struct {
	patience time.Duration
	command  string   // its path
	control  *os.File // the supervisor reads its other end
	failure  *os.File // the error number, if the command could not be started
	kept     []*os.File
}

// supervise puts the supervisor between the caller and the command.
func (c *Command) supervise(patience time.Duration) {
	c.patience, c.command = patience, c.Path
}

// Keep makes the supervisor keep a socket open until the command has ended. Call it before Start. It ignores a closed socket.
func (c *Command) Keep(conn syscall.Conn) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return
	}
	// Not conn's own File, which would make the socket blocking.
	_ = raw.Control(func(fd uintptr) {
		if copied, err := unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0); err == nil {
			c.kept = append(c.kept, os.NewFile(uintptr(copied), "socket"))
		}
	})
}

// inherited returns the descriptors from 3 on that this process has inherited, because the command inherits them, too. Elements for
// descriptors of this process itself are nil.
var inherited = sync.OnceValue(func() []*os.File {
	var files []*os.File
	for fd := 3; fd < 256; fd++ { // shells pass few descriptors, and none above 255
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			files = append(files, make([]*os.File, fd-3-len(files))...)
			files = append(files, os.NewFile(uintptr(fd), "inherited"))
		}
	}
	return files
})

// Start starts the supervisor, which starts the command. Wait returns an error of the command's start.
func (c *Command) Start() error {
	defer func() {
		for _, file := range c.kept {
			_ = file.Close()
		}
	}()
	if c.Err != nil { // the command does not exist
		return c.Err
	}
	self, err := executable()
	if err != nil {
		return err
	}
	read, control, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = read.Close() }() // the supervisor has a copy
	failure, write, err := os.Pipe()
	if err != nil {
		_ = control.Close()
		return err
	}
	defer func() { _ = write.Close() }()
	own := append([]*os.File{read, write}, c.kept...)
	c.ExtraFiles = append(slices.Clip(inherited()), own...)
	first := 3 + len(inherited())
	c.Path, c.Args = self, append([]string{name, c.patience.String(), strconv.Itoa(first), strconv.Itoa(len(own)), c.command}, c.Args...)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := c.Cmd.Start(); err != nil {
		_ = control.Close()
		_ = failure.Close()
		return err
	}
	c.control, c.failure = control, failure
	return nil
}

// Wait waits until the command and its group have ended. The error is an *ExitError if the exit code is not 0. Other errors are those
// of exec.Cmd.Wait, and of starting the command.
func (c *Command) Wait() error {
	err := c.Cmd.Wait()
	c.End() // closes the pipe
	defer func() { _ = c.failure.Close() }()
	text, readErr := io.ReadAll(c.failure)
	if readErr != nil {
		return errors.Join(err, readErr)
	}
	if number, notStarted := strconv.Atoi(string(text)); notStarted == nil {
		return fmt.Errorf("start: %w", syscall.Errno(number))
	}
	exit := (*exec.ExitError)(nil)
	if !errors.As(err, &exit) {
		return err
	}
	return &ExitError{Code: exitCode(exit.Sys().(syscall.WaitStatus))}
}

// exitCode returns the exit code in the form of a shell.
func exitCode(status syscall.WaitStatus) int {
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}

// Signal sends a signal to the command's group. It does nothing when the command has ended.
func (c *Command) Signal(s os.Signal) {
	if number, ok := s.(syscall.Signal); ok {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.ended {
			_, _ = c.control.Write([]byte{byte(number)}) // the supervisor may have ended
		}
	}
}

// End ends the command and everything that it has started: with SIGTERM, and with SIGKILL after the patience. Then Wait returns.
func (c *Command) End() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ended {
		c.ended = true
		_ = c.control.Close()
	}
}

// Kill ends the command and everything that it has started with SIGKILL, unless End was called before.
func (c *Command) Kill() { c.Signal(syscall.SIGKILL) }
