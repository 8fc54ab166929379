package mysqltest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mqnotify/mqnotify/internal/child"
)

// launch makes the instance's data folder and starts the instance. After an error it leaves nothing.
func (s *Server) launch(flags ...string) error {
	template, err := s.from, error(nil)
	if template == "" {
		template, err = s.template(flags)
	}
	if err != nil {
		return err
	}
	if s.dir, err = home.add(s); err != nil {
		return err
	}
	s.flags = flags
	s.mu.Lock()
	err = s.firstRun(template)
	s.mu.Unlock()
	if err != nil {
		return errors.Join(err, s.close())
	}
	return nil
}

// portAttempts is how many free ports launch tries, because another process may take a port before the server does.
const portAttempts = 3

func (s *Server) firstRun(template string) error {
	if err := copyFolder(s.dataFolder(), template); err != nil {
		return err
	}
	for attempt := 1; ; attempt++ {
		var err error
		if s.port, err = child.FreePort(); err != nil {
			return fmt.Errorf("mysqltest: %w", err)
		}
		if s.admin, err = openPool(s.config()); err != nil {
			return fmt.Errorf("mysqltest: %w", err)
		}
		if err = s.run(); err == nil {
			return nil
		}
		if attempt == portAttempts || child.PortIsFree(s.port) {
			return err
		}
		closePool(s.admin)
	}
}

// copyFolder copies a server's data folder. More than half of it is zeros, for which cp (GNU's) takes no memory.
func copyFolder(to, from string) error {
	if exec.CommandContext(context.Background(), "cp", "-r", "--sparse=always", from, to).Run() == nil {
		return nil
	}
	if err := errors.Join(os.RemoveAll(to), os.CopyFS(to, os.DirFS(from))); err != nil {
		return fmt.Errorf("mysqltest: copy the data folder: %w", err)
	}
	return nil
}

// starting limits how many servers start at the same time, because each start takes a whole processor.
var starting = make(chan struct{}, runtime.NumCPU())

// redoSize is the size of the redo log of instances and templates. With another size in the template, an instance would make a
// new log.
const redoSize = "32M"

// run starts the server on its data folder and returns when it answers.
func (s *Server) run() error {
	args, err := s.arguments()
	if err != nil {
		return err
	}
	starting <- struct{}{}
	defer func() { <-starting }()
	process, err := startProcess(s.binary, args, s.path, s.logFile())
	if err != nil {
		return fmt.Errorf("mysqltest: start %s: %w", s.name, err)
	}
	if err := s.awaitAnswer(process); err != nil {
		return errors.Join(err, process.end(os.Kill))
	}
	s.process = process
	return nil
}

func (s *Server) arguments() ([]string, error) {
	account, err := user.Current()
	if err != nil {
		return nil, fmt.Errorf("mysqltest: find the user's name: %w", err)
	}
	var args []string
	if s.initScript() == "" {
		args = append(args, "--no-defaults") // must come first; a wrapper adds it itself
	}
	args = append(args,
		"--user="+account.Username,
		"--datadir="+s.dataFolder(),
		"--pid-file="+s.pidFile(),
		"--tmpdir="+s.dir, // MariaDB servers that share a folder delete each other's tables in it
		"--socket=socket", // relative to the data folder, because a full path could be too long for a socket
		"--bind-address=127.0.0.1",
		"--port="+strconv.Itoa(s.port),
		"--max-connections=2000",
		"--innodb-buffer-pool-size=64M",
		// The server writes its log at each commit, so that kill -9 loses no commit, and never flushes it to disk.
		"--innodb-flush-log-at-trx-commit=2",
		"--innodb-flush-method=nosync",
		"--sync-binlog=0",
		"--innodb-stats-persistent=OFF", // otherwise CREATE TABLE and DROP DATABASE take half as long again
	)
	if s.mariadb {
		args = append(args,
			"--innodb-log-file-size="+redoSize,
			"--plugin-load-add=metadata_lock_info", // shows advisory locks; a server without the plugin only logs that it is missing
			"--key-buffer-size=1M", "--aria-pagecache-buffer-size=1M",
			"--ssl=0", // otherwise it makes an RSA key at every start, which takes up to a second; a test of TLS gives it a key
		)
	} else {
		args = append(args,
			"--innodb-redo-log-capacity="+redoSize,
			"--mysqlx=OFF",
			"--secure-file-priv=NULL", // the packaged default is a folder that may not exist
			"--innodb-log-buffer-size=1M",
		)
		args = append(args, unusedStatistics...)
		if !slices.ContainsFunc(s.flags, func(flag string) bool { return strings.HasPrefix(flag, "--log-bin") }) {
			args = append(args, "--skip-log-bin")
		}
	}
	return append(args, s.flags...), nil
}

// unusedStatistics turns off the parts of MySQL's performance schema that no test reads. A server then starts in half the time,
// because it clears less memory.
var unusedStatistics = []string{
	"--performance-schema-digests-size=0",
	"--performance-schema-error-size=0",
	"--performance-schema-events-statements-history-long-size=0",
	"--performance-schema-events-stages-history-long-size=0",
	"--performance-schema-events-transactions-history-long-size=0",
	"--performance-schema-events-waits-history-long-size=0",
	"--performance-schema-max-cond-classes=0",
	"--performance-schema-max-file-classes=0",
	"--performance-schema-max-memory-classes=0",
	"--performance-schema-max-mutex-classes=0",
	"--performance-schema-max-rwlock-classes=0",
	"--performance-schema-max-socket-classes=0",
	"--performance-schema-max-statement-classes=0",
}

// awaitAnswer waits until the server answers. It returns an error if the server ends or takes too long.
func (s *Server) awaitAnswer(p *process) error {
	ctx, cancel := context.WithTimeout(context.Background(), startPatience)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		// The pid file's name distinguishes our server from one that took the port first.
		var pidFile string
		err := s.admin.QueryRowContext(ctx, "SELECT @@pid_file").Scan(&pidFile)
		if err == nil && pidFile == s.pidFile() {
			return nil
		}
		select {
		case <-p.Done:
			return fmt.Errorf("mysqltest: %s ended while it started: %w\n%s", s.name, p.Err, s.logTail())
		case <-ctx.Done():
			return fmt.Errorf("mysqltest: %s does not answer after %v: %w\n%s", s.name, startPatience, err, s.logTail())
		case <-tick.C:
		}
	}
}

// logWhenFailed logs what the server has logged during the test, if the test fails.
func (s *Server) logWhenFailed(tb testing.TB) {
	tb.Helper()
	if s.dsn != nil {
		return // the user's own server; its log is elsewhere
	}
	var before int64
	if info, err := os.Stat(s.logFile()); err == nil && s.tb == nil {
		before = info.Size()
	}
	tb.Cleanup(func() {
		if !tb.Failed() {
			return
		}
		if log := s.logSince(before); len(log) > 0 {
			tb.Logf("the end of what %s has logged during the test:\n%s", s.name, log)
		} else {
			tb.Logf("%s has logged nothing during the test", s.name)
		}
	})
}

func (s *Server) logTail() []byte { return s.logSince(0) }

// logSince returns the server's log without its first bytes.
func (s *Server) logSince(before int64) []byte {
	log, err := os.ReadFile(s.logFile())
	if err != nil {
		return []byte(err.Error())
	}
	return tail(log[min(before, int64(len(log))):])
}

func loopback(port int) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}
