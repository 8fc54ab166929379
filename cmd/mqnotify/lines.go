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
	// maxLine is the largest packet that any server takes.
	maxLine = 1 << 30
	// readAhead bounds what is read and not published yet, in bytes, one line apart.
	readAhead = 16 << 20
)

// lines reads lines ahead of their publisher, so that it can publish what has come
// while it published, together: a line a time when they come slowly.
type lines struct {
	ready chan []byte // closed at the end
	room  *semaphore.Weighted
	err   error // why it ended, once ready is closed; nil at the input's end
}

// readLines reads until the input or ctx ends. Nothing can interrupt a read of a
// terminal: the goroutine may stay in its last one until the input ends.
func readLines(ctx context.Context, in io.Reader, ahead int) *lines {
	l := &lines{ready: make(chan []byte, ahead), room: semaphore.NewWeighted(readAhead)}
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

// readLine reads a line, its newline taken off. With io.EOF comes the last line,
// if the input does not end with a newline.
func readLine(in *bufio.Reader) (line []byte, err error) {
	for {
		part, err := in.ReadSlice('\n')
		if len(line)+len(part) > maxLine {
			return nil, fmt.Errorf("it has more than %d bytes, and no server takes that", maxLine)
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

// next waits for a line and takes what else is there, most lines at most. No lines
// mean the end: of the input, of the context, or by an error.
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

// took makes room for the next lines.
func (l *lines) took(batch [][]byte) [][]byte {
	for _, line := range batch {
		l.room.Release(weight(line))
	}
	return batch
}
