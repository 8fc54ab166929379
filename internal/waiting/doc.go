// Package waiting wakes the processes that wait for rows of a table when they should read it. Every writer wakes them in the
// same way: our own producer, PHP, the mysql client, a transaction that commits seconds later.
//
// # The idea
//
// A trigger on the table runs KILL QUERY against one session that waits, the leader, and the server ends that session's
// statement at once. The leader passes the hint on to the other processes by releasing an advisory lock that they wait
// for. A process that gets a hint reads. If it finds nothing, a transaction is about to commit, and the process waits
// for that commit on the row itself.
//
// # Words
//
//   - A hint is a sign that rows of a topic may have changed. It carries no data. It may come without a change, and it may
//     come before the commit.
//   - A gate is the set of advisory locks that the listening processes of some topics share.
//   - The leader is the session that holds the gate's leader lock. The other sessions of the gate are followers. Each
//     process has one session for a gate.
//   - A phase is a lock that the leader holds and the followers wait for. Phases have numbers, and the leader's
//     connection id is part of their names. The release of a phase is a broadcast.
//   - The wake lock is held by the leader while a KILL may end its wait.
//   - A token is a lock with the number of a slot of time in its name. Only the writer that gets a slot's token sends a
//     KILL in that slot, and so the leader is killed at most once in a slot.
//   - The poller of a process reads after hints. A process has one for each database.
//
// # Who does what
//
//	writer's trigger      leader                          follower             poller of each process
//	-----------------     ----------------------------    -----------------    ------------------------------
//	                      3 rest for a slot or longer     wait for phase p     sleep until a hint
//	row is in the table   4 take phases p, p+1
//	wake lock held?       5 take the wake lock
//	take the token        6 wait
//	KILL QUERY leader --> (the statement ends)
//	                      1 release the wake lock
//	COMMIT                2 release phase p          -->  phase p is free -->  hint: read; wait for the commit
//	                        p = p+1, and 3 again          wait for phase p+1   check, and sleep again
//
// The leader sends two statements in turn. The first one is the broadcast, steps 1 and 2, which it repeats until no
// KILL interrupts it. The second one is the wait, steps 4 to 6. It takes only the locks that the session does not hold, and so
// completes what a KILL in the middle of the previous wait left undone.
//
// A poller sleeps only after a round of two checks in this order: first, the wake lock is held (and, in the leader's own
// process, the phase p+1 that the leader's last statement takes); then, no row, committed or not, is above the head.
// Until a round passes both checks it reads again after growing waits.
//
// # Why no row is late
//
// A row's trigger runs after the row is in the table and before its commit. If the wake lock is held then, the KILL of
// this writer, or of the writer that has the slot's token, ends the leader's wait. If it is not held, or if the KILL
// arrives between two statements of the leader, then every process first sees the wake lock held, and after that
// no row above the head, before it sleeps. That check sees a row that was in the table; the writer of a later row finds the wake lock.
// A writer that does not get the token may rely on the other writer's KILL, because the leader's rest is no shorter than a
// slot: within one slot the wake lock is not taken a second time.
//
// # Failures
//
//   - A follower dies: the server ends its wait, and no other session waits for a follower.
//   - The leader dies: the server releases its locks, every follower's wait ends, and one of them becomes the leader. The
//     start of a process, a new connection and an election count as hints.
//   - A writer dies: its row is rolled back, or its KILL was sent. A hint without a change costs a read.
//
// # Evidence
//
// TestModel walks through every interleaving of the steps of a leader, followers and two writers, up to a bound. It
// finds a late row if any one of the rules is removed: the wake lock, the check of the phase, the order of the
// checks, the repeated broadcast, start and election as hints, and a rest that is no shorter than a slot.
package waiting
