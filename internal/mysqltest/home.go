package mysqltest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// folderPattern names the folders that hold the data of a test process's instances.
const folderPattern = "mqnotify-test-*"

// home owns the instances of this test process.
var home homeFolder

// homeFolder owns the instances of one test process and the temporary folder of their data.
type homeFolder struct {
	mu        sync.Mutex
	path      string
	unlock    func()
	instances map[*Server]struct{}
}

// add registers an instance and makes a folder for it.
func (h *homeFolder) add(s *Server) (string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.path == "" {
		if err := h.open(); err != nil {
			return "", err
		}
	}
	h.instances[s] = struct{}{}
	return os.MkdirTemp(h.path, s.name+"-")
}

func (h *homeFolder) remove(s *Server) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.instances, s)
}

func (h *homeFolder) open() error {
	dir := dataFolder()
	sweep(dir)
	path, err := os.MkdirTemp(dir, folderPattern)
	if err != nil {
		return fmt.Errorf("mysqltest: make a folder for the servers: %w", err)
	}
	unlock, err := lockFile(filepath.Join(path, "lock"), true)
	if err != nil {
		return errors.Join(err, os.RemoveAll(path))
	}
	h.path, h.unlock, h.instances = path, unlock, map[*Server]struct{}{}
	return nil
}

// envData names the folder for the servers' data.
const envData = "MQNOTIFY_TEST_DATA"

// dataFolder returns the folder for the servers' data: the one that MQNOTIFY_TEST_DATA names, or a folder in memory, where
// creating a table takes a third of the time. If little memory is free, it returns the temporary folder.
func dataFolder() string {
	if dir := os.Getenv(envData); dir != "" {
		return dir
	}
	const memory, plenty = "/dev/shm", 4 << 30
	if free, err := freeSpace(memory); err != nil || free < plenty {
		return os.TempDir()
	}
	return memory
}

// close stops all instances and removes their data.
func (h *homeFolder) close() error {
	h.mu.Lock()
	instances := make([]*Server, 0, len(h.instances))
	for s := range h.instances {
		instances = append(instances, s)
	}
	h.mu.Unlock()

	var errs []error
	for _, s := range instances {
		errs = append(errs, s.close())
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.path != "" {
		errs = append(errs, os.RemoveAll(h.path))
		h.unlock()
		h.path = ""
	}
	return errors.Join(errs...)
}

// sweep removes the folders of test processes that were killed, which are those whose lock no process holds. It keeps a folder
// younger than a minute, because a process may be about to lock it.
func sweep(dir string) {
	paths, _ := filepath.Glob(filepath.Join(dir, folderPattern)) // fails for a bad pattern only
	for _, path := range paths {
		info, err := os.Stat(filepath.Join(path, "lock"))
		if err != nil || time.Since(info.ModTime()) < time.Minute {
			continue
		}
		unlock, err := lockFile(filepath.Join(path, "lock"), false)
		if err != nil {
			continue
		}
		_ = os.RemoveAll(path) // fails for another user's folder, which that user's tests will sweep
		unlock()
	}
}
