package notify

import "context"

// ReadsAhead reports whether the idle connection is read.
func (s *Session) ReadsAhead() bool {
	s.quiet.mu.Lock()
	defer s.quiet.mu.Unlock()
	return s.quiet.ahead != nil
}

// Unread is the number of notifications that a receiver may be behind.
const Unread = maxUnread

// Prune deletes old notifications, as the reader does once a minute. There is a receiver.
func (db *DB) Prune(ctx context.Context) { db.notifications.reader.prune(ctx) }

// MaxGaps is how many missing ids a reader looks for.
const MaxGaps = maxGaps
