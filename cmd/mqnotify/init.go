package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/internal/table"
	"github.com/mqnotify/mqnotify/internal/wake"
	"github.com/mqnotify/mqnotify/notify"
	"github.com/mqnotify/mqnotify/queue"
)

type initOptions struct {
	print    bool
	noWake   bool
	triggers []string
	form     string
	events   []string
	queues   []string
	ordered  bool
	remove   bool
}

func newInit(a *app) *cobra.Command {
	var o initOptions
	cmd := &cobra.Command{
		Use:   "init [TOPIC...]",
		Short: "Make message tables and the tables of offsets, flags and dead letters",
		Long: `Makes a message table for each TOPIC, and mqnotify's own tables, such as those of offsets and
dead letters. init may run again: it changes only what is old or broken. Without a TOPIC it makes
only mqnotify's own tables, which suffice for groups that consume existing tables.

init makes wake triggers on the message tables, which wake the consumers at every INSERT by any
program (see mqnotify wake), and on the tables of notifications, tasks and ring buffers. If the
account may not make triggers, init logs the remedy, and listeners poll. --no-trigger makes none.

init also makes procedures, with which programs in any language wait, publish, listen and notify
in SQL: mqnotify_wait, mqnotify_await, mqnotify_publish, mqnotify_listen, mqnotify_notify.
--remove drops these procedures, and nothing else.

--trigger makes triggers that set a table's one-row flag, for writers that can't be changed: see
mqnotify flag. The form counter serves any number of readers, but the writers of the table then
commit one at a time. The form row serves one reader, which deletes the row.

--queue makes a queue of tasks, for enqueue and work. enqueue does not make queues, so that a
mistyped name is an error. With --ordered the new queues give out one task at a time, in the
order of entry.`,
		Example: `  mqnotify init orders invoices
  mqnotify init --print orders | less            # the SQL, without a server
  mqnotify init --queue mail
  mqnotify init --trigger legacy_orders --trigger-on insert,update`,
		RunE: func(cmd *cobra.Command, topics []string) error {
			for _, flag := range []string{"trigger-form", "trigger-on"} {
				if cmd.Flags().Changed(flag) && len(o.triggers) == 0 && !o.remove {
					return usagef("--%s is for --trigger: name the table", flag)
				}
			}
			if len(o.events) == 0 {
				return usagef("--trigger-on: give insert, update or delete, with commas between them")
			}
			triggers, err := o.statements()
			if err != nil {
				return usageError{err}
			}
			if o.ordered && len(o.queues) == 0 {
				return usagef("--ordered is for queues: name one with --queue")
			}
			for _, name := range slices.Concat(topics, o.queues) {
				if strings.HasPrefix(name, "-") { // consume and work would take it for a flag
					return usagef("a topic or queue named %q would be taken for a flag by the other commands: choose a name that begins otherwise", name)
				}
			}
			if o.remove {
				given := 0
				cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
					if f.Changed {
						given++
					}
				})
				if len(topics) > 0 || given > 1 {
					return usagef("--remove drops the procedures of the database, and takes no topic and no other flag")
				}
				return a.removeProcedures(cmd.Context())
			}
			if o.print {
				if len(o.queues) > 0 {
					return usagef("--queue and --print: make the tables from the printed SQL, and then the queue with mqnotify init --queue")
				}
				return o.script(a.out, topics, triggers)
			}
			db, err := a.open()
			if err != nil {
				return err
			}
			defer closeDB(db)
			core.IgnoreVersion(db)
			messages, err := a.makeTopics(cmd.Context(), db, topics)
			if err != nil {
				return err
			}
			if o.noWake {
				err = wake.Routines(cmd.Context(), db, a.log)
			} else {
				err = wake.InstallAll(cmd.Context(), db, a.log, messages...)
			}
			if err != nil {
				return err
			}
			for _, t := range triggers {
				if err := a.makeTrigger(cmd.Context(), db, &o, t); err != nil {
					return err
				}
			}
			for _, name := range o.queues {
				if err := queue.Create(cmd.Context(), db, name, queue.Options{Ordered: o.ordered}); err != nil {
					return err
				}
				a.log.InfoContext(cmd.Context(), "the queue is ready", "queue", name)
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&o.print, "print", false, "write the SQL of the tables to stdout; needs no server")
	flags.BoolVar(&o.noWake, "no-trigger", false, "make no wake triggers")
	flags.StringArrayVar(&o.triggers, "trigger", nil, "make triggers on this `table` that set its flag; may be repeated")
	flags.StringVar(&o.form, "trigger-form", string(schema.TriggerCounter), "the flag's form for --trigger: counter or row")
	flags.StringSliceVar(&o.events, "trigger-on", []string{"insert"}, "the changes for --trigger: insert, update, delete, separated by commas")
	flags.StringArrayVar(&o.queues, "queue", nil, "make this `queue` of tasks; may be repeated")
	flags.BoolVar(&o.ordered, "ordered", false, "for --queue: give out one task at a time, in the order of entry")
	flags.BoolVar(&o.remove, "remove", false, "drop the procedures for programs in other languages, and make nothing")
	completeWith(cmd, "trigger-form", string(schema.TriggerCounter), string(schema.TriggerRow))
	completeWith(cmd, "trigger-on", "insert", "update", "delete")
	return cmd
}

// removeProcedures drops the procedures that programs in other languages call.
func (a *app) removeProcedures(ctx context.Context) error {
	db, err := a.open()
	if err != nil {
		return err
	}
	defer closeDB(db)
	core.IgnoreVersion(db)
	removed, err := wake.RemovePublic(ctx, db)
	for _, name := range removed {
		a.log.InfoContext(ctx, "the procedure is dropped", "procedure", name)
	}
	if err == nil && len(removed) == 0 {
		a.log.InfoContext(ctx, "there is no procedure to drop")
	}
	return err
}

type trigger struct {
	table, event, name, statement string
}

func (o *initOptions) trigger(table, event string) (trigger, error) {
	statement, err := schema.Trigger(table, schema.TriggerForm(o.form), event)
	return trigger{table, event, schema.TriggerName(table, event), statement}, err
}

func (o *initOptions) statements() (all []trigger, err error) {
	for _, table := range o.triggers {
		for _, event := range o.events {
			t, err := o.trigger(table, event)
			if err != nil {
				return nil, err
			}
			all = append(all, t)
		}
	}
	return all, nil
}

func (o *initOptions) script(out io.Writer, topics []string, triggers []trigger) error {
	script, err := schema.Script(topics...)
	if err != nil {
		return err
	}
	for _, t := range triggers {
		script += "\n" + t.statement
	}
	return ignoreBrokenPipe(writeAll(out, script))
}

// makeTopics makes the tables that do not exist, and returns the topics that are message tables.
func (a *app) makeTopics(ctx context.Context, db *notify.DB, topics []string) (messages []string, err error) {
	if err := schema.Init(ctx, db.Pool(), topics...); err != nil {
		return nil, err
	}
	for _, topic := range topics {
		t, err := table.Describe(ctx, db.Pool(), db.Name(), topic)
		if err != nil {
			return nil, err
		}
		if strings.Contains(topic, ".") {
			a.log.WarnContext(ctx, "the table's name has a dot in it; to make a table in another database, give --database", "table", topic, "database", db.Name())
		}
		if t.IsMessageTable() {
			a.log.InfoContext(ctx, "the topic is ready", "topic", topic)
			messages = append(messages, t.Name)
		} else {
			a.log.WarnContext(ctx, "a table with this name exists, and it is no message table: consume and tail can read it, produce can't write to it", "table", topic)
		}
	}
	return messages, nil
}

// makeTrigger makes the trigger, unless it exists. It tries for 2 s at a time, the session's lock_wait_timeout, because new transactions
// on the table wait behind a statement that waits for the table.
func (a *app) makeTrigger(ctx context.Context, db *notify.DB, o *initOptions, t trigger) error {
	described, err := table.Describe(ctx, db.Pool(), db.Name(), t.table)
	if err != nil {
		return err
	}
	if described.IsView {
		return fmt.Errorf("%s is a view, which can't have triggers: name the table behind it: %w", described, table.ErrView)
	}
	// The flag's topic is the table's name in the server's letter case.
	if t, err = o.trigger(described.Name, t.event); err != nil {
		return err
	}
	session, err := core.NewSession(ctx, db, core.SessionOptions{})
	if err != nil {
		return err
	}
	defer func() { _ = session.Close() }()
	err = table.Patiently(ctx, a.log, t.table, 30*time.Second, 2*time.Second, func(ctx context.Context) error {
		return session.Do(ctx, func(conn *sqlx.Conn) error {
			_, err := conn.ExecContext(ctx, t.statement)
			return err
		})
	})
	if server.Is(err, server.ErrTriggerExists) {
		return a.compareTrigger(ctx, db, t)
	}
	if err != nil {
		return fmt.Errorf("make trigger %s: %w", ident.Quote(t.name), err)
	}
	a.log.InfoContext(ctx, "the trigger is ready", "trigger", t.name, "table", t.table)
	return nil
}

// compareTrigger returns an error unless the existing trigger has the same statement as t.
func (a *app) compareTrigger(ctx context.Context, db *notify.DB, t trigger) error {
	var is string
	err := db.Pool().GetContext(ctx, &is, `SELECT ACTION_STATEMENT FROM information_schema.TRIGGERS
		WHERE EVENT_OBJECT_SCHEMA = ? AND TRIGGER_NAME = ? AND EVENT_OBJECT_TABLE = ?`, db.Name(), t.name, t.table)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("read trigger %s: %w", ident.Quote(t.name), err)
	}
	if !schema.SameTrigger(is, t.statement) {
		return fmt.Errorf("a trigger %s exists already and does something else: drop it first (DROP TRIGGER %s)",
			ident.Quote(t.name), ident.Quote(t.name))
	}
	a.log.InfoContext(ctx, "the trigger exists already", "trigger", t.name, "table", t.table)
	return nil
}
