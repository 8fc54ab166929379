//go:build !linux

package child

// AwaitStopped does nothing here, so a process may run on for a moment after SIGSTOP.
func (p *Process) AwaitStopped() {}
