package core

// ReadsAhead reports whether the idle connection is read.
func (s *Session) ReadsAhead() bool {
	s.quiet.mu.Lock()
	defer s.quiet.mu.Unlock()
	return s.quiet.ahead != nil
}
