package ringbuffer

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

const processEnv = "MQNOTIFY_RINGBUFFER_PROCESS"

// writerTold is the input of a process of these tests.
type writerTold struct{ Name, DSN string }

// writeMain appends numbers to a buffer, one to five at a time, until the process is killed. It does not append
// the numbers of a failed Append again, because they may be stored.
func writeMain(text string) error {
	go func() { // the test's process holds the other end
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	var told writerTold
	if err := json.Unmarshal([]byte(text), &told); err != nil {
		return err
	}
	db, err := notify.Open(told.DSN)
	if err != nil {
		return err
	}
	ring, err := Open(db, "log")
	if err != nil {
		return err
	}
	random := mysqltest.RandomOf(told.Name)
	for n := 0; ; {
		entries := make([][]byte, 1+random.IntN(5))
		for i := range entries {
			n++
			entries[i] = fmt.Appendf(nil, "%s %d %d", told.Name, n, len(entries)-1-i)
		}
		_, _ = ring.Append(context.Background(), entries...)                    // one that failed is missing, or not
		<-time.After(time.Duration(random.Int64N(int64(5 * time.Millisecond)))) // others have a machine to share
	}
}

// startWriter starts a process that runs writeMain, until kill is called or the test ends.
func startWriter(t *testing.T, told writerTold) (kill func()) {
	t.Helper()
	text, err := json.Marshal(told)
	require.NoError(t, err)
	command := exec.Command(os.Args[0])
	command.Env, command.Stderr = append(os.Environ(), processEnv+"="+string(text)), os.Stderr
	_, err = command.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	kill = sync.OnceFunc(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	t.Cleanup(kill)
	return kill
}

// Processes append to a ring; some are killed while they do, and the connections of others are
// cut. A reader gets every entry in the order of the numbers, learns of every gap,
// and gets entries that were appended together all or none.
func TestRingProcesses(t *testing.T) {
	mysqltest.NotShort(t, "TestRingAtOnce")
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		const size, writers = 2000, 4
		kills := mysqltest.Many(2, 6, 20)
		random := mysqltest.Random(t)
		db, config := database(t, s, size)
		proxy := s.Proxy(t)
		config = s.User(t, config, "ALL ON "+config.DBName+".*") // of their own, which tells their sessions
		configs := []*mysql.Config{config, proxy.Config(config)}
		started := 0
		start := func(i int) (kill func()) {
			started++
			return startWriter(t, writerTold{fmt.Sprint(started), configs[i%2].FormatDSN()})
		}
		alive := make([]func(), writers)
		for i := range alive {
			alive[i] = start(i)
		}
		ring := open(t, db)
		var at, entries, missed uint64
		last := map[string]int{}
		whole := 0 // how many of those that were appended together are to come yet
		read := func() {
			t.Helper()
			got, err := ring.Read(t.Context(), at, 1000)
			require.NoError(t, err)
			if n := got[0].Missed; n > 0 {
				at, whole, missed = at+n, -1, missed+n
			}
			for _, e := range got {
				if at == 0 { // it begins with the oldest
					at, whole = e.Number-1, -1
				}
				at++
				require.Equal(t, at, e.Number)
				var writer string
				var n, more int
				_, err := fmt.Sscan(string(e.Payload), &writer, &n, &more)
				require.NoError(t, err)
				require.Greater(t, n, last[writer], "in the order of its writer")
				if whole > 0 {
					require.Equal(t, whole-1, more, "together")
					require.Equal(t, last[writer]+1, n, "together")
				}
				last[writer], whole = n, more
				entries++
			}
		}
		for kill := range kills {
			for entries < uint64(kill+1)*500 {
				read()
			}
			i := random.IntN(writers)
			alive[i]()
			alive[i] = start(i)
			proxy.Down()
			proxy.Up()
		}
		for _, kill := range alive {
			kill()
		}
		// The server may still finish statements of killed writers.
		mysqltest.Eventually(t, "they are gone", func() bool {
			return mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM information_schema.processlist WHERE user = ?", config.User) == 0
		})
		head := mysqltest.Value[uint64](t, db.Pool(), "SELECT head FROM mqnotify_ring")
		for at < head {
			read()
		}
		assert.LessOrEqual(t, whole, 0, "the last is whole")
		assert.Equal(t, fmt.Sprintf("%d %d %d", min(size, head), head-min(size, head)+1, head),
			mysqltest.Value[string](t, db.Pool(), "SELECT CONCAT_WS(' ', COUNT(*), MIN(entry), MAX(entry)) FROM mqnotify_ring_slot"))
		t.Logf("%d entries read, %d missed and told; %d writers of %d killed", entries, missed, kills, started)
	})
}
