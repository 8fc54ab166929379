package consumer

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/table"
	"github.com/mqnotify/mqnotify/notify"
	"github.com/mqnotify/mqnotify/producer"
)

// Messages that come one by one are read with the wake: the reader asks for none of
// them. Those that it reads itself, a statement that it has prepared tells.
func TestMessagesComeWithTheWake(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		openConfig(t, config, "orders")
		p, err := producer.New(openConfig(t, config), "orders", producer.Options{})
		require.NoError(t, err)
		defer func() { require.NoError(t, p.Close()) }()
		require.NoError(t, p.Join(t.Context()))
		var got collected
		var timeouts atomic.Int64 // waits that end by themselves, for a look at the gaps: what is read then has no wake
		far, commands := counted(t, config)
		run(t, far, "orders", Options{Mode: ModeGate, From: Beginning(), Woken: func(w notify.Wake) {
			if w == notify.WakeTimeout {
				timeouts.Add(1)
			}
		}}, got.handler())
		var payloads []string
		send := func() {
			t.Helper()
			payloads = append(payloads, fmt.Sprint("message ", len(payloads)))
			_, err := p.Publish(t.Context(), producer.Message{Payload: []byte(payloads[len(payloads)-1]), Headers: map[string]string{"k": "ü"}})
			require.NoError(t, err)
			got.waitFor(t, payloads...)
		}
		send()
		send()
		executed := func() (ahead, itself int) { return int(commands.Executes()), int(commands.Prepared()) }
		ahead, itself := executed()
		looked := int(timeouts.Load())
		const n = 40
		for range n {
			send()
		}
		aheadNow, itselfNow := executed()
		// A wait is counted when it is sent: the first one was before, and the one that follows the last message may
		// not have been sent yet.
		require.GreaterOrEqual(t, aheadNow-ahead, n-1)
		require.Less(t, itselfNow-itself-(int(timeouts.Load())-looked), n/2, "the reader asks for what it has")
		for _, m := range got.all {
			require.Equal(t, map[string]string{"k": "ü"}, m.Headers)
			require.False(t, m.CreatedAt.IsZero())
		}
	})
}

// A page that came ahead is taken by a reader that is at its beginning or past it, once,
// and by no other.
func TestAheadIsTaken(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		insert(t, db, "orders", numbers(1, 5)...)
		session, err := db.Session(t.Context(), notify.SessionOptions{})
		require.NoError(t, err)
		defer func() { require.NoError(t, session.Close()) }()
		described, err := table.Describe(t.Context(), db.Pool(), db.Name(), "orders")
		require.NoError(t, err)
		rows, err := newRows(session, described, Options{})
		require.NoError(t, err)
		answer := func(a *ahead, asked func(a *ahead)) {
			t.Helper()
			query, args := a.Query()
			if asked != nil {
				asked(a)
			}
			result, err := db.Pool().Query(query, args...)
			require.NoError(t, err)
			defer func() { require.NoError(t, result.Close()) }()
			require.NoError(t, a.Result(result))
		}
		come := func(a *ahead) { answer(a, nil) }
		cases := []struct {
			name   string
			follow uint64
			limit  int
			asked  func(a *ahead) // before the answer
			then   func(a *ahead)
			at     uint64
			ids    []uint64 // nil for no page
			full   bool
		}{
			{name: "at its beginning", follow: 2, limit: 100, at: 2, ids: []uint64{3, 4, 5}},
			{name: "past it", follow: 2, limit: 100, at: 4, ids: []uint64{5}},
			{name: "at the end", follow: 5, limit: 100, at: 5, ids: []uint64{}},
			{name: "full", follow: 1, limit: 2, at: 1, ids: []uint64{2, 3}, full: true},
			{name: "full, past it", follow: 1, limit: 2, at: 4, ids: []uint64{}, full: true},
			{name: "before it", follow: 3, limit: 100, at: 2},
			{name: "out of date", follow: 2, limit: 100, then: func(a *ahead) { _ = a.Result(nil) }, at: 2},
			{name: "a second time", follow: 2, limit: 100, then: func(a *ahead) { a.take(2) }, at: 2},
			{name: "asked for from further on", follow: 4, limit: 100, asked: func(a *ahead) { a.follow(1, 100) }, at: 1},
			{name: "asked for with a smaller limit", follow: 1, limit: 2, asked: func(a *ahead) { a.follow(1, 100) }, at: 1, ids: []uint64{2, 3}, full: true},
			{name: "the next page", follow: 1, limit: 2, then: come, at: 3, ids: []uint64{4, 5}, full: true},
			{name: "the next page, of a reader that lacks the first", follow: 1, limit: 2, then: come, at: 1},
		}
		for _, c := range cases {
			a := newAhead(rows, 1000)
			a.follow(c.follow, c.limit)
			answer(a, c.asked)
			if c.then != nil {
				c.then(a)
			}
			p := a.take(c.at)
			if c.ids == nil {
				require.Nil(t, p, c.name)
				continue
			}
			require.NotNil(t, p, c.name)
			require.Equal(t, c.ids, idsOf(p.messages), c.name)
			require.Equal(t, c.full, p.full, c.name)
		}
		where, err := newRows(session, described, Options{Where: "id % 2 = 0"})
		require.NoError(t, err)
		require.Nil(t, newAhead(where, 1000), "what it leaves out must be passed over")
		columns, err := newRows(session, described, Options{Columns: []string{"payload"}})
		require.NoError(t, err)
		require.Nil(t, newAhead(columns, 1000))
	})
}

// Up to a head whose writers have ended no gap is kept in mind: what was read before that was
// known is read again.
func TestAheadIsOlderThanTheHorizon(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		insert(t, db, "orders", "1")
		late := newConn(t, db)
		onConn(t, late, "START TRANSACTION", "INSERT INTO orders (payload) VALUES ('2')")
		insert(t, db, "orders", "3")
		session, err := db.Session(t.Context(), notify.SessionOptions{})
		require.NoError(t, err)
		defer func() { require.NoError(t, session.Close()) }()
		described, err := table.Describe(t.Context(), db.Pool(), db.Name(), "orders")
		require.NoError(t, err)
		rows, err := newRows(session, described, Options{})
		require.NoError(t, err)
		require.NoError(t, rows.prepare(t.Context()))
		rows.ahead = newAhead(rows, 1000)
		query, args := rows.ahead.Query()
		result, err := db.Pool().Query(query, args...)
		require.NoError(t, err)
		defer func() { require.NoError(t, result.Close()) }()
		require.NoError(t, rows.ahead.Result(result))

		onConn(t, late, "COMMIT")
		out := make(chan batch, 1)
		r := &reader{rows: rows, source: unknown{}, wm: newWatermark(0, idSet{}), out: out, log: testLogger(t), pageRows: 100, limit: 100}
		_, err = r.look(t.Context(), 3)
		require.NoError(t, err)
		require.Equal(t, uint64(3), r.wm.horizon)
		_, err = r.readPage(t.Context())
		require.NoError(t, err)
		require.Equal(t, []uint64{1, 2, 3}, idsOf((<-out).messages))
	})
}
