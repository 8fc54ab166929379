package consumer

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

const (
	shareEnv     = "MQNOTIFY_SHARE_MEMBER"
	shareWriters = 6
	shareKeys    = 5 // of each writer
)

// shareMember is the input of a process of TestShareProcesses.
type shareMember struct {
	DSN     string
	Writers string
}

// The invariant: however members start, end and are killed (kill -9), and however writers
// commit late and roll back, every row is handled. The rows of a key are handled in the order in which they
// were published and by one member at a time; with a handler in a transaction exactly
// once. When no member joins or leaves, the shares become fair.
func TestShareProcesses(t *testing.T) {
	mysqltest.NotShort(t, "TestShare and TestShareHandsOver")
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		random := mysqltest.Random(t)
		way := writersUnknown
		if !testing.Short() { // reads of INNODB_TRX would disturb other tests
			s, way = s.Start(t), writersInnoDBTrx
		}
		config := s.Database(t)
		db := openConfig(t, config, "orders")
		do(t, db,
			"CREATE TABLE state_tx (k INT PRIMARY KEY, seq INT NOT NULL, version INT NOT NULL)",
			"CREATE TABLE state_once (k INT PRIMARY KEY, seq INT NOT NULL, version INT NOT NULL, member INT NULL, at DATETIME(6) NULL)",
			"CREATE TABLE killed (member INT PRIMARY KEY, at DATETIME(6) NOT NULL)",
			"CREATE TABLE work_once (id BIGINT UNSIGNED NOT NULL, KEY (id))",
			"CREATE TABLE work (id BIGINT UNSIGNED NOT NULL, KEY (id))",
			"CREATE TABLE wrong (what TEXT)")
		for k := range shareWriters * shareKeys {
			do(t, db, fmt.Sprintf("INSERT INTO state_tx VALUES (%d, 0, 0)", k), fmt.Sprintf("INSERT INTO state_once (k, seq, version) VALUES (%d, 0, 0)", k))
		}
		told, err := json.Marshal(shareMember{config.FormatDSN(), way})
		require.NoError(t, err)
		var members []*process
		shareMembers := mysqltest.Many(2, 4, 4)
		start := func() { members = append(members, startMember(t, string(told))) }
		for range shareMembers {
			start()
		}
		ctx, cancel := context.WithCancel(t.Context())
		var writers sync.WaitGroup
		defer writers.Wait()
		defer cancel()
		for n := range shareWriters {
			writers.Go(func() {
				if err := publishKeys(ctx, db, n, mysqltest.RandomOf(fmt.Sprint(t.Name(), n))); err != nil && ctx.Err() == nil {
					t.Errorf("writer: %v", err)
				}
			})
		}
		fairly(t, db, "tx", shareMembers)
		handled := func() int { return mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM work") }
		kills, ends := 0, 0
		for range mysqltest.Many(1, 3, 60) {
			pick := random.IntN(len(members))
			if random.IntN(3) == 0 {
				members[pick].end(t)
				ends++
			} else {
				do(t, db, fmt.Sprintf("INSERT INTO killed VALUES (%d, UTC_TIMESTAMP(6))", members[pick].command.Process.Pid))
				members[pick].kill()
				kills++
			}
			members = append(members[:pick], members[pick+1:]...)
			if random.IntN(2) == 0 { // the members that are left must take over the partitions
				before := handled()
				eventually(t, func() bool { return handled() > before+50 }, "the others do not go on")
			}
			start()
			before := handled()
			eventually(t, func() bool { return handled() > before+50 }, "nothing goes on")
		}
		cancel()
		writers.Wait()
		published := mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM orders")
		arrive := func(done func() int) { // on a slow machine not all soon, but always some
			for left := math.MaxInt; left > 0; {
				before := left
				eventually(t, func() bool { left = published - done(); return left <= 0 || left < before }, "rows are lost")
			}
		}
		arrive(handled)
		arrive(func() int { return mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(DISTINCT id) FROM work_once") })
		fairly(t, db, "tx", shareMembers)
		fairly(t, db, "once", shareMembers)
		for _, m := range members {
			m.end(t)
		}
		require.Empty(t, mysqltest.Values[string](t, db.Pool(), "SELECT what FROM wrong"))
		require.Equal(t, published, handled(), "rows were handled twice in a transaction")
		require.Zero(t, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_dead_letter"))
		t.Logf("%d rows, %d members killed, %d ended", published, kills, ends)
	})
}

// publishKeys publishes for keys of its own, with a number for each key, until the context ends.
// Some transactions commit late, some roll back.
func publishKeys(ctx context.Context, db *notify.DB, n int, random *rand.Rand) error {
	committed := make([]int, shareKeys)
	for ctx.Err() == nil {
		tx, err := db.Pool().BeginTxx(context.WithoutCancel(ctx), nil)
		if err != nil {
			return err
		}
		next := append([]int(nil), committed...)
		for range 1 + random.IntN(3) {
			k := random.IntN(shareKeys)
			next[k]++
			_, err := tx.Exec("INSERT INTO orders (headers, payload) VALUES (JSON_OBJECT('key', ?), ?)",
				strconv.Itoa(n*shareKeys+k), strconv.Itoa(next[k]))
			if err != nil {
				return err
			}
		}
		pause := random.IntN(30)
		if random.IntN(20) == 0 {
			pause = 300
		}
		if _, err := tx.Exec("DO SLEEP(?)", float64(pause)/1000); err != nil {
			return err
		}
		if random.IntN(10) == 0 {
			err = tx.Rollback()
		} else {
			err = tx.Commit()
			committed = next
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// process is a member's process, which ends with the test's.
type process struct {
	command *exec.Cmd
	alive   io.Closer
	said    bytes.Buffer
	ended   chan struct{}
	err     error
}

func startMember(t *testing.T, told string) *process {
	t.Helper()
	p := &process{command: exec.Command(os.Args[0]), ended: make(chan struct{})}
	p.command.Env = append(os.Environ(), shareEnv+"="+told)
	p.command.Stderr = &p.said
	alive, err := p.command.StdinPipe()
	require.NoError(t, err)
	p.alive = alive
	require.NoError(t, p.command.Start())
	go func() {
		defer close(p.ended)
		p.err = p.command.Wait()
	}()
	t.Cleanup(func() {
		if t.Failed() { // tells where it is
			_ = p.command.Process.Signal(syscall.SIGQUIT)
			<-p.ended
		}
		p.kill()
		if t.Failed() {
			t.Log(p.said.String())
		}
	})
	return p
}

// kill kills with kill -9.
func (p *process) kill() {
	_ = p.command.Process.Kill()
	<-p.ended
}

// end ends the member in an orderly way.
func (p *process) end(tb testing.TB) {
	tb.Helper()
	require.NoError(tb, p.alive.Close())
	select {
	case <-p.ended:
	case <-time.After(patience):
		tb.Fatal("the member does not end")
	}
	require.NoError(tb, p.err)
}

// shareMain is the member's process, with a consumer in each of two groups, until its stdin
// is closed.
func shareMain(told string) error {
	var m shareMember
	if err := json.Unmarshal([]byte(told), &m); err != nil {
		return err
	}
	db, err := notify.Open(m.DSN)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel(nil)
	}()
	wrong := func(format string, args ...any) error {
		_, err := db.Pool().Exec("INSERT INTO wrong VALUES (?)", fmt.Sprintf(format, args...))
		return err
	}
	var both sync.WaitGroup
	for group, handler := range map[string]Handler{
		"tx":   EachTx(func(ctx context.Context, tx *sqlx.Tx, m Message) error { return shareTx(ctx, tx, m, wrong) }),
		"once": Each(func(ctx context.Context, m Message) error { return shareOnce(ctx, db, m, wrong) }),
	} {
		c, err := New(db, "orders", Options{
			Group: group, From: "beginning", MembersShare: true, Partitions: 16, PageRows: 50, MaxAttempts: -1,
			FlushInterval: 20 * time.Millisecond, Writers: m.Writers, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		})
		if err != nil {
			return err
		}
		both.Go(func() {
			if err := c.Run(ctx, handler); err != nil {
				cancel(err)
			}
		})
	}
	both.Wait()
	if err := context.Cause(ctx); err != context.Canceled { //nolint:errorlint // the stdin's end
		return err
	}
	return nil
}

// shareRandom returns a member's source of random choices.
var shareRandom = sync.OnceValue(func() *rand.Rand { return mysqltest.RandomOf("share member") })

// keyed is a message's key, and the message's number for this key.
func keyed(m Message) (key string, seq int, err error) {
	seq, err = strconv.Atoi(string(m.Payload))
	return m.Headers["key"], seq, err
}

func shareTx(ctx context.Context, tx *sqlx.Tx, m Message, wrong func(string, ...any) error) error {
	key, seq, err := keyed(m)
	if err != nil {
		return err
	}
	var last int
	if err := tx.GetContext(ctx, &last, "SELECT seq FROM state_tx WHERE k = ? FOR UPDATE", key); err != nil {
		return err
	}
	if seq != last+1 {
		if err := wrong("tx: key %s: %d after %d (id %d)", key, seq, last, m.ID); err != nil {
			return err
		}
	}
	if _, err := tx.ExecContext(ctx, "UPDATE state_tx SET seq = ? WHERE k = ?", seq, key); err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, "INSERT INTO work VALUES (?)", m.ID)
	return err
}

func shareOnce(ctx context.Context, db *notify.DB, m Message, wrong func(string, ...any) error) error {
	key, seq, err := keyed(m)
	if err != nil {
		return err
	}
	var state struct{ Seq, Version int }
	if err := db.Pool().GetContext(ctx, &state, "SELECT seq, version FROM state_once WHERE k = ?", key); err != nil {
		return err
	}
	if seq > state.Seq+1 {
		if err := wrong("once: key %s: %d after %d (id %d)", key, seq, state.Seq, m.ID); err != nil {
			return err
		}
	}
	select { // work, of a kind that obeys its context
	case <-time.After(time.Duration(shareRandom().Int64N(int64(2 * time.Millisecond)))):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	var result sql.Result
	if result, err = db.Pool().ExecContext(ctx, "UPDATE state_once SET seq = GREATEST(seq, ?), version = version + 1,"+
		" member = ?, at = UTC_TIMESTAMP(6) WHERE k = ? AND version = ?", seq, os.Getpid(), key, state.Version); err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil || n != 1 {
		// A busy server may run a statement of a killed member later; that was no handler any more.
		var late bool
		const query = "SELECT EXISTS (SELECT 1 FROM state_once s JOIN killed k ON k.member = s.member WHERE s.k = ? AND s.at >= k.at - INTERVAL 1 SECOND)" // both are when a statement began
		if err := db.Pool().GetContext(ctx, &late, query, key); err != nil || late {
			return errors.Join(err, errors.New("a dead member's statement came late"))
		}
		return wrong("once: key %s is handled twice at once (id %d): %v", key, m.ID, err)
	}
	_, err = db.Pool().ExecContext(ctx, "INSERT INTO work_once VALUES (?)", m.ID)
	return err
}
