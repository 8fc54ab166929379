// Package postgrestest starts a private PostgreSQL, from Debian's package, for comparative measurements.
package postgrestest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/mqnotify/mqnotify/internal/child"
)

// ErrNone means that no PostgreSQL is installed.
var ErrNone = errors.New("postgrestest: no initdb found: apt-get install postgresql")

// Start starts a server on a free loopback port, with a data folder of its own, and returns when it
// answers. The server and its data are gone after stop, which may be called twice, or when the process
// dies. The server writes at every commit but never syncs to the disk (fsync=off). The flags are passed to the server.
func Start(ctx context.Context, flags ...string) (url string, stop func() error, err error) {
	bin, err := folder()
	if err != nil {
		return "", nil, err
	}
	dir, err := os.MkdirTemp("", "mqnotify-postgres")
	if err != nil {
		return "", nil, err
	}
	s := &server{bin: bin, dir: dir, ended: make(chan struct{})}
	stop = sync.OnceValue(s.stop)
	if err := s.start(ctx, flags); err != nil {
		return "", nil, errors.Join(fmt.Errorf("postgrestest: %w", err), stop())
	}
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%s/postgres", s.port), stop, nil
}

// folder returns the folder of the server's programs.
func folder() (string, error) {
	if initdb, err := exec.LookPath("initdb"); err == nil {
		initdb, err = filepath.EvalSymlinks(initdb)
		return filepath.Dir(initdb), err
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb") // fails only for a bad pattern
	if len(found) == 0 {
		return "", ErrNone
	}
	return filepath.Dir(slices.Max(found)), nil
}

type server struct {
	bin, dir, port string
	account        *syscall.Credential // nil: this process's account
	process        *os.Process
	ended          chan struct{}
}

func (s *server) start(ctx context.Context, flags []string) error {
	if os.Getuid() == 0 { // PostgreSQL refuses to run as root
		account, err := user.Lookup("postgres")
		if err != nil {
			return err
		}
		uid, _ := strconv.ParseUint(account.Uid, 10, 32) // numbers on Linux
		gid, _ := strconv.ParseUint(account.Gid, 10, 32)
		s.account = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		if err := os.Chown(s.dir, int(uid), int(gid)); err != nil {
			return err
		}
	}
	if out, err := s.command(ctx, "initdb", "-D", "data", "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C").CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, out)
	}
	port, err := child.FreePort()
	if err != nil {
		return err
	}
	s.port = strconv.Itoa(port)
	if err := s.run(flags); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := s.command(ctx, "pg_isready", "-q", "-h", "127.0.0.1", "-p", s.port).Run()
		if err == nil {
			return nil
		}
		select {
		case <-s.ended:
			log, _ := os.ReadFile(filepath.Join(s.dir, "log"))
			return fmt.Errorf("the server ended while it started:\n%s", log)
		case <-ctx.Done():
			return fmt.Errorf("the server does not answer: %w", err)
		case <-tick.C:
		}
	}
}

// run starts the server from a thread that lives as long as the server, because the parent-death signal comes when the thread that
// started the child ends.
func (s *server) run(flags []string) error {
	log, err := os.Create(filepath.Join(s.dir, "log"))
	if err != nil {
		return err
	}
	args := append([]string{"-D", "data", "-p", s.port, "-k", s.dir, "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"}, flags...)
	command := s.command(context.Background(), "postgres", args...)
	command.Stdout, command.Stderr = log, log
	started := make(chan error, 1)
	go func() {
		defer close(s.ended)
		runtime.LockOSThread()
		err := command.Start()
		s.process = command.Process
		_ = log.Close() // the child has its own
		started <- err
		if err == nil {
			_ = command.Wait() // however it ends
		}
	}()
	return <-started
}

func (s *server) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, filepath.Join(s.bin, name), args...)
	c.Dir = s.dir
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGINT, Credential: s.account}
	return c
}

func (s *server) stop() error {
	if s.process != nil {
		_ = s.process.Signal(syscall.SIGINT) // a fast shutdown, unless it has ended
		<-s.ended
	}
	return os.RemoveAll(s.dir)
}
