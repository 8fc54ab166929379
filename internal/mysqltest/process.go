package mysqltest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/mqnotify/mqnotify/internal/child"
)

// process is a running server.
type process struct{ *child.Process }

// startProcess starts a server whose output is appended to the log file. If folder is not empty, it comes first in the server's
// PATH, so that the server finds its scripts there.
func startProcess(binary string, args []string, folder, log string) (*process, error) {
	command := exec.Command(binary, args...) //nolint:noctx // it outlives the call; end ends it
	if folder != "" {
		command.Env = append(os.Environ(), "PATH="+folder+string(os.PathListSeparator)+os.Getenv("PATH"))
	}
	command.SysProcAttr = processAttributes()
	started, err := child.Start(command, log)
	if err != nil {
		return nil, err
	}
	return &process{started}, nil
}

// end sends the signal and waits until the process has ended. It kills a process that ignores the signal, and then returns an
// error.
func (p *process) end(signal os.Signal) error {
	if err := p.signal(signal); err != nil {
		return err
	}
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case <-p.Done:
		return nil
	case <-late.C:
		_ = p.Kill()
		<-p.Done
		return fmt.Errorf("mysqltest: the server ignored %v for %v", signal, patience)
	}
}

// signal sends the signal, unless the process has ended by itself.
func (p *process) signal(signal os.Signal) error {
	select {
	case <-p.Done:
		return nil
	default:
	}
	if err := p.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("mysqltest: send %v to the server: %w", signal, err)
	}
	return nil
}
