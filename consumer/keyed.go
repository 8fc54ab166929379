package consumer

// waits reports whether a row that fills a gap is held until the gap settles: always in strict order;
// by key while there are more gaps than one statement can read, because only one statement reads them all at one time.
func (r *reader) waits() bool {
	if r.strict || !r.keyed {
		return r.strict
	}
	n := 0
	for range r.wm.seen.Missing(r.wm.settled, r.wm.frontier) {
		if n++; n > maxRanges {
			return true
		}
	}
	return false
}

// own takes the messages apart that are passed over.
func own(messages []Message) (own []Message, passedIDs []uint64) {
	own = messages[:0:0]
	for _, m := range messages {
		if m.part == passed {
			passedIDs = append(passedIDs, m.ID)
		} else {
			own = append(own, m)
		}
	}
	return own, passedIDs
}
