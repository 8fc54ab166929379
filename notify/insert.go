package notify

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/server"
)

// Inserted is what an Insert stored.
type Inserted struct {
	First uint64 // the first row's id, 0 when the table gives out none
	Step  uint64 // from one row's id to the next, the session's auto_increment_increment
}

// refusal is for how long no Insert follows one that the server refused: its lock may be
// taken, and every ring would wait for it.
const refusal = 10 * time.Second

// Insert runs an INSERT of so many rows over the session that keeps the gate, and rings
// in the same packet: the server wakes who waits as soon as the rows are committed, and
// the caller's answer is under way at the same time. The caller calls no Ring then.
//
// ok is false when nothing was stored: this process does not keep the gate, its session
// is busy, it rang less than Coalesce ago, or the server refused. The caller then
// inserts over the pool, and rings; that tells what is wrong, too. An error means
// that nobody knows whether the rows are stored. A ctx that ends in the middle costs
// the session.
//
// The session is set up like the pool's, but for READ COMMITTED and lock waits of 2 s
// at most. The statement should be short: rings wait for it.
func (g *Gate) Insert(ctx context.Context, rows int, query string, args ...any) (stored Inserted, ok bool, err error) {
	k := g.gate.keeper()
	if k == nil || !k.turning.TryLock() {
		return stored, false, nil
	}
	defer k.turning.Unlock()
	if k.over || k.turner.next == k.turner.phase || time.Now().Before(k.refused) {
		return stored, false, nil
	}
	g.gate.rang(0)
	sent := false
	err = k.session.ask(ctx, answer, func(ctx context.Context, conn *sqlx.Conn) error {
		if k.session.quiet.over() { // at this moment it can be known that nothing was stored
			return driver.ErrBadConn
		}
		sent = true
		release, names := k.turner.all("RELEASE_LOCK(?)", k.turner.phase)
		query := query + "; SELECT " + release + ", LAST_INSERT_ID(), @@auto_increment_increment"
		if k.failed { // it may have left an id, and no phase was taken since
			query = "DO LAST_INSERT_ID(0); " + query
		}
		k.failed = true
		var released sql.NullInt64
		begun := time.Now()
		if err := conn.QueryRowxContext(ctx, query, slices.Concat(args, names)...).Scan(&released, &stored.First, &stored.Step); err != nil {
			return err
		}
		if released.Int64 == int64(k.turner.lanes) {
			k.turner.phase, k.turned, k.failed = k.turner.next, begun, false
		} else {
			k.session.fail(errNotOurs)
		}
		return nil
	})
	switch {
	case err == nil:
	case !sent || errors.Is(err, driver.ErrBadConn) || errors.Is(err, mysql.ErrPktTooLarge):
		return stored, false, nil
	case server.Number(err) != 0 && !server.Is(err, server.ErrQueryInterrupted) && !server.ConnectionLost(err): // those may have met the ring
		k.refused = time.Now().Add(refusal)
		return stored, false, nil
	default:
		return stored, false, err
	}
	g.gate.rang(stored.First + uint64(rows-1)*stored.Step)
	g.gate.wake() // here
	select {
	case k.inserted <- struct{}{}:
	default:
	}
	return stored, true, nil
}

// inserting is a keeper's part in Inserts.
type inserting struct {
	turning  sync.Mutex    // who has it may turn the ring
	over     bool          // the turner turns no more
	turned   time.Time     // the last ring
	refused  time.Time     // no Insert before
	failed   bool          // the last Insert, as far as is known
	inserted chan struct{} // one slot: an Insert rang
}

// keeper is this process's keeping, nil when it keeps nothing.
func (g *gate) keeper() *keeping {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.kept
}

func (g *gate) keeps(k *keeping) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.kept = k
}
