package consumer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/deadletter"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// letter is a row of the table of dead letters.
type letter struct {
	Topic    string
	Group    string `db:"group_name"`
	ID       uint64 `db:"message_id"`
	Headers  *string
	Payload  []byte
	Attempts int
	Error    string
}

const letters = "SELECT topic, group_name, message_id, headers, payload, attempts, error FROM mqnotify_dead_letter ORDER BY message_id"

// deadLetters returns the rows of a query in the form of letters.
func deadLetters(tb testing.TB, db *notify.DB, query string) (rows []letter) {
	tb.Helper()
	require.NoError(tb, db.Pool().SelectContext(tb.Context(), &rows, query))
	return rows
}

// A message whose handler fails MaxAttempts times becomes a dead letter of the group,
// whole; the others are handled, and the offset moves past it.
func TestDeadLetter(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		binary := "\x00\xff\xfe'\"\\\n\x80"
		_, err := db.Pool().ExecContext(t.Context(), "INSERT INTO orders (headers, payload) VALUES "+
			`(NULL, 'good'), ('{"trace": "a\\"b", "n": 1, "ü": "é"}', ?), (NULL, ''), (NULL, 'good')`, []byte(binary))
		require.NoError(t, err)
		reason := "no: " + strings.Repeat("ä", deadletter.MaxError) + "\xff"
		var handled []uint64
		handle := func(m Message) error {
			if m.ID == 2 || m.ID == 3 {
				return errors.New(reason)
			}
			handled = append(handled, m.ID)
			return nil
		}
		for name, handler := range map[string]Handler{
			"each": Each(func(_ context.Context, m Message) error { return handle(m) }),
			"tx":   EachTx(func(_ context.Context, _ *sqlx.Tx, m Message) error { return handle(m) }),
		} {
			handled = nil
			options := Options{Group: name, From: "beginning", StopAtEnd: true, MaxAttempts: 3, Retry: atOnce}
			for range 2 { // again after a reset: a letter that is there is replaced
				options.Reset = true
				require.NoError(t, run(t, db, "orders", options, handler).wait(t))
			}
			require.Equal(t, []uint64{1, 4, 1, 4}, handled, name)
			require.Equal(t, uint64(4), stored(t, db, name))
			dead := deadLetters(t, db, strings.Replace(letters, "ORDER", "WHERE group_name = '"+name+"' ORDER", 1))
			require.Len(t, dead, 2, name)
			require.JSONEq(t, `{"trace": "a\"b", "n": "1", "ü": "é"}`, *dead[0].Headers)
			require.Nil(t, dead[1].Headers)
			for i := range dead {
				require.True(t, strings.HasPrefix(reason, dead[i].Error), "the error is cut, and stays text")
				require.InDelta(t, deadletter.MaxError, len(dead[i].Error), 4)
				dead[i].Headers, dead[i].Error = nil, ""
			}
			require.Equal(t, []letter{
				{Topic: "orders", Group: name, ID: 2, Payload: []byte(binary), Attempts: 3},
				{Topic: "orders", Group: name, ID: 3, Payload: []byte{}, Attempts: 3},
			}, dead)
		}
	})
}

// The dead letter of a row, not of a message, is its JSON object.
func TestDeadLetterOfARow(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		do(t, db, "CREATE TABLE shop (no INT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, name VARCHAR(20), price DECIMAL(8,2))",
			"INSERT INTO shop VALUES (17, 'Ö', 1.50)")
		require.NoError(t, run(t, db, "shop", Options{Group: "g", From: "beginning", StopAtEnd: true, MaxAttempts: 1},
			Each(func(context.Context, Message) error { return errHandler })).wait(t))
		dead := deadLetters(t, db, letters)
		require.Len(t, dead, 1)
		require.JSONEq(t, `{"no": 17, "name": "Ö", "price": "1.50"}`, string(dead[0].Payload))
		require.Equal(t, errHandler.Error(), dead[0].Error)
	})
}

// If one message of a batch fails, the others of the batch are handled,
// in transactions exactly once.
func TestPoisonInABatch(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		do(t, db, "CREATE TABLE work (id BIGINT UNSIGNED NOT NULL)")
		insert(t, db, "orders", numbers(1, 20)...)
		for _, name := range []string{"batch", "tx"} {
			do(t, db, "DELETE FROM work")
			handle := func(ctx context.Context, tx *sqlx.Tx, messages []Message) error {
				for _, m := range messages {
					if tx != nil {
						if _, err := tx.ExecContext(ctx, "INSERT INTO work VALUES (?)", m.ID); err != nil {
							return err
						}
					}
					if m.ID == 7 {
						return fmt.Errorf("message %d: %w", m.ID, errHandler)
					}
				}
				for _, m := range messages {
					if tx == nil {
						if _, err := db.Pool().ExecContext(ctx, "INSERT INTO work VALUES (?)", m.ID); err != nil {
							return err
						}
					}
				}
				return nil
			}
			handler := BatchTx(handle)
			if name == "batch" {
				handler = Batch(func(ctx context.Context, messages []Message) error { return handle(ctx, nil, messages) })
			}
			options := Options{Group: name, From: "beginning", StopAtEnd: true, MaxAttempts: 2, Retry: atOnce}
			require.NoError(t, run(t, db, "orders", options, handler).wait(t))
			require.Equal(t, append(numbers(1, 6), numbers(8, 20)...), mysqltest.Values[string](t, db.Pool(), "SELECT id FROM work ORDER BY id"), name)
			dead := deadLetters(t, db, letters)
			require.Len(t, dead, 1)
			require.Equal(t, letter{Topic: "orders", Group: name, ID: 7, Payload: []byte("7"), Attempts: 2, Error: "message 7: this handler fails"}, dead[0])
			require.Equal(t, uint64(20), stored(t, db, name))
			do(t, db, "DELETE FROM mqnotify_dead_letter")
		}
	})
}

// A handler that conflicts with another transaction is tried again, and its
// message does not become a dead letter because of the server.
func TestDeadlockInAHandler(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		do(t, db, "CREATE TABLE stock (id INT NOT NULL PRIMARY KEY, n INT NOT NULL)", "INSERT INTO stock VALUES (1, 0), (2, 0)")
		insert(t, db, "orders", "one")
		other := newConn(t, db)
		onConn(t, other, "START TRANSACTION", "UPDATE stock SET n = n + 10 WHERE id = 2")
		calls := 0
		c := run(t, db, "orders", Options{Group: "g", From: "beginning", StopAtEnd: true, Retry: atOnce},
			EachTx(func(ctx context.Context, tx *sqlx.Tx, _ Message) error {
				if _, err := tx.ExecContext(ctx, "UPDATE stock SET n = n + 1 WHERE id = 1"); err != nil {
					return err
				}
				if calls++; calls > 1 {
					_, err := tx.ExecContext(ctx, "UPDATE stock SET n = n + 1 WHERE id = 2")
					return err
				}
				done := make(chan error, 1)
				go func() { // weighs more, so that the server ends the handler's
					_, err := other.ExecContext(context.WithoutCancel(ctx), "UPDATE stock SET n = n + 10 WHERE id = 1")
					if err == nil {
						_, err = other.ExecContext(context.WithoutCancel(ctx), "COMMIT")
					}
					done <- err
				}()
				_, err := tx.ExecContext(ctx, "UPDATE stock SET n = n + 1 WHERE id = 2")
				if number(err) == 1213 { // the deadlock's loser
					require.NoError(t, <-done)
					return err
				}
				// The server rolled back the other transaction: this attempt proves nothing, but the work is done.
				return errors.Join(err, <-done)
			}))
		require.NoError(t, c.wait(t))
		require.Equal(t, 1, mysqltest.Value[int](t, db.Pool(), "SELECT n % 10 FROM stock WHERE id = 1"))
		require.Equal(t, 1, mysqltest.Value[int](t, db.Pool(), "SELECT n % 10 FROM stock WHERE id = 2"))
		require.Empty(t, deadLetters(t, db, letters))
	})
}

// If the tables of the state disappear while Run runs, its error names what is missing.
func TestDeadLettersWithoutTheirTable(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		do(t, db, "DROP TABLE mqnotify_dead_letter")
		insert(t, db, "orders", "one")
		start := time.Now()
		err := run(t, db, "orders", Options{Group: "g", From: "beginning", MaxAttempts: 1},
			Each(func(context.Context, Message) error { return errHandler })).wait(t)
		require.ErrorIs(t, err, notify.ErrNoState)
		require.ErrorContains(t, err, "mqnotify init")
		require.Less(t, time.Since(start), patience)
	})
}
