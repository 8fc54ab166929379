// Package schema has mqnotify's tables and triggers as plain SQL files, and
// applies them. The files run unchanged on MySQL and MariaDB.
package schema

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/server"
)

// The tables of mqnotify's state, which Init creates in the database of the topics.
const (
	FlagTable       = "mqnotify_flag"
	OffsetTable     = "mqnotify_offset"
	PartitionTable  = "mqnotify_partition"
	DeadLetterTable = "mqnotify_dead_letter"
	RetryTable      = "mqnotify_retry"  // requests to retry dead letters
	OriginTable     = "mqnotify_origin" // the tables that the offsets belong to
	ImportTable     = "mqnotify_import"
	SnapshotTable   = "mqnotify_snapshot" // the progress of snapshots of captured tables
	VersionTable    = "mqnotify_schema"

	OnceTable      = "mqnotify_once"
	ClaimTable     = "mqnotify_claim"
	IntervalTable  = "mqnotify_interval"
	RowMutexTable  = "mqnotify_mutex_row"
	FlagMutexTable = "mqnotify_mutex_flag"
	LeaseTable     = "mqnotify_lease"

	QueueTable    = "mqnotify_queue"
	TaskTable     = "mqnotify_task"
	TaskKeyTable  = "mqnotify_task_key"
	ScheduleTable = "mqnotify_schedule"
	RingTable     = "mqnotify_ring"
	RingSlotTable = "mqnotify_ring_slot"

	IdempotencyTable  = "mqnotify_idempotency"  // the keys of publishes by HTTP
	NotificationTable = "mqnotify_notification" // every row is a notification
)

// SecondsAgo is the time in SQL, for comparison with a TIMESTAMP, that is at least a number of seconds ago; the number is its parameter,
// twice. The first argument of LEAST alone is up to an hour too late after the clocks of the session's time zone went forward, and the
// second one is ambiguous in the hour that is repeated when they go back.
const SecondsAgo = "LEAST(NOW(6) - INTERVAL ? SECOND, FROM_UNIXTIME(UNIX_TIMESTAMP() - ?))"

//go:embed *.sql
var files embed.FS

// Conn is what Init needs. *sql.DB, *sql.Conn and their sqlx equivalents implement it.
type Conn interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// ErrNewer means that a newer mqnotify has created or upgraded the tables of the database.
var ErrNewer = errors.New("the tables of this database are from a newer mqnotify")

// Init creates the tables of mqnotify's state and a message table for each topic. It keeps those that exist, so it may run twice,
// also at the same time. Its errors are those of ident.Check, ErrNewer and the server's.
func Init(ctx context.Context, db Conn, topics ...string) error {
	for _, topic := range topics {
		if err := ident.Check(topic); err != nil {
			return err
		}
	}
	migrations := migrations()
	var have sql.NullInt64
	exec := func(statement string, args ...any) error {
		// On MySQL two processes that create the same table at the same time may deadlock.
		return server.Again(ctx, server.Retryable, func() error {
			_, err := db.ExecContext(ctx, statement, args...)
			return err
		})
	}
	var tables string // of mqnotify that exist
	for i, m := range migrations {
		noted := i > 0 && have.Valid && int64(m.version) <= have.Int64
		for _, statement := range m.statements {
			if noted && slices.Contains(strings.Split(tables, ","), TableOf(statement)) {
				continue // not executed again, because an account may lack the privileges
			}
			if err := exec(statement); err != nil {
				return fmt.Errorf("schema: apply %s: %w", m.name, err)
			}
		}
		if i == 0 { // this file has created the table of versions
			row := db.QueryRowContext(ctx, "SELECT MAX(version) FROM "+VersionTable)
			if err := row.Scan(&have); err != nil {
				return fmt.Errorf("schema: read the version: %w", err)
			}
			if have.Int64 > int64(Newest()) {
				return fmt.Errorf("schema: %w: they have version %d, and this mqnotify knows %d: update mqnotify", ErrNewer, have.Int64, Newest())
			}
			row = db.QueryRowContext(ctx, "SELECT COALESCE(GROUP_CONCAT(TABLE_NAME), '') FROM information_schema.TABLES"+
				" WHERE TABLE_SCHEMA = DATABASE() AND LEFT(TABLE_NAME, 9) = 'mqnotify_'")
			if err := row.Scan(&tables); err != nil {
				return fmt.Errorf("schema: read the tables: %w", err)
			}
			continue
		}
		if noted {
			continue
		}
		if err := exec("INSERT IGNORE INTO "+VersionTable+" (version) VALUES (?)", m.version); err != nil {
			return fmt.Errorf("schema: note version %d: %w", m.version, err)
		}
	}
	for _, topic := range topics {
		if err := exec(Topic(topic)); err != nil {
			return fmt.Errorf("schema: make topic %s: %w", ident.Quote(topic), err)
		}
	}
	return nil
}

// Statements returns those that create the tables of mqnotify's state.
func Statements() (all []string) {
	for _, m := range migrations() {
		all = append(all, m.statements...)
	}
	return all
}

// TableOf returns the table that one of the [Statements] creates.
func TableOf(statement string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(statement, createTable), " ")
	return name
}

const createTable = "CREATE TABLE IF NOT EXISTS "

// Script returns the SQL of everything that Init does on an empty database, for a reader or an
// administrator.
func Script(topics ...string) (string, error) {
	var script strings.Builder
	for i, m := range migrations() {
		script.WriteString(m.text + "\n")
		if i > 0 {
			fmt.Fprintf(&script, "INSERT IGNORE INTO %s (version) VALUES (%d);\n\n", VersionTable, m.version)
		}
	}
	for _, topic := range topics {
		if err := ident.Check(topic); err != nil {
			return "", err
		}
		script.WriteString(fill(read("topic.sql"), "topic", ident.Quote(topic)))
	}
	return script.String(), nil
}

// Newest returns the number of the newest migration. After Init it is the largest version in VersionTable.
func Newest() int {
	all := migrations()
	return all[len(all)-1].version
}

// OpenWritersRoutine is the procedure that shows open transactions to accounts without PROCESS.
const OpenWritersRoutine = "mqnotify_open_writers"

// OpenWriters returns the commented statement that creates OpenWritersRoutine.
func OpenWriters() string { return read("open_writers.sql") }

// Topic returns the statement that creates a message table.
func Topic(topic string) string {
	// Split before filling in the name, because a name may contain a semicolon at the end of a line.
	return fill(statements(read("topic.sql"))[0], "topic", ident.Quote(topic))
}

type migration struct {
	version    int
	name, text string
	statements []string
}

// migrations returns the numbered files, in the order of their numbers.
func migrations() (all []migration) {
	entries, err := files.ReadDir(".") // sorted by name
	if err != nil {
		panic(err) // can't happen: the files are embedded
	}
	for _, entry := range entries {
		number, _, numbered := strings.Cut(entry.Name(), "_")
		version, err := strconv.Atoi(number)
		if !numbered || err != nil {
			continue
		}
		text := read(entry.Name())
		all = append(all, migration{version, entry.Name(), text, statements(text)})
	}
	return all
}

func read(name string) string {
	text, err := files.ReadFile(path.Clean(name))
	if err != nil {
		panic(err) // the package names a file that is not embedded
	}
	return string(text)
}

// fill replaces every {key} by its value; pairs are keys and values.
func fill(text string, pairs ...string) string {
	replacements := make([]string, len(pairs))
	for i := 0; i < len(pairs); i += 2 {
		replacements[i], replacements[i+1] = "{"+pairs[i]+"}", pairs[i+1]
	}
	return strings.NewReplacer(replacements...).Replace(text)
}

// statements splits a file of this package into its statements. In these files only a statement's last line ends with a semicolon,
// and comments have lines of their own.
func statements(text string) []string {
	var all []string
	for statement := range strings.SplitSeq(text, ";\n") {
		var lines []string
		for line := range strings.Lines(statement) {
			if !strings.HasPrefix(line, "--") {
				lines = append(lines, line)
			}
		}
		if statement = strings.TrimSpace(strings.Join(lines, "")); statement != "" {
			all = append(all, statement)
		}
	}
	return all
}
