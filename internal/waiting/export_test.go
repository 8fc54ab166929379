package waiting

import "fmt"

// Sleeps reports whether the process has nothing to do but to wait for a hint.
func (l *Listener) Sleeps() bool { return l.waiting.process.poller.asleep.Load() }

func (l *Listener) Dump() string {
	p := l.waiting.process.poller
	return fmt.Sprintf("%+v %+v %v %+v", p.rounds, p.polls, p.triggers, l.topic.gate.place.Load())
}
