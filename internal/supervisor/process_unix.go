//go:build unix

package supervisor

import (
	"errors"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

// name is the first of the supervisor's arguments, which makes the program a supervisor. The others are the patience, the first of
// the supervisor's own descriptors and their number, the command's path, and the command's arguments.
const name = "mqnotify-supervisor"

// lookAgain is how often the supervisor checks whether a group that the command left behind has ended, and looks for new processes of
// a tree that it kills.
const lookAgain = 20 * time.Millisecond

// init makes this process a supervisor. The package has few imports, so that init runs before most of the program is initialized.
func init() {
	if os.Args[0] != name {
		return
	}
	patience, err := time.ParseDuration(os.Args[1])
	first, err2 := strconv.Atoi(os.Args[2])
	count, err3 := strconv.Atoi(os.Args[3])
	if err := errors.Join(err, err2, err3); err != nil {
		panic(err)
	}
	for fd := first; fd < first+count; fd++ {
		syscall.CloseOnExec(fd)
	}
	os.Exit(run(patience, first, first+1, os.Args[4], os.Args[5:]))
}

// tree is the processes of a command, as the supervisor sees them.
type tree struct {
	command  int // its process id and that of its group
	exited   bool
	code     int
	childs   bool // the supervisor has children
	patience time.Duration
	kills    <-chan time.Time
	ending   bool         // all processes must end
	asked    map[int]bool // processes that got SIGTERM
	killing  bool
}

// run runs a supervisor. It returns the exit code of the command.
func run(patience time.Duration, controlFile, failureFile int, path string, args []string) int {
	// The command gets SIGTERM when the thread that started it ends, so that it also ends if the supervisor is killed.
	runtime.LockOSThread()
	become()
	// Signals for the supervisor alone have no effect. They are caught rather than ignored, because the command would inherit
	// ignored signals.
	caught := make(chan os.Signal, 1)
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGPIPE} {
		if !signal.Ignored(s) {
			signal.Notify(caught, s)
		}
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	command, err := syscall.ForkExec(path, args, &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}, Sys: attributes()})
	if err != nil {
		if number, ok := err.(syscall.Errno); ok { //nolint:errorlint // ForkExec returns it as it is
			_, _ = os.NewFile(uintptr(failureFile), "").WriteString(strconv.Itoa(int(number))) // the caller may be gone
		}
		return 1
	}
	_ = syscall.Close(failureFile)
	closeStreams()
	t := &tree{command: command, childs: true, patience: patience}
	control := make(chan byte)
	go readControl(controlFile, control) // ends with the process
	again := time.NewTicker(lookAgain)
	defer again.Stop()
	for {
		var tick <-chan time.Time
		if t.exited || t.ending {
			tick = again.C
		}
		select {
		case <-ended:
		case <-tick:
		case <-t.kills:
			t.killing = true
		case s, open := <-control:
			if !open {
				control = nil
				t.end()
			} else {
				t.signal(syscall.Signal(s))
			}
		}
		t.reap()
		if t.over() {
			return t.code
		}
		switch {
		case t.killing:
			for _, p := range t.processes() {
				_ = syscall.Kill(p, syscall.SIGKILL) // it may have ended
			}
		case t.ending:
			// Ask processes that were started by one that then ended. A running parent ends its own children.
			t.ask(children())
		}
	}
}

// closeStreams closes the supervisor's copies of the command's streams, so that their other ends notice when the command closes them.
func closeStreams() {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return // they are closed later, with the process
	}
	for stream := range 3 {
		_ = replace(int(null.Fd()), stream)
	}
}

// readControl sends the bytes that the caller writes, and closes the channel when the caller has closed its end, or is dead.
func readControl(fd int, control chan<- byte) {
	defer close(control)
	file := os.NewFile(uintptr(fd), "control")
	for b := make([]byte, 1); ; {
		if _, err := io.ReadFull(file, b); err != nil {
			return
		}
		control <- b[0]
	}
}

// end asks all processes to end.
func (t *tree) end() {
	if t.ending {
		return
	}
	t.ending, t.asked = true, make(map[int]bool)
	t.kills = time.After(t.patience)
	t.ask(t.processes())
}

// processes returns the processes of the tree; if they are not known, the command's group.
func (t *tree) processes() []int {
	processes, err := descendants()
	if err != nil {
		return []int{-t.command}
	}
	return processes
}

func (t *tree) ask(processes []int) {
	for _, p := range processes {
		if !t.asked[p] {
			t.asked[p] = true
			_ = syscall.Kill(p, syscall.SIGTERM) // it may have ended
			_ = syscall.Kill(p, syscall.SIGCONT) // a stopped process gets SIGTERM when it is continued
		}
	}
}

// signal processes a signal number from the caller.
func (t *tree) signal(s syscall.Signal) {
	switch {
	case s == syscall.SIGKILL:
		t.ending, t.killing = true, true
	case !t.ending:
		_ = syscall.Kill(-t.command, s) // the group may have ended
	}
}

// reap collects the children that have ended.
func (t *tree) reap() {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		switch {
		case err == syscall.EINTR:
			continue
		case err != nil: // ECHILD
			t.childs = false
			return
		case pid == 0: // none has ended
			t.childs = true
			return
		case pid == t.command:
			t.exited, t.code = true, exitCode(status)
		}
	}
}

// over reports whether the command has ended: its group, or the whole tree if that was asked to end.
func (t *tree) over() bool {
	if !t.exited || (t.ending && t.childs) {
		return false
	}
	return syscall.Kill(-t.command, 0) == syscall.ESRCH
}
