package ringbuffer_test

import (
	"context"
	"fmt"
	"log"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/notify"
	"github.com/mqnotify/mqnotify/ringbuffer"
)

// db is the result of notify.Open; mqnotify init has created its tables. ctx ends when the program should end.
var (
	ctx = context.Background()
	db  *notify.DB
)

// TestExample runs the example on each server.
func TestExample(t *testing.T) {
	mysqltest.EachInTurn(t, func(t *testing.T, s *mysqltest.Server) {
		var err error
		db, err = notify.OpenConfig(s.Database(t))
		require.NoError(t, err)
		defer db.Close()
		require.NoError(t, schema.Init(t.Context(), db.Pool()))
		require.Equal(t, "1 an event\n", mysqltest.Output(t, Example))
	})
}

func Example() {
	if err := ringbuffer.Create(ctx, db, "events", 10_000); err != nil {
		log.Fatal(err)
	}
	ring, err := ringbuffer.Open(db, "events")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = ring.Close() }()
	newest, _, err := ring.Head(ctx)
	if err != nil {
		log.Print(err)
		return
	}
	if _, err := ring.Append(ctx, []byte("an event")); err != nil {
		log.Print(err)
		return
	}
	entries, err := ring.Read(ctx, newest, 100) // and again after the number of the last one, in a reader's loop
	if err != nil {
		log.Print(err)
	}
	for _, e := range entries {
		if e.Missed > 0 {
			log.Println("too slow: missed", e.Missed)
		}
		fmt.Println(e.Number, string(e.Payload))
	}
}
