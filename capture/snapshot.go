package capture

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/internal/table"
	"github.com/mqnotify/mqnotify/notify"
	"github.com/mqnotify/mqnotify/producer"
)

// SnapshotOptions are the settings of a snapshot. The zero value is the recommended setting.
type SnapshotOptions struct {
	// Restart begins a new snapshot if there is an unfinished one. By default the unfinished one goes on.
	Restart bool
	// Patience is how long to wait for a transaction that has locked a row, or the table. 0 means 30 s.
	Patience time.Duration
	// Report is called after every chunk, by the goroutine that called Snapshot. nil means that it is not.
	Report func(Progress)
	// Logger gets a line when a transaction is waited for; nil means slog.Default().
	Logger *slog.Logger
}

// Progress is how far a snapshot is.
type Progress struct {
	Table, Topic string
	// From is the id where the snapshot begins: the topic's messages of this id and later ones make a copy of the table.
	From uint64
	// Rows is the number of rows that were written, also by earlier runs of the same snapshot.
	Rows uint64
	// Estimate is the server's estimate of the table's rows when Snapshot was called. Status does not set it.
	Estimate uint64
	// Done is set when every row was written.
	Done bool
}

// Snapshot writes the rows that a captured table has already into the capture's topic, each as a message whose op is read and whose
// old row is null. A reader that applies the topic's messages in the order of their ids, from Progress.From or an earlier id on,
// ends with a copy of the table: it stores the new row under the message's key, and deletes the key if there is no new row.
//
// The table may be written to meanwhile. The rows are written in the order of the primary key, in chunks of at most 500 rows and
// about 4 MiB. Each chunk is a transaction, which has its rows locked against changes (not against reads) for some milliseconds. It
// takes no row that another transaction has locked, but for a single one, which it waits for while it has no other locked. So it
// makes no deadlock.
//
// A snapshot that ends early, for whatever reason, goes on with the next call after the last chunk that was committed. A call after the
// end of a snapshot begins another one.
//
// The account needs SELECT and TRIGGER on the table, INSERT on the topic, and SELECT, INSERT and UPDATE on mqnotify_snapshot, which
// `mqnotify init` makes.
//
// Its errors are ErrNotCaptured, notify.ErrNoTable, notify.ErrNotTopic, notify.ErrOptions (a table that has no primary key, or is not InnoDB's), ErrBusy, notify.ErrNoState,
// notify.ErrNotAcquired (another process makes a snapshot of the table), and the server's.
func Snapshot(ctx context.Context, db *notify.DB, name string, options SnapshotOptions) (Progress, error) {
	common, err := Options{Patience: options.Patience, Logger: options.Logger}.withPatience()
	if err != nil {
		return Progress{}, err
	}
	options.Patience, options.Logger = common.Patience, common.Logger
	t, err := describe(ctx, db, name)
	if err != nil {
		return Progress{}, err
	}
	s := &snapshot{db: db, table: t.Name, options: options}
	defer s.close()
	if err := s.survey(ctx); err != nil {
		return Progress{}, err
	}
	return s.run(ctx)
}

// run writes chunk after chunk.
func (s *snapshot) run(ctx context.Context) (Progress, error) {
	for !s.progress.Done {
		if err := table.Patiently(ctx, s.options.Logger, s.table, s.options.Patience, 0, s.step); err != nil {
			return s.progress, s.explain(err)
		}
		s.progress.Estimate = s.estimate
		if s.options.Report != nil {
			s.options.Report(s.progress)
		}
	}
	return s.progress, nil
}

const (
	// manyRows is the most rows of a chunk: more make a snapshot hardly faster, and make writers wait longer (docs/guide/capture.md).
	manyRows = 500
	// fewRows is how many rows the first chunk has. Every chunk has twice as many as the one before it, unless its rows are large.
	fewRows = 32
	// muchText is how many bytes a chunk has at most, but for its last row, and manyBytes is how many its rows should have in the table.
	muchText  = 4 << 20
	manyBytes = 1 << 20

	// keepLock is how long the server keeps the lock of a host that has vanished. A chunk must take less than two fifths of it.
	keepLock = 2 * time.Minute
	// handover is how long to wait for the lock of a snapshot that has just been killed.
	handover = 2 * time.Second
)

// errLocked means that another transaction has locked a row of the chunk.
var errLocked = errors.New("a row is locked")

// snapshot is one that is being made.
type snapshot struct {
	db       *notify.DB
	table    string
	options  SnapshotOptions
	estimate uint64

	session   *core.Session // it has the lock
	publisher *producer.Producer
	begun     bool // this snapshot was begun, or is known to be unfinished
	limit     int  // the rows of the next chunk
	most      int  // the most rows of a chunk
	progress  Progress
}

func (s *snapshot) close() {
	if s.publisher != nil {
		_ = s.publisher.Close()
	}
	if s.session != nil {
		_ = s.session.Close() // which lets the lock go
	}
	s.session = nil
}

func (s *snapshot) explain(err error) error {
	if server.NoPrivilege(err) {
		return fmt.Errorf("capture: the account lacks a privilege that `mqnotify grants --role capture` names: %w", err)
	}
	return err
}

// step writes a chunk. It takes fewer rows as long as another transaction has locked one of them, and connects again if it has to.
func (s *snapshot) step(ctx context.Context) error {
	mends := func(err error) bool {
		return server.ConnectionLost(err) || s.session != nil && s.session.Err() != nil ||
			server.Retryable(err) && !server.Is(err, server.ErrLockWaitTimeout)
	}
	return server.Again(ctx, mends, func() error {
		for {
			err := s.chunk(ctx)
			if s.limit == 1 || !errors.Is(err, errLocked) {
				return err
			}
			s.limit = max(1, s.limit/4)
		}
	})
}

// connect sees to it that there is a session that has the lock of the table's snapshots.
func (s *snapshot) connect(ctx context.Context) error {
	if s.session != nil && s.session.Err() == nil {
		return nil
	}
	if s.session != nil {
		_ = s.session.Close()
	}
	var err error
	if s.session, err = core.NewSession(ctx, s.db, core.SessionOptions{IdleTimeout: keepLock}); err != nil {
		return err
	}
	if err := execute(ctx, s.session, setMode); err != nil {
		return fmt.Errorf("capture: set sql_mode: %w", err)
	}
	_, err = s.session.Lock(ctx, core.LockName("snapshot", s.db.Name(), s.table), handover)
	if errors.Is(err, notify.ErrNotAcquired) {
		return fmt.Errorf("capture: another process makes a snapshot of %s: wait for its end: %w", ident.Quote(s.table), err)
	}
	return err
}

// chunk writes the next rows in a transaction. Where the snapshot is, is in the database alone: an answer to a commit that is lost
// does no harm.
func (s *snapshot) chunk(ctx context.Context) error {
	if err := s.connect(ctx); err != nil {
		return err
	}
	var now Progress
	open := false // the transaction could not be rolled back
	err := s.session.Do(ctx, func(conn *sqlx.Conn) error {
		if _, err := conn.ExecContext(ctx, "START TRANSACTION"); err != nil {
			return fmt.Errorf("capture: begin: %w", err)
		}
		var err error
		if now, err = s.write(ctx, conn); err != nil {
			_, rollback := conn.ExecContext(ctx, "ROLLBACK")
			open = rollback != nil
			return err
		}
		if _, err := conn.ExecContext(ctx, "COMMIT"); err != nil {
			return fmt.Errorf("capture: commit: %w", err)
		}
		return nil
	})
	if open {
		_ = s.session.Close()
	}
	if err != nil {
		return err
	}
	s.progress, s.begun = now, true
	if s.publisher != nil {
		s.publisher.Notify(ctx)
	}
	return nil
}

// survey reads what the server estimates: how many rows the table has, and how large they are. The server makes the JSON of all rows of a chunk, also of those
// that are too much for it, so that a chunk of large rows must have few from the start.
func (s *snapshot) survey(ctx context.Context) error {
	var size uint64
	row := s.db.Pool().QueryRowxContext(ctx, `SELECT COALESCE(TABLE_ROWS, 0), COALESCE(AVG_ROW_LENGTH, 0) FROM information_schema.TABLES
		WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ?`, s.db.Name(), s.table)
	if err := row.Scan(&s.estimate, &size); err != nil {
		return fmt.Errorf("capture: estimate the rows of %s: %w", ident.Quote(s.table), err)
	}
	s.most = int(max(1, min(manyRows, manyBytes/max(1, size))))
	s.limit = min(fewRows, s.most)
	return nil
}

// latestSnapshots are the latest snapshots by their tables. An account that may not see them sees none.
func latestSnapshots(ctx context.Context, db *notify.DB) (map[string]*Progress, error) {
	var all []struct {
		Table string `db:"table_name"`
		position
	}
	err := db.Pool().SelectContext(ctx, &all, "SELECT table_name, topic, first_id, row_count, finished_at IS NOT NULL AS finished FROM "+schema.SnapshotTable)
	if err != nil && !server.Is(err, server.ErrNoSuchTable) && !server.NoPrivilege(err) {
		return nil, fmt.Errorf("capture: read the snapshots: %w", err)
	}
	snapshots := make(map[string]*Progress)
	for _, p := range all {
		snapshots[p.Table] = &Progress{Table: p.Table, Topic: p.Topic, From: p.From, Rows: p.Rows, Done: p.Finished}
	}
	return snapshots, nil
}
