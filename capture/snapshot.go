package capture

import (
	"context"
	"database/sql"
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
	// Restart begins a new snapshot even if there is an unfinished one. By default Snapshot continues the unfinished one.
	Restart bool
	// Patience is how long to wait for a transaction that has locked a row or the table. 0 means 30 s.
	Patience time.Duration
	// Report, if not nil, is called after every chunk, by the goroutine that called Snapshot.
	Report func(Progress)
	// Logger gets a line while Snapshot waits for a transaction; nil means slog.Default().
	Logger *slog.Logger
}

// Progress is the progress of a snapshot.
type Progress struct {
	Table, Topic string
	// From is the snapshot's first id: the topic's messages with this id and larger ones make a copy of the table.
	From uint64
	// Rows is the number of rows that this snapshot has written, including earlier runs of it.
	Rows uint64
	// Estimate is the server's estimate of the table's rows when Snapshot was called. Status does not set it.
	Estimate uint64
	// Done is set when every row was written.
	Done bool
}

// Snapshot writes the existing rows of a captured table into the capture's topic, each as a message whose op is read and whose old
// row is null. A reader gets a copy of the table if it applies the topic's messages in the order of their ids, from Progress.From or
// a smaller id on: it stores the new row under the message's key, and deletes the key if the new row is null.
//
// Programs may write to the table meanwhile. Snapshot writes the rows in the order of the primary key, in chunks of at most 500 rows
// and about 4 MiB. Each chunk is a transaction, which locks its rows against changes (not against reads) for some milliseconds. A
// chunk does not wait for rows that another transaction has locked, unless it is a chunk of a single row. So it holds no lock while
// it waits, and causes no deadlock.
//
// If a snapshot ends early, for any reason, the next call continues after the last committed chunk. A call after the end of a
// snapshot begins a new one.
//
// The account needs SELECT and TRIGGER on the table, INSERT on the topic, and SELECT, INSERT and UPDATE on mqnotify_snapshot, which
// `mqnotify init` makes.
//
// Its errors are ErrNotCaptured, notify.ErrNoTable, notify.ErrNotTopic, notify.ErrOptions (the table has no primary key, or is not an
// InnoDB table), ErrBusy, notify.ErrNoState, notify.ErrNotAcquired (another process makes a snapshot of the table), and the server's.
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
			if server.NoPrivilege(err) {
				err = fmt.Errorf("capture: %w: `mqnotify grants --role capture` shows what it needs: %w", notify.ErrDenied, err)
			}
			return s.progress, err
		}
		s.progress.Estimate = s.estimate
		if s.options.Report != nil {
			s.options.Report(s.progress)
		}
	}
	return s.progress, nil
}

const (
	// manyRows limits the rows of a chunk. More rows make a snapshot hardly faster, and writers wait longer (docs/guide/capture.md).
	manyRows = 500
	// fewRows is the limit of the first chunk. The limit doubles with every chunk, unless its rows are large.
	fewRows = 32
	// muchText limits the JSON of a chunk, in bytes, except for its last row. manyBytes is the target for its rows in the table.
	muchText  = 4 << 20
	manyBytes = 1 << 20

	// keepLock is how long the server keeps the lock of a vanished host. A chunk must take less than two fifths of it.
	keepLock = 2 * time.Minute
	// handover is how long to wait for the lock of a snapshot that was just killed.
	handover = 2 * time.Second
)

// errLocked means that another transaction has locked a row of the chunk.
var errLocked = errors.New("a row is locked")

// snapshot is a snapshot in progress.
type snapshot struct {
	db       *notify.DB
	table    string
	options  SnapshotOptions
	estimate uint64

	session   *core.Session // holds the lock
	publisher *producer.Producer
	begun     bool // this call has committed a chunk or the beginning, so it does not begin a new snapshot
	limit     int  // of the next chunk, in rows
	most      int  // the largest limit
	progress  Progress
}

func (s *snapshot) close() {
	if s.publisher != nil {
		_ = s.publisher.Close()
	}
	if s.session != nil {
		_ = s.session.Close() // this releases the lock
	}
	s.session = nil
}

// step writes a chunk. While another transaction has locked a row of the chunk, step tries with fewer rows. It reconnects if the
// connection is lost.
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

// connect makes a session that holds the lock of the table's snapshots, unless there is one.
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

// chunk writes the next rows in a transaction. The snapshot's position is stored only in the database, in the same transaction, so
// that the lost answer to a commit does no harm.
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

// survey reads the server's estimates of the table's rows and their size. Chunks of large rows have few rows from the start, because
// the server makes the JSON of all selected rows, including those beyond muchText.
func (s *snapshot) survey(ctx context.Context) error {
	var size uint64
	row := s.db.Pool().QueryRowxContext(ctx, `SELECT COALESCE(TABLE_ROWS, 0), COALESCE(AVG_ROW_LENGTH, 0) FROM information_schema.TABLES
		WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ?`, s.db.Name(), s.table)
	err := row.Scan(&s.estimate, &size)
	if errors.Is(err, sql.ErrNoRows) { // it was dropped, or is just being replaced
		err = notify.ErrNoTable
	}
	if err != nil {
		return fmt.Errorf("capture: estimate the rows of %s: %w", ident.Quote(s.table), err)
	}
	s.most = int(max(1, min(manyRows, manyBytes/max(1, size))))
	s.limit = min(fewRows, s.most)
	return nil
}

// latestSnapshots returns each table's latest snapshot; none if the account may not read mqnotify_snapshot.
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
