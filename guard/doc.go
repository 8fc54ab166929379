// Package guard runs a thing once, or one at a time, among processes on any number
// of machines that share a MySQL or MariaDB server and nothing else. Every guard is
// a known technique and needs only ordinary privileges on a table.
//
//	Once       conditional update      at most once for each row or key
//	Claims     unique constraint       one claimant for each key; one successor for each claim
//	Every      timeout lock            at most once in each interval, or calendar period
//	LockRow    SELECT ... FOR UPDATE   one transaction at a time on a row
//	TwoStep    two transactions        the same around a call to an outside service
//	Mutex      of one of four kinds:
//	 advisory  GET_LOCK                ends with its connection
//	 lease     a row that expires      has a fencing token, and outlives its holder by at most TTL
//	 row       INSERT and DELETE       held until it is released
//	 flag      a boolean that flips    the same, with a fencing token
//
// `mqnotify init` creates the tables. Once works on any
// table, LockRow on InnoDB tables.
//
// # Guarantees
//
// Once, Claims and Every let at most one caller through. They do not guarantee at least
// one: the caller that got through may die before it acts, and after an error no caller
// may act, because the key may be used up. Their forms for a transaction (TryTx, ClaimTx)
// do work in the same database exactly once. Work that takes time, may fail and must
// be tried again is a task: see package queue.
//
// LockRow is exact, because the server excludes other transactions. Its transaction stays open as
// long as the work, so the work must be short and must not call outside services. For such calls there is
// TwoStep, whose lease belongs to the row, by whichever unique key a caller names it. If several
// servers take writes, only one of them knows a lock on a row. The work must then
// change the row, and the server refuses the later commit.
//
// A mutex excludes as long as its holder reacts to the loss. An advisory lock is lost
// with its connection, a lease when it could not be renewed in time. Both cancel the
// context that Held.Context returned. A process that is stopped, or that waits
// for a network, can't react: it may still write while another process holds the
// lock. The fencing token (Held.Token) protects against that: the resource that is written
// to must check it. A transaction in the same database checks it with [Mutex.Fence],
// exactly, even if several servers take writes. The kinds row and flag are never lost;
// when their holder dies they stay taken until Break is called.
//
// # Which mutex
//
// Prefer an advisory lock, the zero value of [MutexOptions]. It waits in the server, first come first served, needs no
// table, and a crash frees it at once. Use a lease if no connection
// lasts as long as the work (one request begins something and another ends it), if you need a fencing
// token, behind a proxy that shares connections, and on Galera or a group with
// several primaries, where every server has advisory locks of its own. Use the kind row
// for work that must not continue before a person has looked. docs/guide/choosing.md compares all
// of them in one table.
//
// # Time
//
// Every time that is stored or compared is the server's: UTC_TIMESTAMP in the
// statement that decides. A client's clock may be wrong by hours. A lease's holder
// measures with the machine's monotonic clock how long it may trust the lease, and counts from
// the moment before it asked:
//
//	client   asks ├────────── trusts: TTL - Margin ──────────┤ lost
//	server          takes ├───────────────── TTL ──────────────────┤ others may take
//
// If a server's clock is set forward, leases expire too early; if it is set back,
// too late. A fencing token protects in both cases. A machine that sleeps may have a
// monotonic clock that stops in the meantime.
//
// # Lost answers
//
// Every attempt writes a random mark of its own into the row that it takes. If the
// connection ends before the answer, the guard repeats the attempt on another one, and
// recognises its own row by the mark. A lost connection therefore costs no key and no lock. The guard also
// repeats the attempt after deadlocks and lock timeouts. It does not repeat Reset,
// Forget and Break after a lost connection: they would free the key or lock a second
// time, when the next caller may have it.
//
// Nothing here depends on whether the connection counts changed or found rows
// (clientFoundRows): every WHERE excludes rows that need no change, or the insert id
// is the answer.
package guard
