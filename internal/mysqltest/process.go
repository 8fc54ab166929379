package mysqltest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"time"
)

// process is a running server.
type process struct {
	os   *os.Process
	done chan struct{} // closed when it has ended
	err  error         // why, once done is closed
}

// startProcess starts a server with its output appended to the log file.
func startProcess(binary string, args []string, log string) (*process, error) {
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	command := exec.Command(binary, args...) //nolint:noctx // it outlives the call; end ends it
	command.Stdout, command.Stderr = file, file
	command.SysProcAttr = processAttributes()

	p := &process{done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		defer close(p.done)
		// Linux sends the parent-death signal when the thread that started the child ends: it has to be
		// one that lives as long as the server, and it ends with this goroutine.
		runtime.LockOSThread()
		err := command.Start()
		_ = file.Close() // the child has its own
		p.os = command.Process
		started <- err
		if err == nil {
			p.err = command.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// end sends the signal and waits for the process's end. One that ignores it is killed, which is an error.
func (p *process) end(signal os.Signal) error {
	if err := p.signal(signal); err != nil {
		return err
	}
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case <-p.done:
		return nil
	case <-late.C:
		_ = p.os.Kill()
		<-p.done
		return fmt.Errorf("mysqltest: the server ignored %v for %v", signal, patience)
	}
}

// signal sends the signal, unless the process has ended by itself.
func (p *process) signal(signal os.Signal) error {
	select {
	case <-p.done:
		return nil
	default:
	}
	if err := p.os.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("mysqltest: send %v to the server: %w", signal, err)
	}
	return nil
}
