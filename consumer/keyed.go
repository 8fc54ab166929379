package consumer

// waits reports whether a row that fills a gap is held until the gap settles. In strict order this is always so; with a key
// it is so while there are more gaps than one statement can read, because only a single statement reads all of them at one time.
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

// own separates the member's messages from the ids of those that it passes over.
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
