package waiting

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// BenchmarkCascade measures the server's own work for one wake-up of many processes: n bare sessions wait for one lock, and
// each takes it, releases it, and waits again. With a read, each session also reads the table's newest row, as every
// listening process must. The figures are the time until the last session is done, and the server's memory for a session.
//
//	go test ./internal/waiting -run - -bench Cascade -benchtime 10x
func BenchmarkCascade(b *testing.B) {
	mysqltest.EachB(b, func(b *testing.B, s *mysqltest.Server) {
		s = s.Start(b, "--max-connections=11000", "--back-log=4096")
		for _, n := range []int{100, 1000, 3000, 8000} {
			for _, reads := range []bool{false, true} {
				b.Run(fmt.Sprintf("%d/reads=%t", n, reads), func(b *testing.B) { benchmarkCascade(b, s.Database(b), n, reads) })
			}
		}
	})
}

func benchmarkCascade(b *testing.B, config *mysql.Config, n int, reads bool) {
	b.Helper()
	ctx := b.Context()
	db, err := sql.Open("mysql", config.FormatDSN())
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, db.Close()) })
	_, err = db.ExecContext(ctx, "CREATE TABLE t (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY)")
	require.NoError(b, err)
	before := memory(b, db)
	sessions := make([]*sql.Conn, n)
	for i := range sessions {
		sessions[i], err = db.Conn(ctx)
		require.NoError(b, err)
		defer func() { _ = sessions[i].Close() }() // the database's end closes it, too
	}
	holder, err := db.Conn(ctx)
	require.NoError(b, err)
	defer func() { _ = holder.Close() }()
	name := "mqnotify:cascade:" + config.DBName
	var times []float64
	for b.Loop() {
		one(b, holder, "SELECT GET_LOCK(?, 0)", name)
		var done sync.WaitGroup
		for _, session := range sessions {
			done.Go(func() {
				one(b, session, "SELECT GET_LOCK(?, 300) + RELEASE_LOCK(?)", name, name)
				if reads {
					one(b, session, "SELECT COALESCE(MAX(id), 0) FROM t WHERE id > ?", 0)
				}
			})
		}
		awaitWaits(b, holder, n)
		begun := time.Now()
		one(b, holder, "SELECT RELEASE_LOCK(?)", name)
		done.Wait()
		times = append(times, float64(time.Since(begun).Microseconds())/1000)
	}
	slices.Sort(times)
	b.ReportMetric(times[len(times)/2], "ms")
	b.ReportMetric(float64(memory(b, db)-before)/float64(n)/1024, "KiB/session")
	b.ReportMetric(0, "ns/op")
}

// awaitWaits returns when n sessions wait for a lock.
func awaitWaits(b *testing.B, session *sql.Conn, n int) {
	b.Helper()
	mysqltest.Eventually(b, "all sessions wait", func() bool {
		var waits int
		require.NoError(b, session.QueryRowContext(b.Context(),
			"SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE = 'User lock'").Scan(&waits))
		return waits == n
	})
}

func one(b *testing.B, session *sql.Conn, query string, args ...any) {
	b.Helper()
	var result sql.Null[int64]
	if err := session.QueryRowContext(context.WithoutCancel(b.Context()), query, args...).Scan(&result); err != nil {
		b.Error(err)
	}
}

// memory returns the server's resident memory in bytes.
func memory(b *testing.B, db *sql.DB) int64 {
	b.Helper()
	var file string
	require.NoError(b, db.QueryRowContext(b.Context(), "SELECT @@pid_file").Scan(&file))
	pid, err := os.ReadFile(file)
	require.NoError(b, err)
	status, err := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/statm")
	require.NoError(b, err)
	pages, err := strconv.ParseInt(strings.Fields(string(status))[1], 10, 64)
	require.NoError(b, err)
	return pages * int64(os.Getpagesize())
}
