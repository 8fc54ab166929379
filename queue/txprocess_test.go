package queue

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

// ackerMain enters tasks without a key, and prints the ids of those whose Enqueue succeeded.
func ackerMain(q *Queue, record *notify.DB, told processTold) error {
	ctx := context.Background()
	for n := 0; n < told.Tasks; {
		ids, err := q.Enqueue(ctx, Entry{Payload: []byte(told.Name), Retries: 1000})
		if err != nil {
			<-time.After(20 * time.Millisecond)
			continue
		}
		n++
		if _, err := record.Pool().ExecContext(ctx, "INSERT INTO acked VALUES (?)", ids[0]); err != nil {
			return err
		}
	}
	return q.Close()
}

// finish is a handler whose effect and the task's end are one transaction. An effect that
// already exists is recorded.
func finish(ctx context.Context, db, record *notify.DB, task Task) error {
	tx, err := db.Pool().BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(ctx, "INSERT INTO effect VALUES (?)", task.ID); err != nil {
		if server.Is(err, server.ErrDuplicate) {
			_, err = record.Pool().ExecContext(context.WithoutCancel(ctx), "INSERT INTO twice VALUES (?)", task.ID)
		}
		return err
	}
	if err := FinishTx(ctx, tx, task); err != nil {
		return err
	}
	return tx.Commit()
}

// Processes enter tasks, and others do them in the transaction that ends the task. Some of both are
// killed, and the connections of others are cut. Acknowledged tasks are done, and nothing is done twice.
func TestTransactionProcesses(t *testing.T) {
	eachMode(t, func(t *testing.T, s *mysqltest.Server, mode string) {
		tasks, kills := mysqltest.Many(15, 60, 3000), mysqltest.Many(1, 3, 30)
		db, config := database(t, s)
		for _, table := range []string{"acked", "effect", "twice"} {
			mysqltest.Exec(t, db.Pool(), "CREATE TABLE "+table+" (id BIGINT PRIMARY KEY) ENGINE=InnoDB")
		}
		proxy := s.Proxy(t)
		configs := []*mysql.Config{config, proxy.Config(config)}
		started := 0
		start := func(role string, config *mysql.Config) *process {
			started++
			return startProcess(t, processTold{
				Role: role, Name: fmt.Sprint(role, started), DSN: config.FormatDSN(), Record: configs[0].FormatDSN(), Claim: mode,
				Visibility: 2 * time.Second, Tasks: tasks,
			})
		}
		enqueuers, workers := make([]*process, 4), make([]*process, 4)
		for i := range enqueuers {
			enqueuers[i], workers[i] = start("acker", configs[i%2]), start("finisher", configs[i%2])
		}
		acked := func() int { return mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM acked") }
		for kill := range kills {
			enough := tasks * (kill + 1) / (kills + 1)
			require.Eventually(t, func() bool { return acked() >= enough }, 10*patience, 5*tick)
			i := kill % len(workers)
			enqueuers[i].kill()
			workers[i].kill()
			proxy.Down()
			proxy.Up()
			enqueuers[i], workers[i] = start("acker", configs[i%2]), start("finisher", configs[i%2])
		}
		for _, p := range enqueuers {
			<-p.ended
		}
		assert.GreaterOrEqual(t, acked(), len(enqueuers)*tasks, "an enqueuer has failed")
		require.Eventually(t, func() bool {
			return mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_task WHERE state <> 'done'") == 0
		},
			10*patience, 5*tick, "all are done")
		assert.Zero(t, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM acked a WHERE NOT EXISTS (SELECT 1 FROM mqnotify_task t WHERE t.id = a.id)"), "lost")
		assert.Zero(t, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM twice"), "done twice")
		assert.Zero(t, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_task t WHERE NOT EXISTS (SELECT 1 FROM effect e WHERE e.id = t.id)"), "done without its effect")
		assert.Equal(t, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_task"), mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM effect"))
		t.Logf("%d tasks acknowledged, %d entered; %d of each side killed", acked(), mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_task"), kills)
	})
}
