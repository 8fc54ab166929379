//go:build !linux

package child

// AwaitStopped does nothing here: a process that was sent a SIGSTOP may go on for an instant.
func (p *Process) AwaitStopped() {}
