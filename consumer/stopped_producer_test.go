//go:build unix

package consumer

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// producerEnv makes the test's program a producer of the database that its value names.
const producerEnv = "MQNOTIFY_TEST_PRODUCER"

// producerMain inserts a row, prints a line, and commits when its stdin is closed.
func producerMain(dsn string) error {
	db, err := notify.Open(dsn)
	if err != nil {
		return err
	}
	tx, err := db.Pool().Begin()
	if err != nil {
		return err
	}
	if _, err := tx.Exec("INSERT INTO orders (payload) VALUES ('late')"); err != nil {
		return err
	}
	fmt.Println("inserted")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return tx.Commit()
}

// A producer's process that is stopped (SIGSTOP) between INSERT and COMMIT delays only its own row: the rows of other producers are
// delivered, and its row when it continues and commits. If it is killed instead, nothing waits for it.
func TestStoppedProducer(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		own := s.Start(t) // no other test makes the view of open transactions stale, or has one open
		for _, killed := range []bool{false, true} {
			config := own.Database(t)
			db := openConfig(t, config, "orders")
			producer := exec.CommandContext(t.Context(), os.Args[0])
			producer.Env = append(os.Environ(), producerEnv+"="+config.FormatDSN())
			producer.Stderr = os.Stderr
			in, err := producer.StdinPipe()
			require.NoError(t, err)
			out, err := producer.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, producer.Start())
			_, err = bufio.NewReader(out).ReadString('\n')
			require.NoError(t, err)
			require.NoError(t, producer.Process.Signal(syscall.SIGSTOP))

			insert(t, db, "orders", "early")
			var got, strict collected
			c := run(t, db, "orders", Options{Group: "g", From: "beginning"}, got.handler())
			k := run(t, db, "orders", Options{Group: "strict", From: "beginning", Strict: true}, strict.handler())
			got.waitFor(t, "early")
			insert(t, db, "orders", "next")
			got.waitFor(t, "early", "next")
			require.Empty(t, strict.payloads())
			if killed {
				require.NoError(t, producer.Process.Kill())
				require.Error(t, producer.Wait())
				strict.waitFor(t, "early", "next")
				insert(t, db, "orders", "last")
				got.waitFor(t, "early", "next", "last")
			} else {
				require.NoError(t, producer.Process.Signal(syscall.SIGCONT))
				require.NoError(t, in.Close())
				require.NoError(t, producer.Wait())
				got.waitFor(t, "early", "next", "late")
				strict.waitFor(t, "late", "early", "next")
			}
			require.NoError(t, c.end(t))
			require.NoError(t, k.end(t))
		}
	})
}
