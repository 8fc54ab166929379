package notify

import "context"

// Unread is the number of notifications that a receiver may be behind.
const Unread = maxUnread

// Prune deletes old notifications, as the reader does once a minute. There is a receiver.
func Prune(ctx context.Context, db *DB) { listening(db).reader.prune(ctx) }

// MaxGaps is how many missing ids a reader looks for.
const MaxGaps = maxGaps
