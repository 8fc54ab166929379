package producer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/notify"
)

// If a server is killed during publishes, every message whose publish succeeded survives
// exactly once, and a message whose error is safe to retry is not stored.
func TestServerKilledInTheMiddle(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		own := s.Start(t)
		db := topicOn(t, own, "x")
		p := newProducer(t, db, "x", Options{BatchRows: 3})
		var mu sync.Mutex
		answers := map[string]error{}
		succeeded := make(chan struct{}, 10_000)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var wg sync.WaitGroup
		for publisher := range 8 {
			wg.Go(func() {
				for i := 0; ; i++ {
					name := fmt.Sprintf("%d %d", publisher, i)
					messages := make([]Message, 1+i%5) // a statement, or a transaction of two
					for j := range messages {
						messages[j].Payload = []byte(name)
					}
					_, err := p.Publish(ctx, messages...)
					mu.Lock()
					answers[name] = err
					mu.Unlock()
					if err != nil {
						return
					}
					succeeded <- struct{}{}
				}
			})
		}
		for range mysqltest.Many(50, 200, 200) {
			<-succeeded
		}
		own.Kill()
		wg.Wait()
		own.Restart(t)

		copies := map[string]int{}
		for _, m := range stored(t, db, "x") {
			copies[string(m.Payload)]++
		}
		for name, err := range answers {
			var publisher, i int
			_, scanErr := fmt.Sscanf(name, "%d %d", &publisher, &i)
			require.NoError(t, scanErr)
			all := 1 + i%5
			switch {
			case err == nil:
				assert.Equal(t, all, copies[name], "published: %s", name)
			case SafeToRetry(err):
				assert.Zero(t, copies[name], "failed: %s: %v", name, err)
			default:
				assert.ErrorIs(t, err, notify.ErrUnknown)
				assert.Contains(t, []int{0, all}, copies[name], "unknown: %s", name)
			}
		}
		_, err := p.Publish(t.Context(), Message{}) // and on it goes
		require.NoError(t, err)
	})
}

// A commit without an answer ends with the context. It is neither called a
// failure nor repeated.
func TestNoAnswer(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		for name, messages := range map[string]int{"statement": 1, "transaction": 2} {
			t.Run(name, func(t *testing.T) {
				db := topicOn(t, s, "x")
				p := newProducer(t, db, "x", Options{BatchRows: 1})
				_, err := p.Publish(t.Context(), Message{}) // connects
				require.NoError(t, err)
				mysqltest.Exec(t, db.Pool(), "DELETE FROM x")
				mysqltest.Exec(t, db.Pool(), "ALTER TABLE x ADD COLUMN slow INT")
				mysqltest.Exec(t, db.Pool(), "CREATE TRIGGER slow BEFORE INSERT ON x FOR EACH ROW SET NEW.slow = SLEEP(60)")
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				published := mysqltest.Result(func() error {
					_, err := p.Publish(ctx, make([]Message, messages)...)
					return err
				})
				session := inserting(t, db)
				cancel()
				err = mysqltest.Receive(t, published) // for less than the statement takes
				require.ErrorIs(t, err, context.Canceled)
				_, _ = db.Pool().ExecContext(t.Context(), fmt.Sprintf("KILL %d", session)) // it may have ended by itself
				// A transaction stores nothing before its COMMIT.
				assert.Equal(t, messages == 1, errors.Is(err, notify.ErrUnknown), "%v", err)
				assert.Equal(t, messages > 1, SafeToRetry(err))
				if messages > 1 {
					var busy int
					require.Eventually(t, func() bool {
						return db.Pool().GetContext(context.Background(), &busy, "SELECT COUNT(*) FROM information_schema.processlist "+
							"WHERE db = ? AND info LIKE 'INSERT%'", db.Name()) == nil && busy == 0
					}, 30*time.Second, 20*time.Millisecond)
					assert.Zero(t, count(t, db, "x"))
				}
			})
		}
	})
}

// lostAtInsert is a connection that ends when it has sent an INSERT, or the text of one to prepare.
type lostAtInsert struct{ net.Conn }

func (c lostAtInsert) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if bytes.Contains(b, []byte("INSERT INTO")) {
		_ = c.Close()
	}
	return n, err
}

// If the connection is lost while the INSERT of a large message is prepared, it is not unknown whether the message is stored.
func TestLostWhilePreparing(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		db := open(t, config)
		require.NoError(t, schema.Init(t.Context(), db.Pool(), "x"))
		config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			return lostAtInsert{conn}, err
		}
		far := open(t, config)
		_, err := newProducer(t, far, "x", Options{BatchBytes: 1}).Publish(t.Context(), Message{}) // too large for a batch
		require.Error(t, err)
		assert.True(t, SafeToRetry(err), "%v", err)
		assert.Zero(t, count(t, db, "x"))
		_, err = newProducer(t, far, "x", Options{}).Publish(t.Context(), Message{})
		require.ErrorIs(t, err, notify.ErrUnknown)
	})
}
