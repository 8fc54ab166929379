// Package notify waits and wakes through MySQL's and MariaDB's advisory locks
// (GET_LOCK, RELEASE_LOCK), with ordinary privileges. It knows no rows: a
// notification is a hint, and the durable read is the truth.
//
// # The one fact
//
// GET_LOCK is the only statement that any client may run and that another
// client's action ends, and it is ended only by the release of a lock that was
// held when the wait began. A session's death releases what it held: a crash
// rings.
//
// # Sessions and locks
//
// A [Session] is a connection of its own. The locks it holds live and die with it,
// and it never reconnects. While it is idle its socket is watched, so that an end
// which the server or a proxy brings about is known at once and costs no
// statement; a touch well inside wait_timeout keeps it. A touch is a ping, which is no
// statement to the server either: a session that answers it lives, and holds what it
// held. That is so if it is the session that answers, and no proxy, which the first
// touch finds out: pings count in the session's own Com_admin_commands. Where they
// don't, once a minute, and when other statements were sent since, a touch asks the server
// whether the locks are still the session's own. A session that gets no answer stops
// trusting its locks before the server would give them away: trust counts from
// the moment the last touch began that showed them to be held, less a sixth.
//
// A [Lock] tells its loss through a channel, and through contexts made by
// [Lock.Context], whose cause is ErrLockLost.
//
// # Waiters
//
// A [Waiter] blocks until a topic's head may have moved, and gives up after a
// bound, for the caller to look anyway: a lost hint costs time, never a row.
//
//	Gate       any number of producers and listeners; needs one keeper anywhere
//	GTID       MySQL with gtid_mode=ON: any commit on the server ends the wait
//	Handshake  one producer and one consumer alternate on one lock, as published in 2007
//	Poll       looks at the table's largest id or at the one-row flag, with growing waits
//	Auto       the best of wake trigger, gate, GTID and poll that works, while it works
//
// # The gate
//
// A condition variable in the shape of a futex. Four words:
//
//   - The gate is a topic's: the lock names that belong to it.
//
//   - The keeper is the one session that holds the gate's keeper lock.
//
//   - A phase is a lock that the keeper holds, and listeners wait for. Its name has the
//     keeper's connection id and a number in it, and a lane: each listener has chosen
//     one of 4 at random, and they wake in 4 queues side by side. A phase
//     below means that of all lanes. The keeper holds two, one after the other, and
//     the first of them is what to wait for.
//
//   - To ring is to let that one go; the other is the first then. When the listeners have
//     had their time, the keeper takes the next beside it:
//
//     SELECT RELEASE_LOCK(phase[p])
//     SELECT GET_LOCK(phase[p+2], 0)
//
// A listener's session is parked in one statement, which takes and releases. So the
// server passes the phase down its queue by itself, and a listener that died
// on the way is passed over:
//
//	SELECT IF(SYSDATE(6) <= seen + 200 ms, GET_LOCK(phase[p], 60), 2), RELEASE_LOCK(phase[p]),
//	       which of phase[p], phase[p+1], phase[p+2] the keeper holds now, SYSDATE(6)
//
// A producer's INSERT takes its ring along ([Gate.Insert]): the process that keeps the
// gate sends it over the keeper's session, with the release as the next statement of the
// packet. The rows are committed then, and who waits is woken while the producer's
// answer is under way.
//
// A consumer's rows come with the wake: the packet has their query as a second
// statement, which the server runs when the first has ended ([Piggyback]).
//
// Who holds what, when:
//
//	                    keeper lock   phase       claim        bell
//	nobody there        -             -           -            -
//	listeners alone     a listener    the same    -            -
//	a producer comes    a listener    the same    the producer the producer
//	its claim is seen   the producer  the same    the same     the same
//	another one comes   the first     the same    the first    the other
//
// A process has one session for a topic's gate while it listens, whether that is
// parked or keeps the gate, and however many goroutines wait. A process that publishes
// has one too. It claims the gate, if no other producer does, and the keeper, a mere
// listener, hands over: then a publish is one hop from its listeners. A second
// producer has a bell, a ring of its own on which the keeper waits with a session,
// as a listener does on the gate: two hops. Writers that know nothing of all this are
// seen by the keeper's look, one statement for all listeners: the table's largest id,
// the flag's counter, who claims the gate, who has a bell. It looks again after 10 ms
// to 1 s. Where commits can be waited for (GTIDs) it sleeps until the next one instead,
// and looks each 45 s for what comes without: a bell, a claim, read_only. Who has a bell
// or a claim makes a commit for it, a knock, by setting a flag, if it may: else its first
// row does. A keeper does not sleep while it can't wait for commits, nor for a topic that
// is no table, whose rings come without one; nor any more when a row came that no commit
// had told of (sql_log_bin=0, another origin).
//
// # Why no wake is lost
//
// The order is what makes it safe. A listener first knows a phase that the keeper
// holds, then reads rows, then waits for that phase. A row that its reading missed
// was committed later; its ring comes later still, and lets that phase go, or a later
// ring has already: the wait ends at once. After an ordinary wake the next phase is
// known from the same statement, since it was held before the last was let go. When
// it is not (the listener was slow, or the keeper changed), the listener finds the
// phase, and tells its readers to read once more after that.
//
// What could break this:
//
//   - Wrap-around: phases are numbered modulo 256, and after 254 rings between knowing
//     and waiting the same name is held again. Rings are at least 1 ms apart, so that
//     takes 254 ms; what was seen more than 200 ms ago, by the server's clock and in the
//     very statement that waits, is not waited for. What is left is a stall of the
//     server of 54 ms inside that statement, together with rings that stop at exactly
//     that phase; then the reader's bound ends the wait. (TestGateStressShowsLoss: with 2
//     phases, or the order reversed, wakes are lost.)
//   - The second phase taken for the first: who waits on it sleeps through a ring. A
//     listener that was woken knows that the first is past the one it waited for, and
//     takes the nearest that is held. One that searches asks again for those before
//     what it found, which were taken earlier and can only have been let go since.
//   - A new keeper with an old keeper's phase: no, its connection id is in the name.
//   - Two keepers: no, the server grants the keeper lock once. A keeper that was cut
//     off and does not know it yet rings nobody; its listeners were woken by its end.
//   - A commit between two keepers: a new keeper takes its phase, looks, waits on the
//     bells, and then rings once, for whatever came before.
//   - A bell that rings while its producer is not yet known: the keeper rings once
//     when it has begun to wait on a bell that was rung, and once for a bell that was
//     gone before that, and the producer rings until it is heard.
//   - A phase that somebody keeps: a listener killed between taking and releasing. The
//     keeper passes over it, and listeners look as far.
//
// # Who dies, and what then happens
//
//   - A listener: nothing. The server ends its wait within a second.
//   - The keeper's process, or its session by KILL: the server frees its locks at
//     once, every listener wakes, and tries to become the keeper, one does: some
//     10 ms. A producer claims the gate with its next publish.
//   - The keeper's host, without a word, or its process, stopped: the server closes the
//     session after KeeperTimeout, 10 s. Until then rings from bells, and what looks
//     would find, wait.
//   - A producer: its bell falls, which rings.
//   - The server: all sessions end, and all reconnect by themselves.
//   - The pool, the table, the privilege to read it: a keeper that can't look leaves
//     the keeping to others.
//
// Nobody holds a lock on a table while it waits, and no wait is in a
// transaction: ALTER TABLE and purge go on. A keeper's look that waits behind an ALTER
// TABLE gives up after 2 s and comes again. So does an INSERT that takes its ring along:
// it goes over the pool then, and no other follows it over the keeper's session for
// 10 s, since rings wait meanwhile.
//
// # What it costs
//
// A parked listener: a packet each 90 s. A wake: one, with the rows that it is for. A ring:
// a statement, whatever it announces, none with an INSERT that takes it along, and another
// after it; rings are coalesced, and no publish waits for one. A keeper: its looks, one a
// second when nothing happens, or three statements a minute where it sleeps until a commit, and
// a question for its locks each minute. Measured on 2 cores
// (docs/measurements.md): the ring wakes a listener in about the time of a bare lock
// hand-over, 0.2 ms, and the last of 1000 after 55 ms.
//
// # Where it can't work
//
// Advisory locks are a server's own. On Galera, with several primaries, on a read-only
// replica the gate returns ErrNoGate, and behind a proxy that deals a connection's
// statements out to several sessions, which it finds by CONNECTION_ID() in its
// statements and by another session's view of its lock. Auto then waits by other means.
package notify
