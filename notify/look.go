package notify

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/internal/table"
	schema "github.com/mqnotify/mqnotify/sql"
)

// describeAgain is how often a keeper asks again for what it does not look at: the
// topic's table, while there is none, or it is no topic, and the flag's.
const describeAgain = 30 * time.Second

// unseen is how long a keeper waits for a commit, where it is told of those, before it
// looks for what comes without: bells and claims of accounts that can't knock, read_only.
const unseen = 45 * time.Second

// look is what a keeper sees by looking: what was inserted by writers that know
// nothing of the gate, producers that come and go, and a claim.
type look struct {
	*keeping
	stop    context.CancelCauseFunc
	running sync.WaitGroup
	bells   map[int]*bellWatch // by slot

	head      string // the expression of the head, empty when there is no table to look at
	flag      bool   // the flag's table is there
	described time.Time
	blind     bool          // the last view had neither
	untold    bool          // a row came without a commit that was told
	deaf      chan struct{} // one slot: a bell's watch ended
	seen      view
	counted   uint64 // the rings at the last view
}

// view is what one look sees.
type view struct {
	at            time.Time
	head, flag    sql.Null[uint64]
	keeper, claim uint64
	readOnly      string
	slots         [slots]uint64 // the sessions that have the bells
}

func newLook(k *keeping, stop context.CancelCauseFunc) *look {
	k.db.looks.join()
	return &look{
		keeping: k, stop: stop, bells: make(map[int]*bellWatch), flag: true, deaf: make(chan struct{}, 1),
	}
}

// close returns when nothing of the look runs any more; its context has ended.
func (l *look) close() {
	l.running.Wait()
	l.db.looks.leave()
}

// first looks for the first time. A table that may not be read makes it fail.
func (l *look) first(ctx context.Context) error {
	if err := l.describe(ctx); err != nil {
		return err
	}
	now, err := l.view(ctx)
	if err != nil {
		return err
	}
	l.take(ctx, now)
	return nil
}

// run looks until ctx ends: again and again, and at any commit where those can be
// waited for.
func (l *look) run(ctx context.Context) {
	waits := l.options.Look()
	waits.Reset()
	var user *commitUser
	var commits <-chan struct{}
	if l.session.Capabilities().GTID {
		user = l.db.commits()
		defer user.close()
		commits = user.C
	}
	for soon := false; ; {
		wait := waits.NextBackOff()
		told := !soon && commits != nil && l.byCommits() && user.tells()
		var deaf <-chan struct{}
		if told {
			wait, deaf = max(wait, unseen), l.deaf // else it would put the look off
		}
		soon = false
		timer := time.NewTimer(wait)
		committed := false
		select {
		case <-timer.C:
		case _, ok := <-commits:
			committed = true
			if !ok { // switched off
				commits = nil
			}
		case <-deaf:
			soon = true
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
		if soon { // not at once, which would be again and again
			continue
		}
		now, err := l.view(ctx)
		if err != nil {
			l.blind = true
			l.failed(ctx, err)
			continue
		}
		if surprised, foreign := l.surprised(now); surprised {
			l.want()
			switch {
			case !foreign:
			case commits == nil:
				waits.Reset()
			default:
				user.brought()
			}
			if foreign && told && !committed && !l.untold {
				l.untold = true
				l.log.DebugContext(ctx, "a row came without a commit that was told: looks go on as without GTIDs")
			}
		}
		l.take(ctx, now)
		if time.Since(l.described) > l.gate.options.describeAgain {
			l.described, l.flag = time.Now(), true // the next view tells
			if l.head == "" {
				if err := l.describe(ctx); err != nil {
					l.failed(ctx, err)
				}
			}
		}
	}
}

// byCommits tells whether what is looked for comes with a commit. Without a table it is
// bells.
func (l *look) byCommits() bool { return l.head != "" && !l.blind && !l.untold }

// failed decides what a look that failed means.
func (l *look) failed(ctx context.Context, err error) {
	switch {
	case ctx.Err() != nil, server.Retryable(err), // behind an ALTER TABLE that waits, say
		server.ConnectionLost(err), errors.Is(err, errEnded):
		l.log.DebugContext(ctx, "the keeper's look failed", "error", err)
	case server.Is(err, server.ErrNoSuchTable, server.ErrBadField): // dropped, or changed
		l.head = ""
		l.described = time.Time{}
	default:
		l.stop(err)
	}
}

// surprised tells whether something moved that no ring has announced for certain,
// and whether it is certain that none has. A bell does not say what it announces:
// after it one ring too many may be made, but the looks become no more for it.
func (l *look) surprised(now view) (surprised, foreign bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.head.V < l.seen.head.V { // the table was truncated, say
		l.rung = 0
	}
	announced := l.rung != 0 && now.head.V <= l.rung
	surprised = now.head != l.seen.head && !announced || now.flag != l.seen.flag
	foreign = surprised && l.rings == l.counted
	l.counted = l.rings
	return surprised, foreign
}

// take draws the conclusions of a view.
func (l *look) take(ctx context.Context, now view) {
	before := l.seen.slots
	l.seen = now
	if on(now.readOnly) {
		l.stop(noGateError{errReadOnly})
		return
	}
	if now.keeper != l.session.ID() {
		// A session that has ended since is no sign of anything: Held fails, or knows of the end.
		if _, err := l.lock.Held(context.WithoutCancel(ctx)); err == nil && l.session.Err() == nil {
			l.stop(noGatef("session %d took the keeper's lock and lives, and another session sees the lock held by %d: "+
				"the two are on different servers, or a proxy is between", l.session.ID(), now.keeper))
		}
		return
	}
	if !l.claims() || now.claim == l.session.ID() {
		l.session.shown(now.at)
	}
	for slot, holder := range now.slots {
		// It may have been rung before it was let go, and a watch that had not begun heard neither.
		if bell := l.bells[slot]; before[slot] != 0 && before[slot] != holder && (bell == nil || bell.ended() && !bell.heard) {
			l.want()
		}
		if bell := l.bells[slot]; bell != nil && (bell.holder != holder || bell.ended()) {
			delete(l.bells, slot) // it ends by itself
		}
		if holder != 0 && holder != l.session.ID() && l.bells[slot] == nil {
			bell := l.newBellWatch(slot, holder)
			l.bells[slot] = bell
			l.running.Go(func() { bell.run(ctx) })
		}
	}
	if l.yields(now.claim) {
		l.stop(errHandOver)
	}
}

// on tells whether a variable is: servers say 1, ON or how far.
func on(value string) bool { return value != "" && value != "0" && !strings.EqualFold(value, "OFF") }

// view looks. A table that is locked, by an ALTER TABLE that waits, say, hides what
// was inserted, and nothing else.
func (l *look) view(ctx context.Context) (view, error) {
	now, err := l.viewOf(ctx, l.head, l.flag)
	l.blind = false
	switch {
	case l.flag && (server.Is(err, server.ErrNoSuchTable) || server.NoPrivilege(err)): // or it is the topic's table, as the next one tells
		l.flag = false
		return l.view(ctx)
	case server.Retryable(err):
		now, err = l.viewOf(ctx, "", false)
		now.head, now.flag = l.seen.head, l.seen.flag
		l.blind = true
	case server.NoPrivilege(err):
		err = fmt.Errorf("%w: %w", errCantLook, err)
	}
	return now, err
}

// viewOf looks at the head and at the flag if they are to be looked at.
func (l *look) viewOf(ctx context.Context, head string, flag bool) (view, error) {
	var query strings.Builder
	var args []any
	now := view{at: time.Now()}
	into := []any{&now.head, &now.flag, &now.readOnly, &now.keeper, &now.claim}
	query.WriteString("SELECT (" + cmp.Or(head, "SELECT NULL") + "), ")
	if flag {
		query.WriteString("(SELECT counter FROM " + schema.FlagTable + " WHERE topic = ?), ")
		args = append(args, l.topic)
	} else {
		query.WriteString("NULL, ")
	}
	query.WriteString("@@GLOBAL.read_only, COALESCE(IS_USED_LOCK(?), 0), COALESCE(IS_USED_LOCK(?), 0)")
	args = append(args, l.names.keeper(), l.names.claim())
	for slot := range slots {
		query.WriteString(", COALESCE(IS_USED_LOCK(?), 0)")
		args = append(args, l.names.slot(slot))
		into = append(into, &now.slots[slot])
	}
	query.WriteString(", CONNECTION_ID()")
	session, err := l.db.looks.get(ctx, l.db)
	if err != nil {
		return now, err
	}
	ctx, cancel := lingering(ctx) // others use the session too
	defer cancel()
	return now, askOne(ctx, session, query.String(), args, into...)
}

// lingering is for a statement that is cut off not when ctx ends, since that costs
// its session, but a second later: a server that does not answer keeps nobody from
// leaving.
func lingering(ctx context.Context) (context.Context, context.CancelFunc) {
	late, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		pause(late, time.Second)
		cancel()
	})
	return late, func() {
		stop()
		cancel()
	}
}

// describe finds out how to see the head of the topic's table, if it is one.
func (l *look) describe(ctx context.Context) error {
	l.described = time.Now()
	l.head = ""
	t, err := table.Describe(ctx, l.db.Pool(), l.db.Name(), l.topic)
	if errors.Is(err, table.ErrNoTable) || errors.Is(err, table.ErrView) {
		return nil
	}
	if err != nil {
		return keepError(err)
	}
	key, err := t.KeyColumn("")
	if err != nil || !t.CheapHead(key.Name) {
		return nil //nolint:nilerr // a table that is no topic: bells alone tell
	}
	l.head = LargestID(t.Name, key.Name).query
	return nil
}
