package consumer

import (
	"database/sql"
	"database/sql/driver"
	"sync"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/waiting"
)

// ahead takes the row that the wait for its commit returns, which saves the reader a
// statement. For message tables only: the text protocol would change a FLOAT.
type ahead struct {
	topic  string
	wait   string // for the commit of a row
	shares *shares

	mu   sync.Mutex
	page *page  // one row; nil for none
	from uint64 // the id before it
}

var _ waiting.Carrier = (*ahead)(nil)

// newAhead returns nil for rows that can't be taken in this way.
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

// CommitWait implements [waiting.Carrier].
func (a *ahead) CommitWait() string { return a.wait }

// Row implements [waiting.Carrier]. It keeps a row that is the next after an id:
// otherwise others may stand before it.
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
		a.page, a.from = p, after
	}, nil
}

// Outdate implements [waiting.Carrier].
func (a *ahead) Outdate() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.page = nil
}

// take returns the row that came with its commit if it is the next after id, otherwise nil.
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
