// Package consumer reads the rows of a table in the order of its key and loses none of them.
//
// # The problem
//
// MySQL assigns an AUTO_INCREMENT id when a statement runs, not when its transaction commits. Rows therefore become visible out of
// order: a reader that asks for "id > last" skips every row that commits late. The table alone can't explain a missing id. Its
// transaction may still be open, it may have rolled back, the server may have skipped the id, or a statement may have taken the id
// and not inserted the row yet.
//
// # The settled watermark
//
// The reader hands out every row as soon as it is visible. It also keeps a watermark, the id up to which no further row can appear,
// and the set of ids above it that it has read. A missing id above the watermark is a gap. The reader settles gaps in three steps:
//
//  1. It reads the head, the largest visible id.
//  2. It asks the server which transactions may be writing to the table. A transaction that will fill a gap below the head took its
//     id, and before that its lock on the table, before the head became visible. The answer therefore includes it.
//  3. When one of these transactions has ended, the reader reads the gaps again. When all of them have ended, it moves the
//     watermark to the head.
//
// A transaction that stays open for an hour delays its own rows and the watermark. It delays no other row, and costs at most one
// poll a second. A backlog needs none of this: below a head whose writers have ended, the reader reads pages in order.
//
// The reader sees the open writers exactly in performance_schema.metadata_locks (MySQL) or information_schema.INNODB_TRX (both
// servers, with PROCESS). If it can read neither, a gap counts as settled after a time. See Options.Writers.
//
// # Delivery
//
// One goroutine reads ahead. Another calls the handler with one message or with a page. With a group, the server stores the watermark
// and the handled ids above it, so that a restarted process or another member continues where the group was, gaps
// included. A handler made by Each or Batch gets every row at least once. A handler made by EachTx or BatchTx commits the offset in
// its own transaction, so its statements there take effect exactly once.
//
// A group has one active member, which holds an advisory lock. The others wait for the lock in the server and get it as soon as the
// active member's session ends. The active members of a DB hold their locks on one session; a member that waits has a session of its
// own. A member that was cut off and does not know it yet can't move the offset: every member sets a fence when it begins, and only
// the member that knows the current fence can move the offset.
//
// # Connections
//
// The consumers of a DB share a few connections, however many topics they read; see [Consumer.Run]. The DB's pool opens more
// while many handlers run at the same time, up to its limit (50; db.Pool().SetMaxOpenConns changes it). A consumer uses one
// connection of the pool at a time.
//
// # Members that share a group
//
// With Options.MembersShare all members are active. The hash of a message's key determines its partition. Every partition has an
// advisory lock, and an offset and a fence of its own. A member's session holds the locks of its partitions, so that they are free as
// soon as it ends, and the lock of a slot, which shows that it is a member. Every member has its fair share of the partitions. It
// releases some, or takes free ones, when members join and leave. Before it releases one, the handler finishes its current messages
// and the offset is stored. One member, the coordinator, checks the shares once a second and wakes the others when they must
// change; when it dies, another member becomes the coordinator.
//
// The messages of a key are handled in the order in which they were published: a message that was published after another one's
// commit comes after it, in whatever order their ids became visible.
//
// # Failures
//
//   - The reader's connection is lost: the handler finishes its current row. The reader then continues from the stored offset, over
//     a new connection.
//   - The connection that holds the group's lock is lost: the handler's context is cancelled with notify.ErrLockLost, and the next
//     member that waits gets the group.
//   - The process dies: its sessions, and so its lock, end with it. Rows that were handled but not stored (Options.FlushInterval) are
//     delivered again, except to a handler in a transaction, which has either stored them or had no effect.
//   - The host dies or is cut off: the server gives the lock away after 45 s. If the member still lives, it counts the lock as lost
//     before that. The locks of a handler's transaction, perhaps on the offset's row, remain until the server notices, by TCP
//     keepalive or the wait_timeout of the pool's connections.
//   - The server stops: all members wait until it is back.
package consumer
