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
		Short: "Write the rows that TABLE has already as messages",
		Long: `Writes the rows of a captured table into its topic, each as a message such as
{"op":"read","table":"orders","old":null,"new":{...}}. A reader that applies the topic's
messages from the id that is logged at the end (from) ends with a copy of the table: it
stores new under the header key, and deletes the key if new is null.

Other programs may write meanwhile. The rows are written in chunks of at most 500; each is a
short transaction that has locked its rows.

What is stopped, killed or fails goes on after its last chunk when the command is run again.
"mqnotify capture status" shows what is unfinished. After its end the command begins another
snapshot.

TABLE needs a primary key. The account needs SELECT, INSERT and UPDATE on mqnotify_snapshot,
which mqnotify init makes, besides what install needs. With a % in it, TABLE is a pattern, as
LIKE has it, of captured tables.`,
		Example: `  mqnotify capture snapshot orders
  mqnotify capture snapshot 'shop\_%'`,
		Args:              oneName("TABLE"),
		ValidArgsFunction: cobra.NoFileCompletions,
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
			for _, name := range names {
				err := a.snapshot(ctx, db, name, o)
				if errors.Is(err, capture.ErrNotCaptured) && name != args[0] {
					a.log.InfoContext(ctx, "the table is not captured", "table", name)
				} else if err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&o.Restart, "restart", false, "begin again, instead of going on with an unfinished one")
	cmd.Flags().DurationVar(&o.Patience, "patience", 30*time.Second, "how long to wait for a transaction that has locked a row, or the table")
	completeNothing(cmd, "patience")
	return cmd
}

// snapshot makes a snapshot of a table, and shows how far it is.
func (a *app) snapshot(ctx context.Context, db *notify.DB, name string, o capture.SnapshotOptions) error {
	p := &snapshotProgress{app: a, began: time.Now(), draws: a.drawsProgress()}
	o.Logger, o.Report = a.log, p.report
	done, err := capture.Snapshot(ctx, db, name, o)
	p.end()
	switch {
	case err != nil && done.Rows > 0:
		return fmt.Errorf("%d rows are written, and mqnotify capture snapshot %s goes on from there: %w", done.Rows, name, err)
	case err != nil:
		return captureError(err)
	}
	a.log.InfoContext(ctx, "the snapshot is done", "table", done.Table, "into", done.Topic, "rows", done.Rows, "from", done.From)
	return nil
}

// snapshotProgress shows how far a snapshot is: a bar on a terminal, lines of the log elsewhere.
type snapshotProgress struct {
	app   *app
	draws bool
	bar   *progressbar.ProgressBar
	began time.Time
	last  time.Time // when it was logged
	first uint64    // the rows of earlier runs
}

// report is for capture.SnapshotOptions.Report.
func (p *snapshotProgress) report(now capture.Progress) {
	total := max(now.Estimate, now.Rows)
	if p.last.IsZero() {
		p.last, p.first = time.Now(), now.Rows
	}
	switch {
	case p.draws && p.bar == nil:
		p.bar = p.app.newBar(int64(total), now.Table)
	case p.draws:
		p.bar.ChangeMax64(int64(total)) // what a terminal can't show is not the snapshot's failure
	case time.Since(p.last) >= progressEvery:
		p.last = time.Now()
		p.app.log.InfoContext(context.Background(), "snapshot", "table", now.Table, "rows", now.Rows, "about", total,
			"rows_per_second", int(float64(now.Rows-p.first)/time.Since(p.began).Seconds()))
	}
	if p.bar != nil {
		_ = p.bar.Set64(int64(now.Rows)) // as above
	}
}

// end leaves the terminal's line to the next writer.
func (p *snapshotProgress) end() {
	if p.bar != nil {
		_ = p.bar.Exit() // as above
		p.app.note("\n")
		p.bar = nil
	}
}
