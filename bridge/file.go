package bridge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/private"
	"github.com/mqnotify/mqnotify/notify"
)

// fileSink appends lines of JSON to a file, and confirms when they are on the disk
// (fsync). It reads the file's end before it writes: a line that a crash has cut is
// cut off, and a row that is there already is not written again.
//
// A file past its size becomes PATH.000001, PATH.000002 and so on, between two lines.
type fileSink struct {
	path   string
	mode   fs.FileMode // of a file that is made, and the most that one that is there may have
	rotate int64       // 0 is never
	keep   int         // of the rotated files; 0 is all

	mu     sync.Mutex
	closed bool
	file   *os.File // nil until the first Send
	size   int64
	last   map[string]string // when those at the file's end were inserted, by MessageID
}

func parseFile(p *params) (*Destination, error) {
	path := p.url.Path
	if p.url.Opaque != "" { // file:orders.jsonl
		path = p.url.Opaque
	}
	if p.url.Host != "" && p.url.Host != "localhost" {
		p.note("write file:///path/to/file, or file:name")
	}
	if path == "" || strings.HasSuffix(path, "/") {
		p.note("it names no file")
	}
	mode, err := strconv.ParseUint(p.text("mode", "600"), 8, 9)
	if err != nil || mode&0o600 != 0o600 {
		p.note("mode=: the file's permission, such as 600 or 640")
	}
	rotate, keep := p.size("rotate", 0), int(p.number("keep", 0, 0))
	return &Destination{InFlight: 500, Open: func(context.Context) (Sink, error) {
		// The file is not touched: the group's active member may be writing to it.
		info, err := os.Stat(filepath.Dir(path))
		if err == nil && !info.IsDir() {
			err = &fs.PathError{Op: "open", Path: filepath.Dir(path), Err: errors.New("not a folder")}
		}
		if err != nil {
			return nil, err
		}
		if info, err = os.Stat(path); err == nil {
			err = private.Check(path, info, fs.FileMode(mode))
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%w, or name the permission that it has: mode=640", err)
		}
		return &fileSink{path: path, mode: fs.FileMode(mode), rotate: rotate, keep: keep}, nil
	}}, nil
}

func (s *fileSink) Send(ctx context.Context, messages []consumer.Message) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, notify.ErrClosed
	}
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	if s.file == nil {
		if err := s.begin(); err != nil {
			return 0, err
		}
	}
	if s.rotate > 0 && s.size >= s.rotate {
		if err := s.beginNext(); err != nil {
			return 0, err
		}
	}
	var text []byte
	for _, m := range messages {
		if createdAt, there := s.last[MessageID(m)]; there {
			if err := checkSame(m, createdAt); err != nil {
				return 0, err
			}
			continue
		}
		l, err := line(m)
		if err != nil { // a row is JSON always
			return 0, fmt.Errorf("message %d: %w", m.ID, err)
		}
		text = append(text, l...)
	}
	if len(text) > 0 {
		_, err := s.file.Write(text)
		if err == nil {
			err = fsync(s.file)
		}
		if err != nil { // the next sink must not take for stored what may never reach the disk
			return 0, errors.Join(err, s.file.Truncate(s.size))
		}
		s.size += int64(len(text))
	}
	for _, m := range messages {
		delete(s.last, MessageID(m))
	}
	return len(messages), nil
}

// fsync is a variable for the tests, which fail it.
var fsync = (*os.File).Sync

// begin opens the file for the first time: what was stored before must be known.
func (s *fileSink) begin() error {
	ids, err := s.open()
	if err == nil {
		err = s.addRotated(ids)
	}
	if err != nil {
		if s.file != nil {
			err = errors.Join(err, closeFile(s.file))
		}
		s.file = nil
		return err
	}
	s.last = ids
	return nil
}

// open opens the file for writing and reads its end.
func (s *fileSink) open() (ids map[string]string, err error) {
	file, err := os.OpenFile(s.path, os.O_RDWR|os.O_CREATE, s.mode)
	if err != nil {
		return nil, err
	}
	if err := lockFile(file); err != nil {
		return nil, errors.Join(err, closeFile(file))
	}
	end, ids, err := readEnd(file)
	if err == nil && !isAt(file, s.path) {
		err = fmt.Errorf("%s was replaced meanwhile", s.path) // who had the lock has rotated it
	}
	if err == nil {
		err = file.Truncate(end)
	}
	if err == nil { // one that was killed may have written what is not on the disk yet
		err = fsync(file)
	}
	if err == nil {
		_, err = file.Seek(end, io.SeekStart)
	}
	if err == nil {
		err = syncFolder(s.path)
	}
	if err != nil {
		return nil, errors.Join(err, closeFile(file))
	}
	s.file, s.size = file, end
	return ids, nil
}

// isAt reports whether a path is that of the file.
func isAt(file *os.File, path string) bool {
	one, err := file.Stat()
	if err != nil {
		return false
	}
	other, err := os.Stat(path)
	return err == nil && os.SameFile(one, other)
}

// addRotated adds what is at the end of the rotated files, the newest first, as far as the current
// one is too short: it may have turned in the middle of a page that comes again.
func (s *fileSink) addRotated(ids map[string]string) error {
	rotated, err := s.rotated()
	if err != nil {
		return err
	}
	for size := s.size; size < endBytes && len(rotated) > 0; rotated = rotated[:len(rotated)-1] {
		file, err := os.Open(s.path + "." + rotated[len(rotated)-1])
		if err != nil {
			return err
		}
		end, older, err := readEnd(file)
		if err = errors.Join(err, file.Close()); err != nil {
			return err
		}
		for id, createdAt := range older {
			if _, newer := ids[id]; !newer {
				ids[id] = createdAt
			}
		}
		size += end
	}
	return nil
}

// endBytes is how much of a file's end is read: more than a page of messages and
// what is under way can be, unless a row is larger than that.
const endBytes = 32 << 20

// readEnd finds where the last whole line ends, and the ids of the last lines.
func readEnd(file *os.File) (end int64, ids map[string]string, err error) {
	info, err := file.Stat()
	if err != nil {
		return 0, nil, err
	}
	for window := int64(endBytes); ; window *= 2 {
		from := max(0, info.Size()-window)
		text, err := io.ReadAll(io.NewSectionReader(file, from, info.Size()-from))
		if err != nil {
			return 0, nil, err
		}
		if from > 0 { // it begins within a line
			newline := bytes.IndexByte(text, '\n')
			if newline < 0 || newline == len(text)-1 {
				continue
			}
			text = text[newline+1:]
			from += int64(newline + 1)
		}
		whole := bytes.LastIndexByte(text, '\n') + 1
		ids = map[string]string{}
		for l := range bytes.Lines(text[:whole]) {
			var m struct {
				ID        uint64 `json:"id"`
				Topic     string `json:"topic"`
				CreatedAt string `json:"created_at"`
			}
			if err := json.Unmarshal(l, &m); err == nil && m.ID > 0 { // another program's lines stay
				ids[MessageID(consumer.Message{ID: m.ID, Topic: m.Topic})] = m.CreatedAt
			}
		}
		return from + int64(whole), ids, nil
	}
}

// beginNext renames the file and begins another.
func (s *fileSink) beginNext() error {
	rotated, err := s.rotated()
	if err != nil {
		return err
	}
	next := uint64(1)
	if len(rotated) > 0 {
		last, err := strconv.ParseUint(rotated[len(rotated)-1], 10, 64)
		if err != nil {
			return err
		}
		next = last + 1
	}
	name := fmt.Sprintf("%06d", next)
	err = moveFile(s.file, s.path+"."+name)
	s.file = nil
	if err != nil {
		return err
	}
	if rotated = append(rotated, name); s.keep > 0 && len(rotated) > s.keep {
		for _, old := range rotated[:len(rotated)-s.keep] {
			if err := os.Remove(s.path + "." + old); err != nil {
				return err
			}
		}
	}
	_, err = s.open() // it is new; what is known stays so
	return err
}

// rotated are the endings of the rotated files' names, in their order.
func (s *fileSink) rotated() ([]string, error) {
	entries, err := os.ReadDir(filepath.Dir(s.path))
	if err != nil {
		return nil, err
	}
	var all []string
	for _, entry := range entries {
		ending, found := strings.CutPrefix(entry.Name(), filepath.Base(s.path)+".")
		if _, err := strconv.ParseUint(ending, 10, 64); found && err == nil && len(ending) >= 6 {
			all = append(all, ending)
		}
	}
	slices.SortFunc(all, func(a, b string) int {
		if len(a) != len(b) {
			return len(a) - len(b)
		}
		return strings.Compare(a, b)
	})
	return all, nil
}

// syncFolder makes a file's name durable.
func syncFolder(path string) error {
	folder, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	_ = folder.Sync() // not all systems can
	return folder.Close()
}

func (s *fileSink) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.file == nil {
		return nil
	}
	err := closeFile(s.file)
	s.file = nil
	return err
}
