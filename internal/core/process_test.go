package core_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
	"github.com/mqnotify/mqnotify/producer"
)

const processEnv = "MQNOTIFY_HANDSHAKE_PROCESS"

// childInput is the input of a process of TestHandshakeOfProcesses.
type childInput struct{ Role, DSN string }

// Producer and consumer are processes, and are killed by kill -9. Whichever is killed, and
// whichever starts first, the other continues, and no row is lost. They alternate: no row
// is inserted while the consumer works, so it finds one row at a time, or a few if it
// was late for its turn.
func TestHandshakeOfProcesses(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		db := openDB(t, config)
		makeTopic(t, db)
		mysqltest.Exec(t, db.Pool(), "CREATE TABLE turns (last_id BIGINT PRIMARY KEY, found INT NOT NULL, intruded INT NOT NULL)")
		count := func(query string) (n int) {
			require.NoError(t, db.Pool().GetContext(t.Context(), &n, query))
			return n
		}
		more := func(query string, n int) {
			t.Helper()
			n += count(query)
			require.Eventually(t, func() bool { return count(query) >= n }, patience, tick)
		}
		const (
			rows  = "SELECT COUNT(*) FROM orders"
			turns = "SELECT COUNT(*) FROM turns"
			held  = "SELECT COALESCE(IS_USED_LOCK('%s'), 0)"
		)
		lock := fmt.Sprintf(held, core.HandshakeName(db.Name(), "orders"))
		start := func(role string) (kill func()) { return startProcess(t, childInput{role, config.FormatDSN()}) }

		killConsumer := start("consumer")
		require.Eventually(t, func() bool { return count(lock) != 0 }, patience, tick)
		killProducer := start("producer")
		more(turns, mysqltest.Many(10, 30, 30))

		killProducer()
		all := count(rows)
		require.Eventually(t, func() bool { return count("SELECT COALESCE(MAX(last_id), 0) FROM turns") >= all }, patience, tick)
		killProducer = start("producer")
		more(turns, mysqltest.Many(10, 30, 30))
		// Only most turns: while a consumer that has released the lock is delayed, the producer continues alone.
		assert.Equal(t, 1, count("SELECT 2 * SUM(found < 5) > COUNT(*) FROM turns"))

		killConsumer()
		more(rows, mysqltest.Many(10, 30, 30))
		killConsumer = start("consumer")
		more(turns, mysqltest.Many(10, 30, 30))

		killProducer()
		require.Eventually(t, func() bool {
			return count("SELECT SUM(found) FROM turns") == count(rows)
		}, patience, tick, "no row is lost, and none is seen twice")
		killConsumer()
		require.Eventually(t, func() bool { return count(lock) == 0 }, patience, tick)
		assert.Zero(t, count("SELECT SUM(intruded) FROM turns"))
	})
}

// startProcess starts a process, which ends with the test's process.
func startProcess(t *testing.T, p childInput) (kill func()) {
	t.Helper()
	input, err := json.Marshal(p)
	require.NoError(t, err)
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), processEnv+"="+string(input))
	var said bytes.Buffer // read when the process has ended
	command.Stderr = &said
	alive, err := command.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = command.Wait()
	}()
	kill = func() {
		assert.NoError(t, command.Process.Kill(), "it ended by itself")
		mysqltest.Await(t, ended, "the process's end")
		_ = alive.Close()
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		<-ended
		if t.Failed() {
			t.Logf("%s: %s", p.Role, said.String())
		}
	})
	return kill
}

func processMain(input string) error {
	go func() { // the test's process holds the other end
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	var p childInput
	if err := json.Unmarshal([]byte(input), &p); err != nil {
		return err
	}
	db, err := core.Open(p.DSN)
	if err != nil {
		return err
	}
	switch p.Role {
	case "producer":
		return produce(context.Background(), db)
	case "consumer":
		return consume(context.Background(), db)
	}
	return fmt.Errorf("no role %q", p.Role)
}

// produce publishes one message after another.
func produce(ctx context.Context, db *core.DB) error {
	handshake, err := producer.New(db, "orders", producer.Options{Mode: "handshake"})
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- handshake.Run(ctx) }()
	for {
		if _, err := handshake.Publish(ctx, producer.Message{Payload: []byte("x")}); err != nil {
			return errors.Join(err, <-ended)
		}
	}
}

// consume records the rows that it finds in each of its turns, and those that are inserted
// while it works.
func consume(ctx context.Context, db *core.DB) error {
	session, err := core.NewSession(ctx, db, core.SessionOptions{})
	if err != nil {
		return err
	}
	name := core.HandshakeName(db.Name(), "orders")
	waiter := core.NewHandshake(session, name, core.LargestID("orders", "id"), &notify.Fibonacci{Min: 5 * time.Millisecond, Max: 1500 * time.Millisecond})
	var head core.Head
	var last int
	if err := db.Pool().GetContext(ctx, &last, "SELECT COALESCE(MAX(last_id), 0) FROM turns"); err != nil {
		return err
	}
	for {
		if head, err = waiter.Wait(ctx, head, 10*time.Second); err != nil {
			return err
		}
		var ids, later []int
		if err := db.Pool().SelectContext(ctx, &ids, "SELECT id FROM orders WHERE id > ? ORDER BY id", last); err != nil {
			return err
		}
		if len(ids) == 0 {
			continue
		}
		if _, err := db.Pool().ExecContext(ctx, "DO SLEEP(0.02)"); err != nil {
			return err
		}
		last = ids[len(ids)-1]
		if err := db.Pool().SelectContext(ctx, &later, "SELECT id FROM orders WHERE id > ?", last); err != nil {
			return err
		}
		_, err := db.Pool().ExecContext(ctx, "INSERT INTO turns VALUES (?, ?, ?)", last, len(ids), len(later))
		if err != nil {
			return err
		}
	}
}
