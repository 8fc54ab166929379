// Package queue shares tasks out among workers, through ordinary tables.
//
//	q, err := queue.New(db, "mail", queue.Options{})
//	ids, err := q.Enqueue(ctx, queue.Entry{Payload: payload})
//
//	err = q.Work(ctx, queue.WorkerOptions{Concurrency: 4}, func(ctx context.Context, task queue.Task) error { ... })
//
// A message (package consumer) is for all who listen, in order; a task is for one worker,
// whichever is free, and has a life of its own:
//
//	            Delay, At               claim                 nil
//	Enqueue ──▶ scheduled ──▶ ready ──▶ in progress ────────▶ done
//	                            ▲                 │
//	                     wait   │                 │ notify.ErrDead, no retry left, too many lapses, Cancel
//	                  failed ◀──┤                 ▼
//	                    ▲       └────────────── dead (the dead letters; Retry)
//	                    └── an error, a lapse ── in progress
//
// # Claims
//
// Workers compete. A worker selects the first tasks that no other worker has locked (SELECT ... FOR
// UPDATE SKIP LOCKED), marks them by their ids, and commits before it works; where the
// server has no SKIP LOCKED it marks them by UPDATE ... LIMIT and reads what carries its
// token. What it has finished is written down in the same transaction that claims the next,
// one transaction for all handlers of a worker that are free. Each call of Work is a worker: one with Concurrency: 4 is cheaper
// than four of them. One that claims few tasks at a time, one time after the other, reserves those that it comes to
// in the next 50 ms, and claims each by its id without a search; other busy workers begin behind
// them, and who finds nothing else claims them.
// So no two claims have the same task, and no transaction is open while a handler runs.
//
// A claim holds for the visibility timeout, by the server's clock, and the worker renews
// it three times as often. It trusts a claim for a tenth less, counted from the moment the
// statement was sent that made it: when it could not renew in time, the handler's context
// ends before another worker can have the task. Each claim has a number, Attempt, which
// only grows; results are written down for that number alone, so that a late one changes
// nothing, and ID with Attempt is a fencing token for what the handler writes elsewhere.
//
// # What is guaranteed
//
//   - A task whose Enqueue, or whose transaction, was committed is done at least once, or is
//     dead after its retries, whichever worker, connection or server dies (InnoDB's default
//     durability given). Exactly once is what FinishTx gives, for effects in the same
//     database.
//   - What a worker has locked when its host vanishes, and not claimed yet, others pass over for
//     as long as a claim holds, 30 s at least: then the server ends its session.
//   - No task is with two workers at once, as long as handlers end when their contexts do. A
//     process that is stopped for longer than the timeout does not know; then the fencing
//     token decides.
//   - Unique: of tasks with the same key, one at most is neither done nor dead.
//   - Ordered: one task at a time, in the order of entry, the next when the one before is
//     done or dead. One that fails holds up the others until then. When the one in progress is
//     cancelled the next begins when the cancelled handler has returned.
//   - Cancel: the handler's context ends at once. The task is dead, or ready by Retry, and its
//     unique key is free, when the handler has returned.
//   - Recurring: each due time makes one task at most, however many workers schedule. Times that pass
//     while no worker runs make one task together.
//   - Clocks of clients decide nothing; At is the only time that a client names.
//   - Lapses: a claim that lapses, because its worker vanished, takes no retry. The task comes back after
//     a wait, WorkerOptions.Lapses times at most, so that a task that kills its workers is dead in the
//     end. It takes no task with it that has a retry left: a task that has lapsed is claimed alone, and
//     from its second lapse on also handled alone, with nothing else in its worker's hands. A task
//     that has no retry left is claimed when its handler begins: it is not begun again after a lapse.
//
// What is not: an order among the tasks of several workers, beyond that of their claims.
//
// # Waiting
//
// An idle worker sleeps until a task is entered or the next one falls due, by the server's clock. The wake trigger of the
// table mqnotify_task wakes it at the commit of every task, which a plain INSERT may have entered. Without the trigger
// Enqueue calls mqnotify_wake after its commit, and the workers poll at least once a second (package notify). Every 30 s
// an idle worker scans for tasks by itself, one statement.
//
// # When to prefer another
//
// Messages that several programs read, in order: a topic (producer, consumer). One thing at
// a time without any list of them: a lock (guard.Mutex). Many thousand short tasks a second,
// where a lost one is no harm: a queue in memory; this one commits each claim.
package queue
