package consumer

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/notify"
)

// aged waits until every table of the database is old enough for its origin to be known.
func aged(t *testing.T, db *notify.DB) {
	t.Helper()
	eventually(t, func() bool {
		return mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND CREATE_TIME > NOW() - INTERVAL ? SECOND", originAge+1) == 0
	}, "the tables stay young")
}

// A table that was truncated and has more rows than before is noticed. A table that was altered in any way, emptied or created again
// is not mistaken for it.
func TestOrigin(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		consume := func(topic string, options Options) ([]string, error) {
			var got collected
			options.Group, options.From, options.StopAtEnd = "g", "beginning", true
			err := run(t, db, topic, options, got.handler()).wait(t)
			return got.payloads(), err
		}
		fill := func(topic string, n int) {
			do(t, db, "INSERT INTO "+ident.Quote(topic)+" (payload) VALUES ('x')"+strings.Repeat(", ('x')", n-1))
		}
		const truncates = "TRUNCATE TABLE {t}"
		changes := []string{
			truncates, "ALTER TABLE {t} ADD x INT", "ALTER TABLE {t} ADD KEY y (created_at)", "ALTER TABLE {t} FORCE", "OPTIMIZE TABLE {t}",
			"ALTER TABLE {t} AUTO_INCREMENT = 100", "ALTER TABLE {t} COMMENT 'x'", "DELETE FROM {t}", "DELETE FROM {t} WHERE id < 3",
			"ALTER TABLE {t} ROW_FORMAT=COMPRESSED", "ALTER TABLE {t} PARTITION BY HASH (id) PARTITIONS 2",
			"RENAME TABLE {t} TO aside; RENAME TABLE aside TO {t}",
			"CREATE TABLE copy LIKE {t}; INSERT INTO copy SELECT * FROM {t}; DROP TABLE {t}; RENAME TABLE copy TO {t}",
			"TRUNCATE TABLE {t}; ALTER TABLE {t} AUTO_INCREMENT = 4",
		}
		topic := func(i int) string { return fmt.Sprintf("a-%d.b", i) }
		for i := range changes {
			require.NoError(t, schema.Init(t.Context(), db.Pool(), topic(i)))
			fill(topic(i), 3)
		}
		aged(t, db)
		for i := range changes {
			got, err := consume(topic(i), Options{})
			require.NoError(t, err)
			require.Len(t, got, 3)
		}
		for i, change := range changes {
			for statement := range strings.SplitSeq(change, "; ") {
				statement = strings.ReplaceAll(statement, "{t}", ident.Quote(topic(i)))
				if strings.HasPrefix(statement, "OPTIMIZE") { // returns rows
					var result []struct{ Table string }
					require.NoError(t, db.Pool().Unsafe().SelectContext(t.Context(), &result, statement))
					continue
				}
				do(t, db, statement)
			}
			if change == truncates {
				fill(topic(i), 20)
			} else {
				fill(topic(i), 2)
			}
		}
		aged(t, db)
		for i, change := range changes {
			got, err := consume(topic(i), Options{})
			if change != truncates {
				require.NoError(t, err, change)
				require.Len(t, got, 2, change)
				continue
			}
			require.Empty(t, got)
			require.ErrorIs(t, err, ErrBelowOffset)
			require.ErrorContains(t, err, "was truncated")
			_, err = consume(topic(i), Options{})
			require.ErrorIs(t, err, ErrBelowOffset, "it stays an error")
			got, err = consume(topic(i), Options{Reset: true})
			require.NoError(t, err)
			require.Len(t, got, 20)
			fill(topic(i), 1)
			got, err = consume(topic(i), Options{})
			require.NoError(t, err)
			require.Len(t, got, 1)
			do(t, db, "TRUNCATE TABLE "+ident.Quote(topic(i)), "DELETE FROM mqnotify_offset WHERE topic = '"+topic(i)+"'") // as a reset, too
			fill(topic(i), 30)
			got, err = consume(topic(i), Options{})
			require.NoError(t, err)
			require.Len(t, got, 30)
		}
	})
}

// A running consumer notices it, with a group or without; an account without PROCESS continues as before.
func TestOriginWhileItRuns(t *testing.T) {
	mysqltest.NotShort(t, "TestOrigin")
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		db := openConfig(t, config, "orders")
		few := s.User(t, config, "SELECT, INSERT, UPDATE, CREATE ON "+config.DBName+".*")
		insert(t, db, "orders", numbers(1, 5)...)
		aged(t, db)
		var all, grouped, blind collected
		options := Options{From: "beginning", originWait: time.Nanosecond}
		without := run(t, db, "orders", options, all.handler())
		options.Group = "g"
		with := run(t, db, "orders", options, grouped.handler())
		options.Group = "blind"
		options.Writers = writersUnknown
		blinded := run(t, openConfig(t, few), "orders", options, blind.handler())
		eventually(t, func() bool {
			return len(all.payloads()) == 5 && len(grouped.payloads()) == 5 && len(blind.payloads()) == 5
		}, "the rows do not come")
		conn := newConn(t, db)
		onConn(t, conn, "LOCK TABLES orders WRITE", "TRUNCATE TABLE orders",
			"INSERT INTO orders (payload) VALUES ('x')"+strings.Repeat(", ('x')", 19), "UNLOCK TABLES")
		eventually(t, func() bool { // rows make it check, at times
			insert(t, db, "orders", "more")
			select {
			case <-without.done:
			default:
				return false
			}
			select {
			case <-with.done:
				return true
			default:
				return false
			}
		}, "the consumers go on")
		require.ErrorIs(t, without.wait(t), ErrBelowOffset)
		require.ErrorIs(t, with.wait(t), ErrBelowOffset)
		eventually(t, func() bool { return len(blind.payloads()) >= 20 }, "the rows past the offset do not come")
		require.NoError(t, blinded.end(t))
	})
}
