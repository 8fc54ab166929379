package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// An ordered queue's row is locked, for which MySQL wants UPDATE on it and MariaDB does not.
func TestGrantsOfOrderedQueues(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		var ordered []string
		if !s.IsMariaDB() {
			ordered = []string{"besides, for ordered queues"}
		}
		for _, test := range []role{
			{"enqueuer", append(ordered, "enqueuer:"), func(t *testing.T, a account) bool {
				return a.can(t, "enqueue", "line", "x")
			}},
			{"worker", append(ordered, "worker:"), func(t *testing.T, a account) bool { return a.worksOn(t, "line") }},
		} {
			t.Run(test.name, func(t *testing.T) { test.leastOn(t, s, "init", "--queue", "line", "--ordered") })
		}
	})
}

// Workers and a ring's readers keep the gate, and look at the flag of enqueuers and writers
// that do not live long, if they may read it.
func TestGrantsOfFlagsToKeep(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		root, db := queueDatabase(t, s)
		succeed(t, root, "ring", "create", "log", "--size", "9")
		// begin starts both. enter gives each something, and tells how long it took until they had all
		// that came, or that they had not in time.
		begin := func(flags bool) (w, r *running, enter func(most time.Duration) (took time.Duration, both bool)) {
			mysqltest.Exec(t, db, "DELETE FROM mqnotify_flag")
			worker, reader := []string{"worker:"}, []string{"ring:"}
			if flags {
				worker = append(worker, "besides, to keep the gate for enqueuers")
				reader = append(reader, "besides, to keep the gate for writers")
			}
			w = background(t, s.User(t, root, grantsOf(root, worker...)...), "work", "mail", "--log-level", "debug", "--", "cat")
			r = background(t, s.User(t, root, grantsOf(root, reader...)...), "ring", "read", "log", "-f", "-n", "0", "--log-level", "debug")
			require.True(t, w.keepsSoon(t, patience) && r.keepsSoon(t, patience))
			n := 0
			return w, r, func(most time.Duration) (time.Duration, bool) {
				n++
				succeed(t, root, "enqueue", "mail", "x")
				succeed(t, root, "ring", "put", "log", "x")
				begun := time.Now()
				both := within(t, most, func() bool { return strings.Count(w.out.String(), "x") == n && strings.Count(r.out.String(), "x") == n })
				return time.Since(begun), both
			}
		}
		w, r, enter := begin(true)
		took, both := enter(patience)
		require.True(t, both)
		require.Equal(t, exitDone, w.interrupt(t).code)
		require.Equal(t, exitDone, r.interrupt(t).code)

		w, r, enter = begin(false)
		most := min(2*took+2*time.Second, 4*time.Second) // by themselves readers look each 10 s
		enter(most)
		// Who was late to wait, or whose look was due, has looked for what came meanwhile: then the
		// next shows it. The other one's look may be due by then.
		found := map[*running]string{w: w.out.String(), r: r.out.String()}
		if found[w]+found[r] != "" {
			enter(most)
		}
		for one, found := range found {
			require.True(t, found == "" || found == one.out.String(), "it looks at the flag without its SELECT: %s", one.out.String())
		}
		require.Equal(t, exitDone, w.interrupt(t).code)
		require.Equal(t, exitDone, r.interrupt(t).code)
	})
}
