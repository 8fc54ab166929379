package consumer

import (
	"database/sql"
	"database/sql/driver"
	"errors"
	"sync"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/notify"
)

// aheadRows bounds a page that is read ahead: a waiting reader has little to catch up with.
const aheadRows = 100

// ahead reads pages ahead of the reader: the waiter's session does, in the packet in
// which it wakes. For message tables alone: the text protocol would change a FLOAT.
type ahead struct {
	topic  string
	query  string
	wait   string // for the commit of a row
	shares *shares

	mu    sync.Mutex
	after uint64 // where the next page begins
	limit int
	asked struct { // what the query under way asks for: the reader may have gone elsewhere since
		after uint64
		limit int
	}
	page *page  // nil for none
	from uint64 // where it began
	// single says that the page is the one row of a commit wait.
	single bool
}

var _ notify.Piggyback = (*ahead)(nil)

// newAhead is nil for rows that can't be read ahead.
func newAhead(r *rows, limit int) *ahead {
	if !r.messages || r.where != "" {
		return nil
	}
	table := ident.Quote(r.table.Name)
	return &ahead{
		wait: "SELECT " + r.columns + " FROM " + table + " WHERE " + r.key + " = (SELECT MAX(" + r.key + ") FROM " + table +
			" WHERE " + r.key + " > ?) LOCK IN SHARE MODE",
		topic: r.table.Name, shares: r.shares, limit: min(limit, aheadRows),
		// With the index named, the server does not look for a better one; that saves a tenth of the wake's time.
		query: "SELECT " + r.columns + " FROM " + ident.Quote(r.table.Name) + " FORCE INDEX (PRIMARY)" +
			" WHERE " + r.key + " > ? ORDER BY " + r.key + " LIMIT ?",
	}
}

// Query implements [notify.Piggyback].
func (a *ahead) Query() (query string, args []any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked.after, a.asked.limit = a.after, a.limit
	return a.query, []any{a.after, a.limit}
}

// Result implements [notify.Piggyback].
func (a *ahead) Result(result *sql.Rows) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.page = nil
	if result == nil {
		return nil
	}
	p := &page{}
	scan := a.scanner()
	for result.Next() {
		m, err := scan(result, p)
		if err == nil {
			err = p.add(m, a.asked.limit)
		}
		if errors.Is(err, errEnough) {
			break
		}
		if err != nil {
			return err
		}
	}
	a.page, a.from, a.single = p, a.asked.after, false
	if n := len(p.messages); n > 0 {
		a.after = p.messages[n-1].ID // the session waits again before the reader has these
	}
	return nil
}

// scanner returns a function that reads a row into a page.
func (a *ahead) scanner() func(result *sql.Rows, p *page) (Message, error) {
	columns := 4
	if a.shares != nil {
		columns = 5
	}
	raw, values, into := make([]sql.RawBytes, columns), make([]driver.Value, columns), make([]any, columns)
	for i := range raw {
		into[i] = &raw[i]
	}
	return func(result *sql.Rows, p *page) (Message, error) {
		if err := result.Scan(into...); err != nil {
			return Message{}, err
		}
		for i := range raw {
			if values[i] = nil; raw[i] != nil {
				values[i] = []byte(raw[i])
			}
		}
		return message(a.topic, values, p, a.shares)
	}
}

// CommitWait implements the interface of a carrier of the waiting package.
func (a *ahead) CommitWait() string { return a.wait }

// Row hands over a row that is the next after an id. Otherwise others may stand before it.
func (a *ahead) Row(after uint64, result *sql.Rows) (id uint64, keep func(), err error) {
	p := &page{}
	m, err := a.scanner()(result, p)
	if err != nil || m.ID != after+1 {
		return m.ID, nil, err
	}
	p.messages = append(p.messages, m)
	return m.ID, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.page, a.from, a.single = p, after, true
	}, nil
}

// Outdate forgets a row that was handed over.
func (a *ahead) Outdate() { _ = a.Result(nil) }

// take is what came ahead of a reader that wants the rows past id; nil for nothing.
func (a *ahead) take(id uint64) *page {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.page
	a.page = nil
	if p == nil || a.from > id {
		return nil
	}
	for len(p.messages) > 0 && p.messages[0].ID <= id {
		p.messages = p.messages[1:]
	}
	if a.single && len(p.messages) == 0 { // it does not tell whether there is more
		return nil
	}
	return p
}

// follow tells where the reader is, and how many rows it would read at once.
func (a *ahead) follow(id uint64, limit int) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.page == nil {
		a.after, a.limit = id, min(limit, aheadRows)
	}
}
