package notify

import (
	"context"
	"errors"
	"sync"
	"time"
)

// commits tells of every commit on the server: one session and one goroutine for all
// who want to know, from the first one's coming to the last one's going.
type commits struct {
	mu    sync.Mutex
	watch *commitWatch // nil while nobody wants to know, or after ErrNoGTID
}

// commitWatch is one goroutine's work. It reconnects, until it is stopped, or finds
// that commits can't be waited for.
type commitWatch struct {
	stop context.CancelFunc
	done chan struct{} // closed when nothing of it runs any more

	// These belong to the mutex of commits.
	users map[*commitUser]struct{}
	waits bool // for the next commit, and knows which that is
	news  bool // one of the last commits was what a user had waited for
	err   error
}

// commitUser is one of those who want to know.
type commitUser struct {
	// C gets something after a commit, once for any number that nobody fetched, and
	// when tells has changed: after each connect, the first one too, for what may have
	// been missed, and after each loss. It is closed when no more will come; Err says why.
	C <-chan struct{}

	c       chan struct{} // one slot
	commits *commits
	watch   *commitWatch
}

// commits begins to tell of commits; the caller closes what it returns. A commit that
// becomes visible after the return is told, as far as [GTID] says, and of a busy
// server at least each 100 ms, or sooner while commits bring news.
func (db *DB) commits() *commitUser {
	c := &db.commitsSeen
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.watch == nil {
		ctx, stop := context.WithCancel(context.Background())
		watch := &commitWatch{stop: stop, done: make(chan struct{}), users: make(map[*commitUser]struct{})}
		c.watch = watch
		go func() {
			defer close(watch.done)
			c.run(ctx, db, watch)
		}()
	}
	signal := make(chan struct{}, 1)
	user := &commitUser{C: signal, c: signal, commits: c, watch: c.watch}
	c.watch.users[user] = struct{}{}
	return user
}

// close ends the telling, and returns when nothing runs any more that only this one
// needed. It may be called twice.
func (u *commitUser) close() {
	c := u.commits
	c.mu.Lock()
	delete(u.watch.users, u)
	last := len(u.watch.users) == 0
	if last && c.watch == u.watch {
		c.watch = nil
	}
	c.mu.Unlock()
	if last {
		u.watch.stop()
		<-u.watch.done
	}
}

// Err is why C is closed, ErrNoGTID; nil before.
func (u *commitUser) Err() error {
	u.commits.mu.Lock()
	defer u.commits.mu.Unlock()
	return u.watch.err
}

// tells is whether a commit is told from now on, as far as [GTID] says, until C gets
// something.
func (u *commitUser) tells() bool {
	u.commits.mu.Lock()
	defer u.commits.mu.Unlock()
	return u.watch.waits
}

// brought says that a commit brought what the user waits for: others like it may follow. All others
// are a busy server's, and not worth a look each.
func (u *commitUser) brought() {
	u.commits.mu.Lock()
	defer u.commits.mu.Unlock()
	u.watch.news = true
}

func (c *commits) run(ctx context.Context, db *DB, watch *commitWatch) {
	waits := Exponential(50*time.Millisecond, 5*time.Second)
	for {
		err := db.eachCommit(ctx, func(sure bool) (news bool) {
			waits.Reset()
			return c.tell(watch, sure)
		})
		if ctx.Err() != nil {
			return
		}
		c.tell(watch, false)
		if errors.Is(err, ErrNoGTID) {
			c.fail(watch, err)
			return
		}
		timer := time.NewTimer(waits.NextBackOff())
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

func (c *commits) tell(watch *commitWatch, waits bool) (news bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	watch.waits = waits
	news, watch.news = watch.news, false
	for user := range watch.users {
		select {
		case user.c <- struct{}{}:
		default:
		}
	}
	return news
}

// fail lets the next one who comes try anew.
func (c *commits) fail(watch *commitWatch, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.watch == watch {
		c.watch = nil
	}
	watch.err = err
	for user := range watch.users {
		close(user.c)
	}
}

// eachCommit calls tell when it is connected, and after commits, until ctx ends or
// something fails. sure says that it knows which commit comes next, whoever makes it, and news
// that those before were worth it.
func (db *DB) eachCommit(ctx context.Context, tell func(sure bool) (news bool)) error {
	session, err := db.Session(ctx, SessionOptions{IdleTimeout: untouched})
	if err != nil {
		return err
	}
	// A head that never moves: what it waits for is commits alone.
	waiter := NewGTID(db, session, Source{query: "SELECT NULL", still: true})
	waiter.floor.Max = 100 * time.Millisecond
	defer func() { _ = waiter.Close() }()
	return waiter.within(ctx, func(ctx context.Context) error {
		for first := true; ; first = false {
			begun := time.Now()
			committed, err := waiter.look(ctx, gtidWait)
			if err != nil {
				return err
			}
			if (first || committed) && tell(waiter.next.sure && !waiter.next.others) {
				waiter.floor.Reset()
			}
			waiter.rest(begun, begun.Add(gtidWait))
		}
	})
}
