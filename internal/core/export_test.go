package core

// ReadsAhead reports whether the idle connection is read.
func (s *Session) ReadsAhead() bool {
	s.socket.mu.Lock()
	defer s.socket.mu.Unlock()
	return s.socket.ahead != nil
}
