package notify

import (
	"context"
	"database/sql"
	"reflect"
	"slices"
	"strconv"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/server"
)

// Piggyback is a query that a Waiter sends with its wait, in one packet: the server runs
// it as soon as the wait ends, and whoever waited has its result a round trip
// earlier. It is a statement of its own, so that the wait keeps no table, and is
// prepared in the session.
//
// Its methods are called by the waiter's goroutines, and must not block.
type Piggyback interface {
	// Query is the query, always the same, and its arguments for the wait that begins.
	Query() (query string, args []any)
	// Result is called before the Wait that the wake ends returns, with the rows that the
	// query then gave: what they don't show ends the next Wait. They are in the text
	// protocol. rows is nil, and what was given before is out of date, when a wake has no
	// result. Its error ends the waiter's session.
	Result(rows *sql.Rows) error
}

// Carrier is a Waiter that takes a Piggyback along: a Gate takes one for all that
// share its session, the first; a GTID, while the server's commits are those of the
// topic; an Auto, while it waits by these.
type Carrier interface {
	Waiter
	// Carry is called once, not during a Wait.
	Carry(Piggyback)
}

func (g *gate) carry(p Piggyback) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.carried = append(g.carried, p)
}

func (g *gate) uncarry(p Piggyback) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.carried = slices.DeleteFunc(g.carried, func(other Piggyback) bool { return other == p })
}

// piggyback is what the listener's session takes along, nil for nothing.
func (g *gate) piggyback() Piggyback {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.carried) == 0 {
		return nil
	}
	return g.carried[0]
}

// outdate comes before a wake that brings no result.
func (g *gate) outdate() {
	if p := g.piggyback(); p != nil {
		_ = p.Result(nil)
	}
}

// carrying is what a session takes along.
type carrying struct {
	Piggyback
	prepared  string
	set, sent []any // what its arguments are in the session, nil for unknown, and in the last packet
}

// with is the packet of a wait with the query, and whose it is; nil when that is not to be.
func (c *carrying) with(ctx context.Context, conn *sqlx.Conn, wait string, waitArgs []any) (packet string, args []any, carried Piggyback, err error) {
	if c.Piggyback == nil {
		return wait, waitArgs, nil, nil
	}
	query, values := c.Query()
	if c.prepared != query {
		_, err := conn.ExecContext(ctx, "SET @mqnotify_query = ?; PREPARE mqnotify_carried FROM @mqnotify_query", query)
		if server.Number(err) != 0 { // no table, no privilege: who waited will see
			return wait, waitArgs, nil, nil
		}
		if err != nil {
			return "", nil, nil, err
		}
		c.prepared = query
	}
	var set, using string
	for i := range values {
		name := "@mqnotify_" + strconv.Itoa(i)
		set += ", " + name + " = ?"
		using += ", " + name
	}
	packet = wait + "; EXECUTE mqnotify_carried USING" + using[1:]
	if c.set == nil || !reflect.DeepEqual(c.set, values) { // an idle listener's stay the same
		packet, waitArgs = "SET"+set[1:]+"; "+packet, slices.Concat(values, waitArgs)
	}
	c.set, c.sent = nil, values
	return packet, waitArgs, c.Piggyback, nil
}

// scanResult scans the one row of a result.
func scanResult(rows *sql.Rows, into ...any) error {
	if !rows.Next() {
		if err := rows.Err(); err != nil {
			return err
		}
		return errNoResult
	}
	return rows.Scan(into...)
}

// deliver hands on what a packet has for p beyond the results that were read. A query
// that fails is none of the wait's concern.
func (c *carrying) deliver(rows *sql.Rows, p Piggyback) error {
	c.set = c.sent // or the packet would have ended before
	if rows.NextResultSet() {
		if err := p.Result(rows); err != nil {
			return err
		}
		for rows.Next() { // what it left: Close would not tell an error
		}
		if rows.Err() == nil {
			return nil
		}
	}
	if err := rows.Err(); err != nil && server.Number(err) == 0 {
		return err
	}
	return p.Result(nil)
}
