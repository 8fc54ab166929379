package engine

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/notify"
)

// mqnotify_wake wakes two processes that wait on the engine: a leader and a follower.
func TestWake(t *testing.T) {
	e := start(t)
	writer, err := notify.OpenConfig(e.Config())
	require.NoError(t, err)
	defer writer.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	require.NoError(t, schema.Init(ctx, writer.Pool(), "orders"))
	type listener struct {
		*core.Auto
		seen core.Head
	}
	var listeners []*listener
	for range 2 {
		db, err := notify.OpenConfig(e.Config())
		require.NoError(t, err)
		defer db.Close()
		l := &listener{Auto: core.NewAuto(db, core.LargestID("orders", "id"), core.AutoOptions{})}
		defer l.Close()
		l.seen, err = l.Head(ctx)
		require.NoError(t, err)
		listeners = append(listeners, l)
	}
	const rounds = 5
	mean := func() time.Duration {
		var took time.Duration
		for range rounds {
			<-time.After(1500 * time.Millisecond) // polls are a second apart then
			_, err := writer.Pool().ExecContext(ctx, "INSERT INTO orders (payload) VALUES ('x')")
			require.NoError(t, err)
			begun := time.Now()
			require.NoError(t, writer.Wake(ctx, "orders"))
			for _, l := range listeners {
				head, err := l.Wait(ctx, l.seen, time.Minute)
				require.NoError(t, err)
				require.NotEqual(t, l.seen, head)
				l.seen = head
			}
			took += time.Since(begun)
		}
		t.Log(took / rounds)
		return took / rounds
	}
	const polling = 500 * time.Millisecond
	took := mean()
	for range 4 { // other work on the machine can delay all of them
		if took < polling/2 {
			break
		}
		took = mean()
	}
	require.Less(t, took, polling/2, "half the mean time of polling")
}
