package consumer

import "errors"

// page is the result of one read. Its messages share its memory.
type page struct {
	messages []Message
	full     bool // there may be more rows
	bytes    int
	arena    []byte
	doubtful bool // the encoding of a value depends on whether its column is JSON, which may have changed and is not in the result
}

// errEnough ends the reading of a result because the page is full.
var errEnough = errors.New("enough")

// keep copies a value that the driver overwrites at the next row.
func (p *page) keep(value []byte) []byte {
	p.bytes += len(value)
	if p.arena == nil || len(p.arena)+len(value) > cap(p.arena) {
		p.arena = make([]byte, 0, max(64<<10, len(value)))
	}
	from := len(p.arena)
	p.arena = append(p.arena, value...)
	return p.arena[from:len(p.arena):len(p.arena)]
}

func (p *page) add(m Message, limit int) error {
	p.messages = append(p.messages, m)
	if p.full = p.bytes >= pageBytes || len(p.messages) == limit; p.full {
		return errEnough
	}
	return nil
}
