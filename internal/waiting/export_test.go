package waiting

// Sleeps reports whether the process has nothing to do but to wait for a hint.
func (l *Listener) Sleeps() bool { return l.waiting.process.poller.asleep.Load() }

// BeforeSending makes the leader's session call f before it sends a statement. Call it before the process leads.
func (l *Listener) BeforeSending(f func()) { l.topic.gate.before.Store(&f) }
