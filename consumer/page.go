package consumer

import "errors"

// page is a reading's result. What its messages hold shares its memory.
type page struct {
	messages []Message
	full     bool // there may be more
	bytes    int
	arena    []byte
	doubtful bool // a value looks otherwise if its column became JSON, or ceased to be, which the result does not show
}

// errEnough ends the reading of a result.
var errEnough = errors.New("enough")

// keep copies what belongs to the driver until the next row.
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
