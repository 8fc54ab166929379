package waiting_test

import "slices"

// steps calls do with every state that one step leads to. It reports whether one of them is a step that happens by
// itself, of a process or of the server. A row is late only in a state without such a step.
func (s state) steps(r rules, do func(state)) (moves bool) {
	step := func(change func(s *state)) {
		n := s
		change(&n)
		do(n.canonical())
		moves = true
	}
	maybe := func(change func(s *state)) {
		n := s
		change(&n)
		do(n.canonical())
	}
	for i := range s.left.followers + 1 {
		s.sessionSteps(int(i), r, step, maybe)
		s.pollerSteps(int(i), r, step)
	}
	for i := range s.writers {
		s.writerSteps(i, r, step, maybe)
	}
	if s.left.slots > 0 {
		maybe(func(s *state) { s.left.slots--; s.tick() })
	}
	return moves
}

func (s *state) tick() {
	for i := range s.sessions {
		s.sessions[i].rested = s.sessions[i].rested || s.sessions[i].step == rest
	}
	for i := range s.writers {
		w := &s.writers[i]
		if w.step == locks {
			w.slot = min(w.slot+1, 2)
		}
		if w.token != none {
			w.token = min(w.token+1, 2)
		}
	}
}

// canonical removes what can no longer matter.
func (s state) canonical() state {
	for i := range s.writers {
		w := &s.writers[i]
		if w.token > 0 && !slices.ContainsFunc(s.writers[:], func(other writer) bool { return other.step == locks && other.slot == w.token }) {
			w.token = none // no writer asks for it again
		}
		if w.step == ended {
			w.row, w.victim, w.slot = 0, none, 0
		}
	}
	for i := range s.sessions { // skip a leader's steps that change nothing
		me := &s.sessions[i]
		if me.step == take && s.phases&bit(0) != 0 {
			me.step = takeNext
		}
	}
	// Exchanging two followers makes no difference.
	if s.left.followers == 2 && s.leader != 1 && s.leader != 2 && less(s.sessions[2], s.sessions[1], s.pollers[2], s.pollers[1]) {
		s.sessions[1], s.sessions[2] = s.sessions[2], s.sessions[1]
		s.pollers[1], s.pollers[2] = s.pollers[2], s.pollers[1]
	}
	return s
}

func less(a, b session, p, q poller) bool {
	key := func(s session, p poller) int {
		k := int(s.step)*8 + int(s.phase+3)
		for _, is := range []bool{s.old, s.killed, s.rested, p.hint} {
			k *= 2
			if is {
				k++
			}
		}
		return (k*4+int(p.step))*4 + int(p.head)
	}
	return key(a, p) < key(b, q)
}

func (s state) sessionSteps(i int, r rules, step, maybe func(func(*state))) {
	me := s.sessions[i]
	if me.step != elect && s.left.deaths > 0 {
		maybe(func(s *state) { s.left.deaths--; s.dies(i, r) })
	}
	then := func(change func(s *state)) {
		step(func(s *state) {
			s.sessions[i].step++
			change(s)
		})
	}
	nothing := func(*state) {}
	if me.killed { // the statement ends at this moment, or after a further part of it
		step(func(s *state) { s.statementEnds(i, r) })
	}
	switch me.step {
	case elect:
		switch {
		case s.leader == none:
			step(func(s *state) {
				s.leader, s.phases = int8(i), 0
				s.sessions[i] = session{step: send}
				if !r.silentStart {
					s.hint(i)
				}
			})
		case s.phases != 0:
			step(func(s *state) {
				phase := int8(oldest)
				for !s.holds(phase) {
					phase++
				}
				s.sessions[i] = session{step: await, phase: phase}
				if !r.silentStart {
					s.hint(i)
				}
			})
		}
	case await:
		if me.old || !s.holds(me.phase) {
			step(func(s *state) {
				s.hint(i)
				if !me.old && s.holds(me.phase+1) {
					s.sessions[i].phase++
				} else {
					s.sessions[i] = session{}
				}
			})
		}
	case send:
		then(func(s *state) { s.wake = false })
	case letLast:
		then(func(s *state) {
			s.phases &^= bit(-1)
			s.sessions[i].killed = false
		})
	case rest:
		if me.rested || r.shortRest {
			then(func(s *state) { s.sessions[i].rested = false })
		} else {
			step((*state).tick)
		}
	case sendWait:
		then(nothing)
	case take:
		if me.killed {
			then(nothing) // MariaDB's GET_LOCK returns NULL, and the statement goes on
		}
		then(func(s *state) {
			s.phases |= bit(0)
		})
	case takeNext:
		if me.killed {
			then(nothing)
		}
		then(func(s *state) { s.phases |= bit(1) })
	case takeWake:
		if me.killed {
			then(nothing)
		}
		then(func(s *state) { s.wake = true })
	case waitsKill:
		if s.left.timeouts > 0 {
			maybe(func(s *state) { s.left.timeouts--; s.statementEnds(i, r) })
		}
	}
}

// statementEnds moves to the leader's next statement. An interrupted broadcast is repeated.
func (s *state) statementEnds(i int, r rules) {
	broadcast := s.sessions[i].step == letLast
	s.sessions[i] = session{step: send}
	s.hint(i)
	if broadcast && !r.noRepeat {
		return
	}
	if broadcast {
		s.sessions[i].step = rest
		return
	}
	s.phases = s.phases>>1 | s.phases&bit(oldest)
	for j := range s.sessions {
		if w := &s.sessions[j]; w.step == await && !w.old {
			w.phase = max(w.phase-1, oldest)
		}
	}
}

func (s state) pollerSteps(i int, r rules, step func(func(*state))) {
	me := s.pollers[i]
	canBeWoken := func(s *state) bool {
		if r.noWakeLock {
			return true
		}
		return s.wake && (r.noPhaseCheck || int(s.leader) != i || s.holds(1))
	}
	nothingAbove := func(s *state) bool { return (s.visible|s.dirty)>>(s.pollers[i].head+1) == 0 }
	one, two := canBeWoken, nothingAbove
	if r.readFirst {
		one, two = nothingAbove, canBeWoken
	}
	switch me.step {
	case reads:
		step(func(s *state) {
			p := &s.pollers[i]
			for row := p.head + 1; row <= s.rows; row++ {
				if s.visible&(1<<row) != 0 {
					p.head = row
				}
			}
			if one(s) {
				p.step = checks
			}
		})
	case checks:
		step(func(s *state) {
			p := &s.pollers[i]
			if p.step = reads; two(s) && !p.hint {
				p.step = asleep
			}
			p.hint = false
		})
	}
}

func (s state) writerSteps(i int, r rules, step, maybe func(func(*state))) {
	me := s.writers[i]
	then := func(change func(s *state, w *writer)) func(*state) {
		return func(s *state) {
			s.writers[i].step++
			change(s, &s.writers[i])
		}
	}
	switch me.step {
	case inserts:
		maybe(then(func(s *state, w *writer) {
			s.rows++
			s.dirty |= 1 << s.rows
			w.row = s.rows
		}))
	case looks:
		step(then(func(s *state, w *writer) {
			w.slot = 0
			switch {
			case s.leader != none && (s.wake || r.noWakeLock):
				w.victim = s.leader
			default:
				w.step = commits
			}
		}))
	case locks:
		step(then(func(s *state, w *writer) {
			for j, other := range s.writers {
				if j != i && other.token == w.slot {
					w.step, w.victim = commits, none
					return
				}
			}
			w.token = w.slot
		}))
	case kills:
		step(then(func(s *state, w *writer) {
			if w.victim != none && s.running(w.victim) {
				s.sessions[w.victim].killed = true
			}
			w.victim = none
		}))
	case commits:
		maybe(then(func(s *state, w *writer) {
			s.dirty &^= 1 << w.row
			s.visible |= 1 << w.row
		}))
		maybe(then(func(s *state, w *writer) { s.dirty &^= 1 << w.row })) // ROLLBACK
	}
}

func (s state) late() bool {
	return slices.ContainsFunc(s.pollers[:s.left.followers+1], func(p poller) bool { return s.visible>>(p.head+1) != 0 })
}
