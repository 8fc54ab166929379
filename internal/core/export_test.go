package core

// ReadsAhead reports whether a goroutine reads from the idle connection.
func (s *Session) ReadsAhead() bool {
	s.socket.mu.Lock()
	defer s.socket.mu.Unlock()
	return s.socket.ahead != nil
}
