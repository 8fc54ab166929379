package capture_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/capture"
	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/notify"
)

func TestExamples(t *testing.T) {
	mysqltest.EachInTurn(t, func(t *testing.T, s *mysqltest.Server) {
		for want, example := range map[string]func(){
			`{"op":"insert","table":"stock","old":null,"new":{"id":1,"pieces":5}}` + "\n": ExampleInstall,
			"3 triggers\n": ExampleRepair,
			`{"op":"read","table":"stock","old":null,"new":{"id":1,"pieces":5}}` + "\n": ExampleSnapshot,
			"3 triggers, true\n": ExamplePrepare,
			"insert of stock into stock_changes, works\nremoved [mqnotify_capture_insert_stock]\n": ExampleStatus,
		} {
			t.Setenv("MQNOTIFY_DSN", s.Database(t).FormatDSN())
			require.Equal(t, want, mysqltest.Output(t, example))
		}
	})
}

// Every change of a table, by any program, writes a message.
func ExampleInstall() {
	ctx := context.Background()
	db, err := notify.Open(os.Getenv("MQNOTIFY_DSN"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = db.Close() }()
	if _, err := db.Pool().ExecContext(ctx, "CREATE TABLE stock (id INT PRIMARY KEY, pieces INT)"); err != nil {
		fmt.Println(err)
		return
	}
	plan, err := capture.Install(ctx, db, "stock", capture.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := db.Pool().ExecContext(ctx, "INSERT INTO stock VALUES (1, 5)"); err != nil {
		fmt.Println(err)
		return
	}
	changes, err := consumer.New(db, plan.Topic, consumer.Options{From: "beginning"})
	if err != nil {
		fmt.Println(err)
		return
	}
	err = changes.Run(ctx, consumer.Each(func(_ context.Context, m consumer.Message) error {
		fmt.Println(string(m.Payload))
		return consumer.ErrStop
	}))
	if err != nil {
		fmt.Println(err)
	}
}

// A snapshot also writes the existing rows as messages. The account has run `mqnotify init`.
func ExampleSnapshot() {
	ctx := context.Background()
	db, err := notify.Open(os.Getenv("MQNOTIFY_DSN"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = db.Close() }()
	for _, statement := range []string{"CREATE TABLE stock (id INT PRIMARY KEY, pieces INT)", "INSERT INTO stock VALUES (1, 5)"} {
		if _, err := db.Pool().ExecContext(ctx, statement); err != nil {
			fmt.Println(err)
			return
		}
	}
	if err := schema.Init(ctx, db.Pool()); err != nil {
		fmt.Println(err)
		return
	}
	if _, err := capture.Install(ctx, db, "stock", capture.Options{}); err != nil {
		fmt.Println(err)
		return
	}
	snapshot, err := capture.Snapshot(ctx, db, "stock", capture.SnapshotOptions{})
	if err != nil {
		fmt.Println(err) // another call goes on where this one ended
		return
	}
	changes, err := consumer.New(db, snapshot.Topic, consumer.Options{From: strconv.FormatUint(snapshot.From, 10)})
	if err != nil {
		fmt.Println(err)
		return
	}
	err = changes.Run(ctx, consumer.Each(func(_ context.Context, m consumer.Message) error {
		fmt.Println(string(m.Payload)) // store new under the header key, or delete the key if new is null
		return consumer.ErrStop
	}))
	if err != nil {
		fmt.Println(err)
	}
}

// Print what Install would do, for an administrator to run.
func ExamplePrepare() {
	ctx := context.Background()
	db, err := notify.Open(os.Getenv("MQNOTIFY_DSN"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = db.Close() }()
	if _, err := db.Pool().ExecContext(ctx, "CREATE TABLE stock (id INT PRIMARY KEY, pieces INT)"); err != nil {
		fmt.Println(err)
		return
	}
	plan, err := capture.Prepare(ctx, db, "stock", capture.Options{Ops: []string{"insert", "update", "delete"}}) // the default
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%d triggers, %v\n", len(plan.Triggers), strings.Contains(plan.Script, "CREATE TRIGGER"))
}

// Show the captures and whether they work, and remove one.
func ExampleStatus() {
	ctx := context.Background()
	db, err := notify.Open(os.Getenv("MQNOTIFY_DSN"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = db.Close() }()
	if _, err := db.Pool().ExecContext(ctx, "CREATE TABLE stock (id INT PRIMARY KEY, pieces INT)"); err != nil {
		fmt.Println(err)
		return
	}
	if _, err := capture.Install(ctx, db, "stock", capture.Options{Ops: []string{"insert"}}); err != nil {
		fmt.Println(err)
		return
	}
	states, err := capture.Status(ctx, db, "") // of all tables
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, s := range states {
		works := "works"
		switch {
		case s.Broken:
			works = "makes writes fail"
		case s.Moved:
			works = "went with the table when it was renamed"
		case s.Stale:
			works = "needs a repair"
		}
		fmt.Printf("%s of %s into %s, %s\n", s.Op, s.Table, s.Topic, works)
	}
	removed, err := capture.Remove(ctx, db, "stock", capture.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("removed", removed)
}

// After an ALTER TABLE, Repair makes the triggers again for the table's current columns.
func ExampleRepair() {
	ctx := context.Background()
	db, err := notify.Open(os.Getenv("MQNOTIFY_DSN"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = db.Close() }()
	if _, err := db.Pool().ExecContext(ctx, "CREATE TABLE stock (id INT PRIMARY KEY, pieces INT)"); err != nil {
		fmt.Println(err)
		return
	}
	if _, err := capture.Install(ctx, db, "stock", capture.Options{}); err != nil {
		fmt.Println(err)
		return
	}
	if _, err := db.Pool().ExecContext(ctx, "ALTER TABLE stock ADD place TEXT"); err != nil {
		fmt.Println(err)
		return
	}
	made, err := capture.Repair(ctx, db, "stock", capture.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(len(made), "triggers")
}
