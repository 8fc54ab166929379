package main

import (
	"testing"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// An enqueuer and a worker lock an ordered queue's row. MySQL asks for UPDATE on it, and MariaDB does not.
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
			t.Run(test.name, func(t *testing.T) { test.leastOn(t, s, nil, "init", "--queue", "line", "--ordered") })
		}
	})
}
