package bridge

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/mqnotify/mqnotify/consumer"
)

// execSink runs a program that lives as long as the sink: a line of JSON a message
// on its stdin, and for each, in the same order, a line on its stdout: the id when
// the message is stored, or "refuse ID reason" when it will never be. Its stderr is
// ours.
type execSink struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers chan string
	ended   chan struct{} // closed when the program is gone
	once    sync.Once
	closed  chan struct{}
}

// execPatience is how long the program may go on after its stdin was closed.
const execPatience = 5 * time.Second

func parseExec(p *params) (*Destination, error) {
	text := p.url.Opaque // exec:./load --table x
	if text == "" {
		text = p.url.Path
	}
	text, err := url.PathUnescape(text)
	args := strings.Fields(text)
	if err != nil || len(args) == 0 {
		return nil, p.wrongf("write exec:PROGRAM, with %%20 for a space between arguments")
	}
	// The whole command line is the URL's: a ? is no parameter.
	if p.url.RawQuery != "" {
		return nil, p.wrongf("write %%3F for a question mark")
	}
	return &Destination{InFlight: 100, Open: func(context.Context) (Sink, error) { return startExec(args) }}, nil
}

func startExec(args []string) (Sink, error) {
	s := &execSink{
		cmd:     exec.Command(args[0], args[1:]...), //nolint:noctx // it lives until Close
		answers: make(chan string), ended: make(chan struct{}), closed: make(chan struct{}),
	}
	s.cmd.Stderr = os.Stderr
	in, err := s.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, permanent(err)
	}
	s.in = in
	go s.read(out)
	return s, nil
}

// read passes the program's answers on until it ends.
func (s *execSink) read(out io.Reader) {
	defer close(s.ended)
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		select {
		case s.answers <- lines.Text():
		case <-s.closed:
		}
	}
	_ = s.cmd.Wait() // that it ended is what matters
}

func (s *execSink) Send(ctx context.Context, messages []consumer.Message) (confirmed int, err error) {
	select {
	case <-s.closed:
		return 0, ErrClosed
	default:
	}
	// Beside the reading: a program that answers while it is written to must not block.
	written := make(chan error, 1)
	go func() { written <- s.write(messages) }()
	defer func() {
		if err != nil {
			_ = s.Close() // which ends a write that hangs
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
				return confirmed, permanent(fmt.Errorf("the program answered %q to message %d: it has to write the id, or refuse, the id and a reason", answer, m.ID))
			}
			if refused {
				return confirmed, poison(m, "%s", reason)
			}
			confirmed++
		case <-s.ended:
			return confirmed, fmt.Errorf("the program ended: %v", s.cmd.ProcessState)
		case <-s.closed:
			return confirmed, ErrClosed
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

// Close closes the program's stdin, and kills it if that does not end it.
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
		_ = s.cmd.Process.Kill()
		<-s.ended
	}
	return nil
}
