package notify

import (
	"context"
	"time"
)

func init() { readLimit, awaitLimit = 30*time.Second, 10*time.Second }

// Unread is how many notifications a receiver may be behind.
const Unread = maxUnread

// Prune deletes old notifications, as the reader does once a minute. There must be a receiver.
func Prune(ctx context.Context, db *DB) { listening(db).reader.prune(ctx) }

// MaxGaps is the maximum number of ranges of missing ids that a reader keeps.
const MaxGaps = maxGaps
