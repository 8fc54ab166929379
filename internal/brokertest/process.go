//go:build unix

package brokertest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/mqnotify/mqnotify/internal/child"
)

// patience bounds the end of a broker, and startPatience its start: a RabbitMQ that must read 100,000
// messages takes more than a minute if other programs use the processors.
const (
	patience      = time.Minute
	startPatience = 4 * time.Minute
)

// process is a running program.
type process struct{ *child.Process }

// startProcess starts a program with its output appended to the log file.
func startProcess(binary string, args, environ []string, folder, log string) (*process, error) {
	command := exec.Command(binary, args...) //nolint:noctx // it outlives the call; end ends it
	command.Dir, command.Env = folder, append(os.Environ(), environ...)
	command.SysProcAttr = attributes()
	started, err := child.Start(command, log)
	if err != nil {
		return nil, err
	}
	return &process{started}, nil
}

// end sends the signal to the program and to all processes that it has started, and waits until
// the program is gone.
func (p *process) end(signal syscall.Signal) error {
	if err := syscall.Kill(-p.Pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("brokertest: send %v: %w", signal, err)
	}
	// mosquitto loses a signal between the setting of its handler and its loop, when it already answers.
	again := time.AfterFunc(patience/6, func() { _ = syscall.Kill(-p.Pid, signal) })
	defer again.Stop()
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case <-p.Done:
		return nil
	case <-late.C:
		_ = syscall.Kill(-p.Pid, syscall.SIGKILL) // the error below reports it
		<-p.Done
		return fmt.Errorf("brokertest: the broker ignored %v for %v", signal, patience)
	}
}
