package producer

import (
	"context"
	"fmt"
)

// short is the most bytes of a statement that goes over the gate's own session: rings
// wait for it.
const short = 64 << 10

// ringing stores the rows over the session that keeps the gate, which rings in the same
// packet, if it can be done so now: see [notify.Gate.Insert]. ok is false, and nothing
// was stored, if not.
func (p *Producer) ringing(ctx context.Context, rows []row) (ids []uint64, ok bool, err error) {
	caps := p.caps.Load()
	if p.gate == nil || caps == nil || !caps.Autocommit {
		return nil, false, nil
	}
	statements := split(p.into, rows, batchLimits{p.batch.rows, min(p.batch.bytes, short)}, caps.MaxAllowedPacket)
	if len(statements) > 1 || statements[0].prepared { // long, or too long
		return nil, false, nil
	}
	query, args := statements[0].sql(p.into)
	stored, ok, err := p.gate.Insert(ctx, len(rows), query, args...)
	if err != nil {
		return nil, false, fmt.Errorf("%w: insert: %w", ErrUnknown, err)
	}
	if !ok {
		return nil, false, nil
	}
	if stored.First == 0 {
		return nil, false, ErrNoID
	}
	return statements[0].ids(stored.First, stored.Step), true, nil
}
