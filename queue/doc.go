// Package queue distributes tasks to workers, through ordinary tables.
//
//	q, err := queue.New(db, "mail", queue.Options{})
//	ids, err := q.Enqueue(ctx, queue.Entry{Payload: payload})
//
//	err = q.Work(ctx, queue.WorkerOptions{Concurrency: 4}, func(ctx context.Context, task queue.Task) error { ... })
//
// A message (package consumer) is for all consumers, in order. A task is for one worker,
// whichever is free, and has states of its own:
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
// UPDATE SKIP LOCKED), marks them by their ids, and commits before it begins them. If the
// server has no SKIP LOCKED, it marks them by UPDATE ... LIMIT and reads the rows with its
// token. The transaction that claims the next tasks also stores the outcomes of finished ones;
// one transaction serves all free handlers of a worker. Every call of Work is a worker: one with Concurrency: 4 is cheaper
// than four. A worker that claims few tasks at a time reserves the tasks that it will reach
// in the next 50 ms, and claims each by its id without a search. Other busy workers skip
// reserved tasks; a worker that finds no other task claims them.
// Therefore no two claims have the same task, and no transaction is open while a handler runs.
//
// A claim holds for the visibility timeout, by the server's clock, and the worker renews
// it three times as often. The worker trusts a claim for a tenth less, counted from the moment when it
// sent the statement of the claim. If it could not renew in time, the handler's context
// ends before another worker can have the task. Every claim has a number, Attempt, which
// only grows. Results are stored only for this number, so a late result changes
// nothing, and ID with Attempt is a fencing token for what the handler writes elsewhere.
//
// # What is guaranteed
//
//   - A task whose Enqueue, or whose transaction, was committed is done at least once, or is
//     dead after its retries, whichever worker, connection or server dies (with InnoDB's default
//     durability). FinishTx makes it exactly once for effects in the same
//     database.
//   - If a worker's host vanishes after it has locked tasks and before it has claimed them, other workers skip these
//     for as long as a claim holds, at least 30 s: then the server ends its session.
//   - No two workers have a task at once, as long as handlers end when their contexts do. A
//     process that is stopped for longer than the timeout does not notice; then the fencing
//     token protects.
//   - Unique: of all tasks with the same key, at most one is neither done nor dead.
//   - Ordered: one task at a time, in the order of entry; the next one begins when the one before is
//     done or dead. A failed task delays the others until then. After the task in progress is
//     cancelled, the next one begins when the cancelled handler has returned.
//   - Cancel: the handler's context ends at once. When the handler has returned, the task is dead, and its unique key is free; or
//     ready after Retry, with its key.
//   - Recurring: every due time makes at most one task, however many workers schedule. Times that pass
//     while no worker runs make one task together.
//   - Clocks of clients decide nothing; At is the only time that a client names.
//   - Lapses: a claim that lapses because its worker vanished takes no retry. The task comes back after
//     a wait, at most WorkerOptions.Lapses times, so that a task that kills its workers ends as
//     dead. It takes no task with it that has a retry left: a task that has lapsed is claimed alone, and
//     from its second lapse on also handled alone, while its worker has no other task. A task
//     without a retry left is claimed when its handler begins: it is not begun again after a lapse.
//
// Not guaranteed: an order among the tasks of several workers, beyond that of their claims.
//
// # Waiting
//
// An idle worker sleeps until a task is entered or the next one falls due, by the server's clock. The wake trigger of the
// table mqnotify_task wakes it at the commit of every task, which a plain INSERT may have entered. Without the trigger
// Enqueue calls mqnotify_wake after its commit, and the workers poll at least once a second (package notify). Every 30 s
// an idle worker also searches for tasks without a hint, with one statement.
//
// # Alternatives
//
// For messages that several programs read in order, use a topic (producer, consumer). To do one thing at
// a time without a list, use a lock (guard.Mutex). For many thousand short tasks a second,
// of which some may be lost, use a queue in memory, because this one commits every claim.
package queue
