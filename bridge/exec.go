package bridge

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/notify"
)

// execSink runs a program as long as the sink is open. The program reads a line of JSON for each message from its stdin. For each, in
// the same order, it writes a line to its stdout: the id when it has stored the message, or "refuse ID reason" if it never will. Its
// stderr is that of this process.
type execSink struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *os.File // the end of the program's stdout that this process reads
	answers chan string
	ended   chan struct{} // closed when the program has ended and all its answers were read
	once    sync.Once
	closed  chan struct{}
}

// execPatience is how long the program may run after its stdin was closed, and the programs that it has started after its own end.
const execPatience = 5 * time.Second

// answerLine limits the length of an answer, in bytes.
const answerLine = 4096

func parseExec(p *params) *Destination {
	args := strings.Fields(p.path())
	if len(args) == 0 {
		p.note("write exec:PROGRAM, with %%20 for a space between arguments")
	}
	// A question mark in the command line must be escaped: the URL has no parameters.
	if p.url.RawQuery != "" {
		p.note("write %%3F for a question mark")
	}
	return &Destination{InFlight: 100, Open: func(context.Context) (Sink, error) { return startExec(args) }}
}

func startExec(args []string) (Sink, error) {
	s := &execSink{
		cmd:     exec.Command(args[0], args[1:]...), //nolint:noctx // it runs until Close
		answers: make(chan string), ended: make(chan struct{}), closed: make(chan struct{}),
	}
	s.cmd.Stderr = os.Stderr
	ownGroup(s.cmd)
	in, err := s.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	// Not StdoutPipe, because programs that this program has started may keep the other end open after its end.
	out, theirs, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, in.Close())
	}
	s.in, s.out, s.cmd.Stdout = in, out, theirs
	err = s.cmd.Start()
	_ = theirs.Close()
	if err != nil {
		return nil, errors.Join(startError(err), in.Close(), out.Close())
	}
	read := make(chan struct{})
	go s.read(read)
	go s.wait(read)
	return s, nil
}

// startError makes a PermanentError of a program that is missing or can't be run. Other errors may pass: the system has too many
// processes or open files or too little memory, or the program's file is being replaced.
func startError(err error) error {
	for _, stays := range []error{exec.ErrNotFound, fs.ErrNotExist, fs.ErrPermission, exec.ErrDot, syscall.ENOEXEC, syscall.ENOTDIR, syscall.EISDIR} {
		if errors.Is(err, stays) {
			return permanent(err)
		}
	}
	return err
}

// read passes the program's answers on until its stdout is closed. It cuts an answer that is too long.
func (s *execSink) read(done chan<- struct{}) {
	defer close(done)
	for lines := bufio.NewReaderSize(s.out, answerLine); ; {
		answer, more, err := lines.ReadLine()
		if err != nil {
			return
		}
		select {
		case s.answers <- string(answer):
		case <-s.closed:
		}
		for more && err == nil {
			_, more, err = lines.ReadLine()
		}
	}
}

// wait waits for the end of the program and of its answers.
func (s *execSink) wait(read <-chan struct{}) {
	defer close(s.ended)
	_ = s.cmd.Wait() // the exit code is irrelevant
	late := time.NewTimer(execPatience)
	defer late.Stop()
	select {
	case <-read:
	case <-late.C:
	}
	_ = s.out.Close()
	<-read
}

func (s *execSink) Send(ctx context.Context, messages []consumer.Message) (confirmed int, err error) {
	select {
	case <-s.closed:
		return 0, notify.ErrClosed
	default:
	}
	// Write and read at the same time, so that a program that answers before it has read all messages does not block.
	written := make(chan error, 1)
	go func() { written <- s.write(messages) }()
	defer func() {
		if err != nil {
			_ = s.Close() // this ends a write that hangs
		}
		if failed := <-written; err == nil && failed != nil {
			err = failed
		}
	}()
	for confirmed < len(messages) {
		m := messages[confirmed]
		select {
		case answer := <-s.answers:
			rest, refused := strings.CutPrefix(answer, "refuse ")
			id, reason, _ := strings.Cut(rest, " ")
			if id != strconv.FormatUint(m.ID, 10) {
				return confirmed, permanent(fmt.Errorf("the program answered %q to message %d: it must write the id, or \"refuse\", the id and a reason", answer, m.ID))
			}
			if refused {
				return confirmed, poison(m, "%s", reason)
			}
			confirmed++
		case <-s.ended:
			return confirmed, fmt.Errorf("the program ended: %v", s.cmd.ProcessState)
		case <-s.closed:
			return confirmed, notify.ErrClosed
		case <-ctx.Done():
			return confirmed, context.Cause(ctx)
		}
	}
	return confirmed, nil
}

func (s *execSink) write(messages []consumer.Message) error {
	out := bufio.NewWriter(s.in)
	for _, m := range messages {
		l, err := line(m)
		if err != nil {
			return err
		}
		if _, err := out.Write(l); err != nil {
			return err
		}
	}
	return out.Flush()
}

// Close closes the program's stdin. If the program does not end within execPatience, Close kills its process group.
func (s *execSink) Close() error {
	s.once.Do(func() {
		close(s.closed)
		_ = s.in.Close()
	})
	late := time.NewTimer(execPatience)
	defer late.Stop()
	select {
	case <-s.ended:
	case <-late.C:
		killGroup(s.cmd.Process)
		_ = s.out.Close() // a process that has left the group may keep it open
		<-s.ended
	}
	return nil
}
