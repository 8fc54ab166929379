package queue

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"math"
	mathrand "math/rand/v2"
	"os"
	"strings"
	"time"
)

// The values of WorkerOptions.Claim.
const (
	claimSkipLocked = "skip-locked"
	claimUpdate     = "update"
)

// WorkerOptions are the settings of Queue.Work. The zero value is ready for use.
type WorkerOptions struct {
	// Concurrency is how many tasks are handled at the same time. 0 means 1.
	Concurrency int
	// Batch is the maximum number of tasks that are claimed together; those without a free handler
	// wait in the worker, claimed. Large batches are for short tasks. A task that has no retry left,
	// or whose claim has lapsed before, is claimed only when a handler is free. 0 means
	// Concurrency; at most 10,000.
	Batch int
	// Visibility is how long a claim holds without being renewed, by the server's
	// clock: after that, a task whose worker has vanished goes to another one. The worker
	// renews it three times as often, for as long as the handler runs. 0 means 30 s;
	// the minimum is 100 ms.
	Visibility time.Duration
	// Backoff returns how long a task waits after an attempt has failed. attempt is 1 for the first. It is the number of claims on
	// the task without those that lapsed. Claims that lapsed before Retry was called for the task count, and so do claims that a
	// worker gave back before a handler began.
	// nil means about 1 s, 2 s, 4 s ... up to an hour, half to one and a half times as long.
	Backoff func(attempt int) time.Duration
	// Lapses is how often a task comes back after its claim has lapsed because the worker
	// vanished: after about 1 s, 2 s, 4 s ..., half to one and a half times as long. If its claim
	// lapses once more, the task is dead. A lapse takes no retry, but a task without a retry left is dead
	// when it lapses. 0 means 5; the minimum is 2.
	Lapses int
	// Owner is the worker's name in the task list, of which the first 17 characters count, in ASCII.
	// Empty means host:pid. The worker adds a random text that makes it unique.
	Owner string
	// Claim is how the worker claims tasks. "skip-locked" selects tasks that no other session has locked (SELECT
	// ... FOR UPDATE SKIP LOCKED; MySQL 8.0.1, MariaDB 10.6), and marks them by their ids. "update" marks tasks by UPDATE ...
	// ORDER BY ... LIMIT, and reads the marked ones; workers then wait for each other, and sometimes deadlock, which is
	// retried. Empty, the default, means "skip-locked" if the server supports it.
	Claim string
	// Discard deletes tasks that are done, instead of keeping them, except those that a
	// handler has finished itself (FinishTx): Prune deletes these.
	Discard bool
	// PollInterval is how often an idle worker polls for tasks, in case a hint was lost.
	// 0 means 30 s. After an idle minute it closes its connection, and does not poll until the query that it
	// waits on has a new value, which it notices within 70 s without a hint.
	PollInterval time.Duration
	// HandlerTimeout ends the context of a handler's call; the task then fails unless the handler
	// returns nil. The handler counts as running until it returns. 0 means never.
	HandlerTimeout time.Duration
	// StopTimeout is how long handlers may continue after the end of Work's context; then
	// their contexts end. Work returns when they have returned. 0 means 30 s, a negative value not at all.
	StopTimeout time.Duration
	// Count, if not nil, is called for metrics, sometimes by several goroutines at once: with "done" for a task that was handled,
	// "failed" for an attempt that failed and is tried again, "dead" for a task that failed for the last time, "lost" for an
	// outcome that came after the claim was lost, and "retried" for a transaction that is repeated after a deadlock or a
	// lock wait timeout. It must not block.
	Count func(what string)
}

const (
	leastVisibility = 100 * time.Millisecond
	defaultLapses   = 5
	mostAtOnce      = 10_000
)

func (o WorkerOptions) withDefaults() (WorkerOptions, error) {
	switch {
	case o.Concurrency < 0 || o.Concurrency > mostAtOnce:
		return o, optionsf("Concurrency %d: from 1 to %d", o.Concurrency, mostAtOnce)
	case o.Batch < 0 || o.Batch > mostAtOnce:
		return o, optionsf("Batch %d: from 1 to %d", o.Batch, mostAtOnce)
	case o.Visibility != 0 && o.Visibility < leastVisibility || o.Visibility > maxDelay:
		return o, optionsf("Visibility %v: from %v to 100 years", o.Visibility, leastVisibility)
	case o.Lapses != 0 && o.Lapses < aloneFrom:
		return o, optionsf("Lapses %d: %d or more, because a task may lapse that often with one that kills its workers", o.Lapses, aloneFrom)
	case o.HandlerTimeout < 0:
		return o, optionsf("HandlerTimeout %v: 0 or more", o.HandlerTimeout)
	case o.PollInterval < 0:
		return o, optionsf("PollInterval %v: more than 0", o.PollInterval)
	case o.Claim != "" && o.Claim != claimSkipLocked && o.Claim != claimUpdate:
		return o, optionsf("Claim %q: %q or %q", o.Claim, claimSkipLocked, claimUpdate)
	}
	if o.Owner == "" {
		host, _ := os.Hostname() // the name is for people, so an empty one does no harm
		o.Owner = fmt.Sprintf("%.9s:%d", host, os.Getpid())
	}
	o.Owner = shortOwner(o.Owner) + "-" + strings.ToLower(rand.Text()[:6])
	o.Concurrency = cmp.Or(o.Concurrency, 1)
	o.Batch = cmp.Or(o.Batch, o.Concurrency)
	o.Visibility = cmp.Or(o.Visibility, 30*time.Second)
	o.Lapses = cmp.Or(o.Lapses, defaultLapses)
	o.PollInterval = cmp.Or(o.PollInterval, 30*time.Second)
	o.StopTimeout = max(0, cmp.Or(o.StopTimeout, 30*time.Second))
	if o.Backoff == nil {
		o.Backoff = defaultBackoff
	}
	return o, nil
}

// shortOwner returns an owner that fits into the column with the random text that is added.
func shortOwner(owner string) string {
	plain := strings.Map(func(r rune) rune {
		if r > ' ' && r < '~' && r != '/' {
			return r
		}
		return '_'
	}, owner)
	return plain[:min(len(plain), 17)]
}

// defaultBackoff doubles from a second to an hour, with jitter.
func defaultBackoff(attempt int) time.Duration {
	wait := min(time.Hour, time.Duration(math.Pow(2, float64(min(max(attempt, 1), 30)-1)))*time.Second)
	return wait/2 + mathrand.N(wait)
}
