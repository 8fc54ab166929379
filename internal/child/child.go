// Package child runs programs for tests, and ends them with the tests, however
// the tests end.
package child

import (
	"os"
	"os/exec"
	"runtime"
)

// Process is a program that Start has started.
type Process struct {
	*os.Process
	Done chan struct{} // closed when it has ended
	Err  error         // how it ended; valid once Done is closed
}

// Start starts the command, and appends its output to the log file. The caller ends it.
func Start(command *exec.Cmd, log string) (*Process, error) {
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	command.Stdout, command.Stderr = file, file
	p := &Process{Done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		defer close(p.Done)
		// Linux sends the parent-death signal when the thread that started the child ends. The thread must therefore
		// live as long as the child; it ends with this goroutine.
		runtime.LockOSThread()
		err := command.Start()
		_ = file.Close() // the child has its own descriptor
		p.Process = command.Process
		started <- err
		if err == nil {
			p.Err = command.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}
