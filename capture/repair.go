package capture

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/table"
	"github.com/mqnotify/mqnotify/notify"
)

// ErrNotCaptured means that a table has no capture trigger, and that no trigger on another table was made for it.
var ErrNotCaptured = errors.New("the table is not captured")

// Repair makes the capture triggers of a table again, for its current columns and types, and returns their names. It also moves
// back triggers that were made for the table and that a RENAME TABLE took to another table. Each trigger keeps the options of
// Install, except that a Without that is not nil replaces the columns that were left out; an empty one leaves out none. Of the other
// options only Patience and Logger count.
//
// Repair holds a lock on the table while it changes the triggers, so that each change is captured once. For that the account needs
// LOCK TABLES. If the connection is lost meanwhile, old and new triggers may both exist and write each change twice: repair again.
//
// Its errors are ErrNotCaptured, Install's errors about the table, ErrBusy, notify.ErrOptions and the server's.
func Repair(ctx context.Context, db *notify.DB, name string, options Options) (names []string, err error) {
	options, err = options.withPatience()
	if err != nil {
		return nil, err
	}
	t, err := describe(ctx, db, name)
	if err != nil {
		return nil, err
	}
	session, err := core.NewSession(ctx, db, core.SessionOptions{})
	if err != nil {
		return nil, err
	}
	defer func() { _ = session.Close() }() // this unlocks the tables
	if err := execute(ctx, session, setMode); err != nil {
		return nil, fmt.Errorf("capture: set sql_mode: %w", err)
	}
	states, err := Status(ctx, db, t.Name)
	if err != nil {
		return nil, err
	}
	if len(states) == 0 {
		return nil, fmt.Errorf("capture: %s: %w: run mqnotify capture install %s", t, ErrNotCaptured, t.Name)
	}
	lock := "LOCK TABLES " + ident.Quote(t.Name) + " WRITE"
	for _, s := range states {
		if s.Table != t.Name {
			lock = "LOCK TABLES " + ident.Quote(t.Name) + " WRITE, " + ident.Quote(s.Table) + " WRITE"
		}
	}
	if err := options.patiently(ctx, session, t.Name, lock); err != nil {
		return nil, fmt.Errorf("capture: lock %s: %w", t, err)
	}
	// The lock keeps the table and its triggers unchanged from here on.
	err = session.Do(ctx, func(conn *sqlx.Conn) error {
		t, err = table.Describe(ctx, conn, db.Name(), t.Name)
		return err
	})
	if err != nil {
		return nil, err
	}
	made, err := again(t, states, options)
	if err != nil {
		return nil, err
	}
	for _, trigger := range made {
		names = append(names, trigger.name)
	}
	return names, replace(ctx, session, states, made)
}

// again returns a new trigger for each captured op: from the definition of the trigger on the table, or else from one on another
// table that was made for it.
func again(t *table.Table, states []State, options Options) (made []newTrigger, err error) {
	since := rand.Text()
	for _, op := range ops {
		of := slices.DeleteFunc(slices.Clone(states), func(s State) bool { return s.Op != op })
		if len(of) == 0 {
			continue
		}
		defined := of[0].made
		if at := slices.IndexFunc(of, func(s State) bool { return s.Table == t.Name }); at >= 0 {
			defined = of[at].made
		} else {
			defined.Since = since
		}
		if options.Without != nil {
			if _, err := chosen(t, options.Without); err != nil {
				return nil, err
			}
			defined.Without = options.Without
		}
		defined.Columns = slices.DeleteFunc(slices.Clone(defined.Columns), func(c column) bool {
			_, err := t.Column(c.Name)
			return err != nil
		})
		if defined.Chosen && len(defined.Columns) == 0 {
			return nil, fmt.Errorf("capture: %w: no captured column of %s is left: remove the capture and install it with others", notify.ErrOptions, t)
		}
		defined, columns, err := defined.define(t)
		if err != nil {
			return nil, err
		}
		trigger, err := defined.trigger(t, columns, op, freeName(t.Name, op, states))
		if err != nil {
			return nil, err
		}
		made = append(made, trigger)
	}
	return made, nil
}

// freeName returns a trigger name that is not in states.
func freeName(name, op string, states []State) string {
	free := schema.CaptureName(name, op)
	for n := 2; slices.ContainsFunc(states, func(s State) bool { return strings.EqualFold(s.Trigger, free) }); n++ {
		free = ident.Derived(fmt.Sprintf("mqnotify_capture%d_%s_", n, op), name)
	}
	return free
}

// replace makes the new triggers and then drops the old ones, so that there is one at any time. The session has locked the tables.
func replace(ctx context.Context, session *core.Session, old []State, made []newTrigger) error {
	ctx = context.WithoutCancel(ctx) // half of the triggers would be worse, and no statement waits under the lock
	for i, trigger := range made {
		if err := execute(ctx, session, trigger.statement); err != nil {
			err = fmt.Errorf("capture: make trigger %s: %w", ident.Quote(trigger.name), err)
			for _, earlier := range made[:i] {
				err = errors.Join(err, execute(ctx, session, "DROP TRIGGER IF EXISTS "+ident.Quote(earlier.name)))
			}
			return err
		}
	}
	for _, s := range old {
		if err := execute(ctx, session, "DROP TRIGGER IF EXISTS "+ident.Quote(s.Trigger)); err != nil {
			return fmt.Errorf("capture: drop trigger %s: %w", ident.Quote(s.Trigger), err)
		}
	}
	if err := execute(ctx, session, "UNLOCK TABLES"); err != nil {
		return fmt.Errorf("capture: unlock: %w", err)
	}
	return nil
}
