package waiting_test

// This file models the protocol: a leader and its followers, each with the poller of its process, two writers, and the
// locks and kills of the server. It walks through every interleaving of their steps and looks for a late row: a
// committed row above the head of a process that sleeps, while no pending step wakes the process. With each rule
// of the protocol removed, there must be a late row.
//
// Phases are counted from the leader's, and slots from now, so that states that differ only in these numbers are one state.

// rules are the rules that can be removed.
type rules struct {
	noWakeLock   bool // a writer kills the leader whenever there is one, and no process looks for the wake lock
	noPhaseCheck bool // the leader's process does not look for the phase that the last statement takes
	readFirst    bool // a process looks for rows first and for the wake lock after that
	noRepeat     bool // the leader does not repeat a broadcast that was interrupted
	silentStart  bool // a start, a new connection and an election are no hints
	shortRest    bool // the leader's rest is shorter than the slot of a token
}

// budget bounds the search: the number of followers, and how often events that may happen at any time still happen.
type budget struct {
	followers int8
	deaths    int8 // of sessions
	timeouts  int8 // of the leader's wait
	slots     int8 // that pass, besides those that the leader rests for
}

const (
	processes = 3 // at most
	writers   = 2
	none      = -1
)

// The steps of a session. The name of a leader's step is what it does next.
const (
	elect     = iota // take the leader lock, or else look for a phase of the leader
	await            // a follower waits for a phase
	send             // a leader sends the statement of the broadcast, which first releases the wake lock
	letLast          // release the last phase
	rest             // wait for the next slot
	sendWait         // send the statement that waits
	take             // take the statement's phase, unless the session holds it
	takeNext         // take the phase after that, unless the session holds it
	takeWake         // take the wake lock
	waitsKill        // wait for a KILL
)

// The steps of a poller.
const (
	asleep = iota
	reads  // reads, and makes the first of its two checks
	checks // makes the second one
)

// The steps of a writer.
const (
	inserts = iota
	looks   // the trigger looks for the leader and computes the token's name
	locks   // the trigger tries to take the token
	kills
	commits
	ended
)

type session struct {
	step   int8
	phase  int8 // that a follower waits for, counted from the leader's
	old    bool // that phase belongs to a leader that is gone
	killed bool // a KILL has come during the statement
	rested bool // a slot has passed since the rest began
}

type poller struct {
	step int8
	hint bool // has come since the read
	head int8 // the largest row that it has read
}

type writer struct {
	step   int8
	row    int8
	victim int8 // the process whose session it kills, if that is still the same session
	slot   int8 // of the token that it asks for, in slots before now
	token  int8 // the slot of the token that it holds, or none
}

// state is a map key, so it must be comparable.
type state struct {
	sessions [processes]session
	pollers  [processes]poller
	writers  [writers]writer
	leader   int8  // the process whose session holds the leader lock, or none
	wake     bool  // the leader holds the wake lock
	phases   uint8 // the phases that the leader holds: bit 0 is the one of three statements ago, bit 3 that of this statement
	rows     int8  // how many ids were given out
	visible  uint8 // the rows that are committed, a bit for each
	dirty    uint8 // the rows that are not, a bit for each
	left     budget
}

const oldest = -3

func bit(phase int8) uint8 { return 1 << (phase - oldest) }

func (s *state) holds(phase int8) bool {
	return phase >= oldest && phase <= 1 && s.phases&bit(phase) != 0
}

// running reports whether a leader's statement runs, which a KILL ends.
func (s *state) running(process int8) bool {
	step := s.sessions[process].step
	return step > send && step != rest && step != sendWait
}

func (s *state) hint(process int) {
	switch p := &s.pollers[process]; p.step {
	case asleep:
		p.step = reads
	case checks:
		p.hint = true
	}
}

// dies ends a session: the server frees its locks, and the process reconnects.
func (s *state) dies(i int, r rules) {
	if int(s.leader) == i {
		s.leader, s.phases, s.wake = none, 0, false
		for j := range s.sessions {
			s.sessions[j].old = s.sessions[j].step == await
		}
	}
	s.sessions[i] = session{}
	for j := range s.writers {
		if int(s.writers[j].victim) == i {
			s.writers[j].victim = none
		}
	}
	if !r.silentStart {
		s.hint(i)
	}
}

// first is the state in which the first leader has just been elected.
func first(r rules, b budget) state {
	s := state{leader: 0, left: b}
	s.sessions[0].step = send
	for i := range s.pollers {
		s.pollers[i].step = reads
		if r.silentStart {
			s.pollers[i].step = asleep
		}
	}
	for i := range s.writers {
		s.writers[i].token, s.writers[i].victim = none, none
	}
	return s
}
