package bridge

import (
	"bytes"
	"cmp"
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

// fileSink appends lines of JSON to a file, and confirms them when they are on the disk (fsync). Before it writes, it reads the file's
// end: it removes an incomplete last line, and does not write rows again that the file has.
//
// A file that has reached its size is renamed to PATH.000001, PATH.000002 and so on.
type fileSink struct {
	path   string
	mode   fs.FileMode // of a new file; an existing file may have no further permissions
	rotate int64       // bytes; 0 is never
	keep   int         // how many rotated files to keep; 0 is all

	mu     sync.Mutex
	closed bool
	file   *os.File // nil until the first Send
	size   int64
	last   map[string]string // the creation times of the messages at the file's end, by MessageID
}

func parseFile(p *params) *Destination {
	path := p.path()
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
		// Open does not change the file, because the group's active member may be writing to it.
		info, err := os.Stat(filepath.Dir(path))
		if err == nil && !info.IsDir() {
			err = &fs.PathError{Op: "open", Path: filepath.Dir(path), Err: errors.New("not a folder")}
		}
		if err != nil {
			return nil, err
		}
		if info, err = os.Stat(path); err == nil {
			if err := private.Check(path, info, fs.FileMode(mode)); err != nil {
				return nil, fmt.Errorf("%w, or allow its permission, such as mode=640", err)
			}
		}
		if err = writable(path, err); err != nil {
			return nil, err
		}
		return &fileSink{path: path, mode: fs.FileMode(mode), rotate: rotate, keep: keep}, nil
	}}
}

// writable checks that a file can be written, or made if stat says that it is missing.
func writable(path string, stat error) error {
	var file *os.File
	var err error
	if errors.Is(stat, fs.ErrNotExist) {
		if file, err = os.CreateTemp(filepath.Dir(path), ".mqnotify-*"); err == nil {
			defer func() { _ = os.Remove(file.Name()) }()
		}
	} else {
		file, err = os.OpenFile(path, os.O_RDWR, 0)
	}
	if err != nil {
		return err
	}
	return file.Close()
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
		if err != nil { // a row is always JSON
			return 0, fmt.Errorf("message %d: %w", m.ID, err)
		}
		text = append(text, l...)
	}
	if len(text) > 0 {
		_, err := s.file.Write(text)
		if err == nil {
			err = fsync(s.file)
		}
		if err != nil { // the next sink must not count lines as stored that may never reach the disk
			return 0, errors.Join(err, s.file.Truncate(s.size))
		}
		s.size += int64(len(text))
	}
	for _, m := range messages {
		delete(s.last, MessageID(m))
	}
	return len(messages), nil
}

// fsync is a variable so that tests can make it fail.
var fsync = (*os.File).Sync

// begin opens the file for the first time, and reads which messages it and the rotated files have.
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
		err = fmt.Errorf("%s was replaced meanwhile", s.path) // by the sink that held the lock
	}
	if err == nil {
		err = file.Truncate(end)
	}
	if err == nil { // lines of a killed sink may not be on the disk yet
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

// isAt reports whether the file is still at the path.
func isAt(file *os.File, path string) bool {
	one, err := file.Stat()
	if err != nil {
		return false
	}
	other, err := os.Stat(path)
	return err == nil && os.SameFile(one, other)
}

// addRotated adds the messages at the end of the rotated files, the newest first, until endBytes were read, because the file may have
// been rotated in the middle of a page that is sent again.
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

// endBytes is how much of a file's end is read. It is more than a page of messages and those in flight, unless rows are very large.
const endBytes = 32 << 20

// readEnd returns the end of the last complete line, and the ids and creation times of the last lines.
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
		if from > 0 { // text begins within a line
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
			if err := json.Unmarshal(l, &m); err == nil && m.ID > 0 { // ignore lines of other programs
				ids[MessageID(consumer.Message{ID: m.ID, Topic: m.Topic})] = m.CreatedAt
			}
		}
		return from + int64(whole), ids, nil
	}
}

// beginNext renames the file and opens a new one.
func (s *fileSink) beginNext() error {
	rotated, err := s.rotated()
	if err != nil {
		return err
	}
	last := uint64(0)
	if len(rotated) > 0 {
		last, _ = strconv.ParseUint(rotated[len(rotated)-1], 10, 64) // rotated returns only numbers
	}
	name := fmt.Sprintf("%06d", last+1)
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
	_, err = s.open() // the new file is empty, and s.last stays valid
	return err
}

// rotated returns the endings of the rotated files' names, in order.
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
	slices.SortFunc(all, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b)) })
	return all, nil
}

// syncFolder makes a file's name durable.
func syncFolder(path string) error {
	folder, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	_ = folder.Sync() // some systems can't
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
