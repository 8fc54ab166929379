package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sync/semaphore"
)

const (
	// maxLine is the largest packet that any server accepts, in bytes.
	maxLine = 1 << 30
	// readAhead limits the bytes that are read and not yet published. A single line may be longer.
	readAhead = 16 << 20
)

// feedWords are the words of a command that stores payloads.
type feedWords struct {
	line   string // what a line of stdin is: "a message"
	stored string // the log's attribute for their number: "published"
	before string // in an error: "messages published"
}

// feed calls store with the payloads, or if there are none with lines of stdin, until all are stored or ctx ends. most limits the
// payloads of a call. store returns how many it has stored. An error of store is a failure also when ctx has ended, because the batch in
// hand may be lost.
func (a *app) feed(ctx context.Context, payloads []string, most int, words feedWords,
	store func(ctx context.Context, batch [][]byte) (stored int, err error),
) error {
	next := takeFrom(payloads)
	if len(payloads) == 0 {
		if isTerminal(a.in) {
			a.log.InfoContext(ctx, "each line is "+words.line+"; Ctrl-D ends")
		}
		reading, cancel := context.WithCancel(ctx)
		defer cancel()
		next = readLines(reading, a.in, most).next
	}
	stored := 0
	for {
		batch, err := next(ctx, most)
		switch {
		case err == nil && len(batch) == 0:
			return nil
		case err == nil:
			var n int
			n, err = store(ctx, batch)
			stored += n
		case ctx.Err() != nil && errors.Is(err, context.Cause(ctx)): // with no batch in hand
			a.log.InfoContext(ctx, "stopped", words.stored, stored)
			return nil
		}
		switch {
		case err == nil:
		case ignoreBrokenPipe(err) == nil: // nobody reads the ids, which is no failure if nothing is left to store
			if rest, failed := next(ctx, 1); failed == nil && len(rest) == 0 || ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("stopped before the end of the input, because the ids can't be printed: %w (%s: %d)", err, words.before, stored)
		case stored > 0:
			return fmt.Errorf("%w (%s before that: %d)", err, words.before, stored)
		default:
			return err
		}
	}
}

// takeFrom returns a function that returns the payloads, but no more than most at a time.
func takeFrom(payloads []string) func(ctx context.Context, most int) ([][]byte, error) {
	return func(ctx context.Context, most int) (batch [][]byte, err error) {
		if len(payloads) > 0 && ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		for ; len(payloads) > 0 && len(batch) < most; payloads = payloads[1:] {
			batch = append(batch, []byte(payloads[0]))
		}
		return batch, nil
	}
}

// lines reads lines ahead of the publisher. The publisher then commits all lines that arrived during its last commit
// together, and a line that arrives alone at once.
type lines struct {
	ready chan []byte // closed at the end
	room  *semaphore.Weighted
	err   error // set before ready is closed; nil at the end of the input
}

// readLines reads until the input or ctx ends. A read from a terminal can't be interrupted, so the goroutine may block in its
// last read until the input ends.
func readLines(ctx context.Context, in io.Reader, ahead int) *lines {
	l := &lines{ready: make(chan []byte, min(ahead, 1<<16)), room: semaphore.NewWeighted(readAhead)}
	go func() {
		defer close(l.ready)
		l.err = l.read(ctx, bufio.NewReaderSize(in, 64<<10))
	}()
	return l
}

func (l *lines) read(ctx context.Context, in *bufio.Reader) error {
	for n := 1; ; n++ {
		line, err := readLine(in)
		if err != nil && (!errors.Is(err, io.EOF) || len(line) == 0) {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return fmt.Errorf("read line %d: %w", n, err)
		}
		if l.room.Acquire(ctx, weight(line)) != nil {
			return context.Cause(ctx)
		}
		select {
		case l.ready <- line:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// readLine returns a line without its newline. With io.EOF it returns the last line, if the input does not end with a newline.
func readLine(in *bufio.Reader) (line []byte, err error) {
	for {
		part, err := in.ReadSlice('\n')
		if len(line)+len(part) > maxLine {
			return nil, fmt.Errorf("it is longer than %d bytes, the largest packet that any server accepts", maxLine)
		}
		line = append(line, part...)
		switch {
		case err == nil:
			return line[:len(line)-1], nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return line, err
		}
	}
}

func weight(line []byte) int64 { return int64(min(len(line)+1, readAhead)) }

// next waits for a line and returns it with the others that are ready, but no more than most. It returns no line at the end of
// the input, at the end of ctx, and with an error.
func (l *lines) next(ctx context.Context, most int) (batch [][]byte, err error) {
	select {
	case line, ok := <-l.ready:
		if !ok {
			return nil, l.err
		}
		batch = append(batch, line)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	for len(batch) < most {
		select {
		case line, ok := <-l.ready:
			if !ok {
				return l.took(batch), nil
			}
			batch = append(batch, line)
			continue
		default:
		}
		break
	}
	return l.took(batch), nil
}

// took releases the batch's share of readAhead, and returns the batch.
func (l *lines) took(batch [][]byte) [][]byte {
	for _, line := range batch {
		l.room.Release(weight(line))
	}
	return batch
}
