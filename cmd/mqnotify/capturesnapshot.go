package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"github.com/mqnotify/mqnotify/capture"
	"github.com/mqnotify/mqnotify/notify"
)

func newCaptureSnapshot(a *app) *cobra.Command {
	var o capture.SnapshotOptions
	cmd := &cobra.Command{
		Use:   "snapshot TABLE",
		Short: "Write the existing rows of TABLE as messages",
		Long: `Writes the rows of a captured table into its topic, each as a message such as
{"op":"read","table":"orders","old":null,"new":{...}}. At the end it logs an id (from). A reader
gets a copy of the table if it applies the topic's messages from this id on: it stores new under
the key in the header key, and deletes that key if new is null.

Other programs may write to TABLE meanwhile. snapshot writes chunks of at most 500 rows, each in
a short transaction that locks these rows.

A snapshot that was interrupted continues after its last chunk when the command runs again.
"mqnotify capture status" shows unfinished snapshots. After a finished snapshot the command
begins a new one.

TABLE needs a primary key. The account needs SELECT, INSERT and UPDATE on mqnotify_snapshot,
which mqnotify init makes, in addition to the privileges for install. If TABLE contains a %, it
is a pattern of LIKE, and the command makes a snapshot of every captured table that matches.`,
		Example: `  mqnotify capture snapshot orders
  mqnotify capture snapshot 'shop\_%'`,
		Args: oneName("TABLE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			db, err := a.open()
			if err != nil {
				return err
			}
			defer closeDB(db)
			names, err := captureTables(ctx, db, args[0])
			if err != nil {
				return err
			}
			return a.eachTable(ctx, args[0], names, func(name string) error {
				err := a.snapshot(ctx, db, name, o)
				if errors.Is(err, capture.ErrNotCaptured) && name != args[0] {
					a.log.InfoContext(ctx, "skipped: the table is not captured", "table", name)
					return nil
				}
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&o.Restart, "restart", false, "begin again instead of continuing an unfinished snapshot")
	cmd.Flags().DurationVar(&o.Patience, "patience", 30*time.Second, "how long to wait for a transaction that has locked a row or the table")
	return cmd
}

// snapshot makes a snapshot of a table and shows its progress.
func (a *app) snapshot(ctx context.Context, db *notify.DB, name string, o capture.SnapshotOptions) error {
	p := &snapshotProgress{app: a, began: time.Now(), draws: a.drawsProgress()}
	o.Logger, o.Report = a.log, p.report
	done, err := capture.Snapshot(ctx, db, name, o)
	p.end()
	switch {
	case err != nil && done.Rows > 0:
		return fmt.Errorf("%d rows are written, and mqnotify capture snapshot %s continues after them: %w", done.Rows, name, err)
	case err != nil:
		return err
	}
	a.log.InfoContext(ctx, "the snapshot is done", "table", done.Table, "into", done.Topic, "rows", done.Rows, "from", done.From)
	return nil
}

// snapshotProgress shows a snapshot's progress: a bar on a terminal, else log lines.
type snapshotProgress struct {
	app   *app
	draws bool
	bar   *progressbar.ProgressBar
	began time.Time
	last  time.Time // of the last log line
	first uint64    // rows that earlier runs have written
}

// report implements capture.SnapshotOptions.Report.
func (p *snapshotProgress) report(now capture.Progress) {
	total := max(now.Estimate, now.Rows)
	if p.last.IsZero() {
		p.last, p.first = time.Now(), now.Rows
	}
	switch {
	case p.draws && p.bar == nil:
		p.bar = p.app.newBar(int64(total), now.Table)
	case p.draws:
		p.bar.ChangeMax64(int64(total)) // the snapshot goes on even if the terminal can't show the bar
	case time.Since(p.last) >= progressEvery:
		p.last = time.Now()
		p.app.log.InfoContext(context.Background(), "snapshot", "table", now.Table, "rows", now.Rows, "about", total,
			"rows_per_second", int(float64(now.Rows-p.first)/time.Since(p.began).Seconds()))
	}
	if p.bar != nil {
		_ = p.bar.Set64(int64(now.Rows)) // as above
	}
}

// end removes the bar, so that the next output begins on a line of its own.
func (p *snapshotProgress) end() {
	if p.bar != nil {
		_ = p.bar.Exit() // as above
		p.app.note("\n")
		p.bar = nil
	}
}
