package producer

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// counted replaces the flag, and counts.
type counted struct {
	mu sync.Mutex
	n  int
}

func (c *counted) hint(context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	return nil
}

func (c *counted) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// The messages of a transaction are stored when it commits, with the ids that
// PublishTx returned, and are not stored otherwise.
func TestPublishTx(t *testing.T) {
	type transaction interface {
		notify.Tx
		Commit() error
		Rollback() error
	}
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		for name, interpolate := range map[string]bool{"interpolated": true, "prepared": false} {
			config := s.Database(t)
			config.InterpolateParams = interpolate
			connector, err := mysql.NewConnector(config)
			require.NoError(t, err)
			theirs := sqlx.NewDb(sql.OpenDB(connector), "mysql") // the caller's own pool
			defer func() { require.NoError(t, theirs.Close()) }()
			db := open(t, config)
			begin := map[string]func() (transaction, error){
				"sql":  func() (transaction, error) { return theirs.DB.BeginTx(t.Context(), nil) },
				"sqlx": func() (transaction, error) { return theirs.BeginTxx(t.Context(), nil) },
			}
			for kind, begin := range begin {
				t.Run(name+" "+kind, func(t *testing.T) {
					mysqltest.Exec(t, db.Pool(), "DROP TABLE IF EXISTS x, business")
					mysqltest.Exec(t, db.Pool(), "CREATE TABLE x (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, headers JSON, payload LONGBLOB NOT NULL)")
					mysqltest.Exec(t, db.Pool(), "CREATE TABLE business (id INT)")
					var hints counted
					p := newProducer(t, db, "x", Options{BatchRows: 2})
					p.hint = hints.hint
					messages := make([]Message, 5)
					for i := range messages {
						messages[i] = Message{Payload: append(everyByte(), byte(i)), Headers: map[string]string{"i": fmt.Sprint(i)}}
					}
					for _, commit := range []bool{false, true} {
						tx, err := begin()
						require.NoError(t, err)
						_, err = tx.ExecContext(t.Context(), "INSERT INTO business VALUES (1)")
						require.NoError(t, err)
						none, err := p.PublishTx(t.Context(), tx)
						require.NoError(t, err)
						assert.Nil(t, none)
						ids, err := p.PublishTx(t.Context(), tx, messages...)
						require.NoError(t, err)
						assert.Zero(t, count(t, db, "x"), "nothing is seen before the commit")
						if !commit {
							require.NoError(t, tx.Rollback())
							assert.Zero(t, count(t, db, "x"))
							continue
						}
						require.NoError(t, tx.Commit())
						assert.Zero(t, hints.count(), "no hint before Notify")
						p.Notify(t.Context())
						assert.Equal(t, 1, hints.count())
						want := map[uint64]Message{}
						for i, id := range ids {
							want[id] = messages[i]
						}
						assert.Equal(t, want, stored(t, db, "x"))
						assert.Equal(t, 1, count(t, db, "business"))
					}
				})
			}
			for _, pool := range []notify.Tx{theirs, theirs.DB} {
				_, err := newProducer(t, db, "x", Options{}).PublishTx(t.Context(), pool, Message{})
				require.ErrorContains(t, err, "begin a transaction")
			}
		}
	})
}

func TestPublishTxErrors(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := topicOn(t, s, "x")
		tx, err := db.Pool().Beginx()
		require.NoError(t, err)
		defer func() { require.NoError(t, tx.Rollback()) }()
		_, err = newProducer(t, db, "none", Options{}).PublishTx(t.Context(), tx, Message{})
		require.ErrorIs(t, err, notify.ErrNoTable)
		_, err = newProducer(t, db, "x", Options{}).PublishTx(t.Context(), tx, Message{Payload: make([]byte, 64<<20)})
		require.ErrorAs(t, err, new(*notify.TooLargeError))
		_, err = newProducer(t, db, "x", Options{}).PublishTx(t.Context(), tx, Message{Headers: map[string]string{"x": "\xff"}})
		require.ErrorContains(t, err, "UTF-8")
	})
}

func TestTransact(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := topicOn(t, s, "x")
		var hints counted
		p := newProducer(t, db, "x", Options{})
		p.hint = hints.hint
		publish := func(ctx context.Context, tx *sqlx.Tx) error {
			_, err := p.PublishTx(ctx, tx, Message{})
			return err
		}

		require.NoError(t, p.Transact(t.Context(), publish))
		assert.Equal(t, 1, count(t, db, "x"))
		assert.Equal(t, 1, hints.count())

		failure := errors.New("no")
		err := p.Transact(t.Context(), func(ctx context.Context, tx *sqlx.Tx) error {
			return errors.Join(publish(ctx, tx), failure)
		})
		require.ErrorIs(t, err, failure)
		assert.Panics(t, func() {
			_ = p.Transact(t.Context(), func(ctx context.Context, tx *sqlx.Tx) error {
				require.NoError(t, publish(ctx, tx))
				panic("in the middle")
			})
		})
		ctx, cancel := context.WithCancelCause(t.Context())
		err = p.Transact(ctx, func(ctx context.Context, tx *sqlx.Tx) error {
			defer cancel(failure)
			return publish(ctx, tx)
		})
		require.ErrorIs(t, err, failure)
		assert.True(t, SafeToRetry(err))
		err = p.Transact(t.Context(), func(ctx context.Context, tx *sqlx.Tx) error {
			return errors.Join(publish(ctx, tx), tx.Rollback()) // not f's to do
		})
		require.ErrorIs(t, err, sql.ErrTxDone)
		err = p.Transact(t.Context(), func(ctx context.Context, tx *sqlx.Tx) error {
			_, err := newProducer(t, db, "none", Options{}).PublishTx(ctx, tx, Message{})
			return err
		})
		require.ErrorIs(t, err, notify.ErrNoTable)

		assert.Equal(t, 1, count(t, db, "x"), "what failed left nothing")
		assert.Equal(t, 1, hints.count())
	})
}

// If two transactions lock the same rows in opposite order, the server rolls one of them
// back, and it runs again.
func TestTransactRunsAgainAfterADeadlock(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := topicOn(t, s, "x")
		mysqltest.Exec(t, db.Pool(), "CREATE TABLE account (id INT PRIMARY KEY, runs INT)")
		mysqltest.Exec(t, db.Pool(), "INSERT INTO account VALUES (1, 0), (2, 0)")
		p := newProducer(t, db, "x", Options{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()

		var bothHold, wg sync.WaitGroup
		bothHold.Add(2)
		var runs [2]int
		for i := range 2 {
			wg.Go(func() {
				assert.NoError(t, p.Transact(ctx, func(ctx context.Context, tx *sqlx.Tx) error {
					runs[i]++
					if _, err := p.PublishTx(ctx, tx, Message{}); err != nil {
						return err
					}
					if _, err := tx.ExecContext(ctx, "UPDATE account SET runs = runs + 1 WHERE id = ?", 1+i); err != nil {
						return err
					}
					if runs[i] == 1 {
						bothHold.Done()
						bothHold.Wait()
					}
					_, err := tx.ExecContext(ctx, "UPDATE account SET runs = runs + 1 WHERE id = ?", 2-i)
					return err
				}))
			})
		}
		wg.Wait()
		assert.GreaterOrEqual(t, runs[0]+runs[1], 3)
		assert.Equal(t, 2, count(t, db, "x"))
		var committed []int
		require.NoError(t, db.Pool().Select(&committed, "SELECT runs FROM account"))
		assert.Equal(t, []int{2, 2}, committed)
	})
}

// A publish whose lock wait times out is tried again.
func TestPublishTriesAgainAfterALockWait(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		setUp := open(t, config)
		mysqltest.Exec(t, setUp.Pool(), "CREATE TABLE x (id INT AUTO_INCREMENT PRIMARY KEY, headers JSON, payload VARBINARY(9) NOT NULL UNIQUE)")
		config.Params = map[string]string{"innodb_lock_wait_timeout": "1"}
		db := open(t, config)
		p := newProducer(t, db, "x", Options{})

		tx, err := setUp.Pool().Beginx()
		require.NoError(t, err)
		_, err = p.PublishTx(t.Context(), tx, Message{Payload: []byte("same")})
		require.NoError(t, err)
		published := make(chan error, 1)
		begun := time.Now()
		go func() {
			_, err := p.Publish(t.Context(), Message{Payload: []byte("same")})
			published <- err
		}()
		select {
		case err := <-published:
			t.Fatalf("published while the row is locked: %v", err)
		case <-time.After(1500 * time.Millisecond): // past the first attempt's lock wait
		}
		require.NoError(t, tx.Rollback())
		require.NoError(t, <-published)
		assert.Greater(t, time.Since(begun), time.Second)
		assert.Equal(t, 1, count(t, db, "x"))
	})
}
