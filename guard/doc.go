// Package guard does a thing once, or one at a time, among processes on any number
// of machines that have a MySQL or MariaDB in common and nothing else. Each guard is
// a known technique; none needs more than ordinary privileges on a table.
//
//	Once       conditional update      at most once for each row or key
//	Claims     unique constraint       one claimant for each key; one successor for each claim
//	Every      timeout lock            at most once in each interval, or calendar period
//	LockRow    SELECT ... FOR UPDATE   one transaction at a time on a row
//	TwoStep    two transactions        the same around a call to something outside
//	Mutex      of one of four kinds:
//	 advisory  GET_LOCK                it lives and dies with a connection
//	 lease     a row that expires      it has a fencing token, and outlives its holder by TTL at most
//	 row       INSERT and DELETE       it is held until it is released
//	 flag      a boolean that flips    the same, with a fencing token
//
// The tables are made by `mqnotify init`; Once works on any
// table, LockRow on those of InnoDB.
//
// # What each guarantees, and what not
//
// Once, Claims and Every let at most one caller through. They do not guarantee at least
// one: the caller that got through may die before it acts, and after an error no caller
// may act, because the key may be used up. The forms for a transaction (TryTx, ClaimTx)
// do work in the same database exactly once. Work that takes time, may fail and has to
// be tried again is a task: see package queue.
//
// LockRow is exact: the server excludes. It costs a transaction that stays open as
// long as the work, so the work is short, and calls nothing outside: for that there is
// TwoStep, whose lease is the row's, whichever unique key each names it by. Where several
// servers take writes a lock on a row is known to one of them alone: there the work has to
// change the row, and what the later one commits is refused.
//
// A mutex excludes as long as its holder heeds the loss: an advisory lock is lost
// with its connection, a lease when it could not be renewed in time. Both cancel the
// context that Held.Context made. A process that is stopped in the middle, or waits
// for a network, can't heed anything: it may still write when another process holds the
// lock. The fencing token (Held.Token) protects against that: the resource that is written
// to has to check it. A transaction in the same database checks it with [Mutex.Fence],
// exactly, also where several servers take writes. Those of kind row and flag are never lost;
// when their holder dies they stay taken until Break is called.
//
// # When to prefer which
//
// For a mutex take an advisory lock, which is the zero value of [MutexOptions]: it waits in the server, first come first served, needs no
// table, and a crash frees it at once. Take a lease where there is no connection to
// keep (a request that begins something and another that ends it), where a fencing
// token is needed, behind a proxy that shares connections, and on Galera or a group with
// several primaries, whose servers each have advisory locks of their own. One of kind row is
// for work that must not go on before a human has looked. docs/guide/choosing.md compares all
// of them in one table.
//
// # Time
//
// Every time that is stored or compared is the server's: UTC_TIMESTAMP in the
// statement that decides. A client's clock may be wrong by hours. A lease's holder
// measures with the machine's monotonic clock how long it may trust, and counts from
// the moment before it asked:
//
//	client   asks ├────────── trusts: TTL - Margin ──────────┤ lost
//	server          takes ├───────────────── TTL ──────────────────┤ others may take
//
// A server whose clock is set forward expires leases too soon, and one that is set back
// too late; a fencing token holds in both cases. A machine that sleeps may have a
// monotonic clock that sleeps too.
//
// # Answers that are lost
//
// Every attempt writes a random mark of its own into the row that it takes. When the
// connection ends before the answer, the guard runs the attempt again on another one, and
// recognises it by the mark. So a lost connection costs no key and no lock. The guard also
// runs it again after deadlocks and lock timeouts. It does not run Reset,
// Forget and Break again after a lost connection: they would free the key or lock a second
// time, when the next caller may have it.
//
// Nothing here depends on whether the connection counts changed or found rows
// (clientFoundRows): each WHERE leaves out what is so already, or the answer is in the
// insert id.
package guard
