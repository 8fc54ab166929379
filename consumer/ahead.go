package consumer

import (
	"database/sql"
	"database/sql/driver"
	"sync"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/waiting"
)

// ahead keeps the row that the commit wait returned, which saves the reader a statement. It is for message tables only, because
// the text protocol of this wait would change a FLOAT.
type ahead struct {
	topic  string
	wait   string // the statement that waits for the commit of a row
	shares *shares

	mu   sync.Mutex
	page *page  // one row, or nil
	from uint64 // the id before the row's
}

var _ waiting.Carrier = (*ahead)(nil)

// newAhead returns nil if the rows are not of a message table, or are filtered.
func newAhead(r *rows) *ahead {
	if !r.messages || r.where != "" {
		return nil
	}
	table := ident.Quote(r.table.Name)
	return &ahead{
		topic: r.table.Name, shares: r.shares,
		wait: "SELECT " + r.columns + " FROM " + table + " WHERE " + r.key + " = (SELECT MAX(" + r.key + ") FROM " + table +
			" WHERE " + r.key + " > ?) LOCK IN SHARE MODE",
	}
}

// CommitWait implements [waiting.Carrier].
func (a *ahead) CommitWait() string { return a.wait }

// Row implements [waiting.Carrier]. It keeps only a row whose id follows after directly, because rows before another one may be
// missing.
func (a *ahead) Row(after uint64, result *sql.Rows) (id uint64, keep func(), err error) {
	columns := 4
	if a.shares != nil {
		columns = 5
	}
	raw, values, into := make([]sql.RawBytes, columns), make([]driver.Value, columns), make([]any, columns)
	for i := range raw {
		into[i] = &raw[i]
	}
	if err := result.Scan(into...); err != nil {
		return 0, nil, err
	}
	for i := range raw {
		if raw[i] != nil {
			values[i] = []byte(raw[i])
		}
	}
	p := &page{}
	m, err := message(a.topic, values, p, a.shares)
	if err != nil || m.ID != after+1 {
		return m.ID, nil, err
	}
	p.messages = append(p.messages, m)
	return m.ID, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.page, a.from = p, after
	}, nil
}

// Outdate implements [waiting.Carrier].
func (a *ahead) Outdate() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.page = nil
}

// take returns the kept row if its id follows id directly, otherwise nil.
func (a *ahead) take(id uint64) *page {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.page
	if a.page = nil; a.from != id {
		return nil
	}
	return p
}
