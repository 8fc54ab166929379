// Package consumer reads a MySQL table past the last id it has seen, and loses no
// row.
//
// # The trouble
//
// AUTO_INCREMENT ids are given out before the commit, so rows become visible out
// of order: a reader of "id > last" passes over whatever commits late. A missing
// id may be in flight, rolled back, skipped, or belong to a statement that has
// taken it and has not inserted the row yet; nothing in the table tells which.
//
// # The settled watermark
//
// The reader hands out what is visible at once, and keeps the set of ids that it
// has seen above the watermark: the id below which nothing can appear any more.
// To move the watermark it
//
//  1. reads the head, the largest visible id;
//  2. then asks the server which transactions may be writing to the table. A
//     transaction that will fill a gap below the head took that id before the head
//     appeared, and its lock on the table before that, so the answer includes it;
//  3. reads the gaps again when one of these transactions has ended, and moves the
//     watermark to the head when all have ended.
//
// A transaction that stays open for an hour thus delays its own rows, and the
// watermark, but no other row and no statement more than one poll a second. A
// backlog needs none of this: what is below a head whose writers have ended is
// read in pages, in order.
//
// Who is writing is known exactly from performance_schema.metadata_locks (MySQL)
// or information_schema.INNODB_TRX (both, with PROCESS), or not at all: then a
// gap is given time. See Options.Writers.
//
// # Delivery
//
// One goroutine reads ahead, one calls the handler, a message at a time or a page.
// With a group, the watermark and the ids above it that were handled are stored,
// so that a restart, or another member, goes on where the group was, gaps
// included. A handler made by Each or Batch gets every row at least once; one made
// by EachTx or BatchTx commits the offset in its own transaction, and what it does
// there is done exactly once.
//
// A group has one active member, by an advisory lock; the others wait for the
// lock in the server and have it as soon as the member's session ends. The members
// of a DB that are active have their locks on one session; a member that waits has a
// session of its own. A member
// that was cut off and does not know it yet can't move the offset: each member
// sets a fence when it begins, and an offset moves only under the fence of the
// one who moves it.
//
// # Connections
//
// The consumers of a DB share a handful of connections, however many topics they read; see
// [Consumer.Run]. The DB's pool opens more while many handlers run at the same time, up to
// its limit (50; db.Pool().SetMaxOpenConns changes it). A consumer uses one connection of the
// pool at a time.
//
// # Members that share a group
//
// With Options.MembersShare all members are active. A message belongs to a partition by the
// hash of its key; each partition has an advisory lock, and an offset and a fence of its
// own. A member's session holds the locks of its partitions, so that they are free as soon
// as it ends, and a lock of its place: who is a member is known by that. Each member has its
// fair share, and lets partitions go, or takes free ones, when members come and go; before
// it lets one go the handler finishes what it has in hand, and the offset is stored. One
// member, the coordinator, checks this once a second, and wakes the others when there
// is something to do; when it dies another one is.
//
// The messages of a key are handled in the order in which they were published: what was
// published after another message's commit comes after it, however their ids became
// visible.
//
// What dies, and what then holds:
//
//   - the reader's connection: the row in hand is finished, then the reader goes
//     on from the stored offset, over a new one;
//   - the connection that holds the group's lock: the handler's context is
//     cancelled with notify.ErrLockLost, and the next member that waits gets the group;
//   - the process: its sessions and so its lock end with it; rows that were handled
//     and not stored (Options.FlushInterval) come again, but to a handler in a
//     transaction, which stored them or did not happen;
//   - the host, without a word: the server gives the lock away 45 s later, and the
//     member, if it lives, counts it as lost before that. What a handler's
//     transaction holds stays locked until the server finds out, by TCP keepalive or
//     the wait_timeout of the pool's connections; that may be the offset's row;
//   - the server: all wait for it to come back.
package consumer
