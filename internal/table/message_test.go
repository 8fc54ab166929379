package table

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
)

func TestMessageTableOfInit(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		conn := open(t, s.Database(t))
		require.NoError(t, schema.Init(testContext(t), conn, "orders"))
		assert.True(t, describe(t, conn, "orders").IsMessageTable())
		for _, table := range []string{schema.FlagTable, schema.OffsetTable, schema.DeadLetterTable} {
			assert.False(t, describe(t, conn, table).IsMessageTable(), table)
		}
	})
}

func TestIsMessageTable(t *testing.T) {
	const (
		id      = "id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY"
		at      = "created_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)"
		headers = "headers JSON"
		payload = "payload LONGBLOB NOT NULL"
	)
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		conn := open(t, s.Database(t))
		for columns, want := range map[string]bool{
			payload + "," + headers + "," + at + "," + id:                                                                                   true,
			id + "," + at + "," + headers + ", payload VARCHAR(99) NOT NULL":                                                                true,
			id + "," + at + "," + headers + ", payload TEXT NOT NULL":                                                                       true,
			id + "," + at + "," + headers + ", payload BLOB NOT NULL":                                                                       true,
			id + "," + at + "," + headers + "," + payload + ", shop INT":                                                                    true,
			id + "," + at + "," + headers + "," + payload + ", shop INT NOT NULL DEFAULT 1":                                                 true,
			id + "," + at + "," + headers + "," + payload + ", shop INT NOT NULL":                                                           false,
			id + "," + at + "," + headers + ", payload JSON":                                                                                false,
			id + "," + at + "," + headers + ", payload INT NOT NULL":                                                                        false,
			id + "," + at + "," + headers + ", payload BLOB":                                                                                false,
			id + "," + at + "," + payload + ", headers TEXT":                                                                                false,
			id + "," + at + "," + payload + ", headers JSON NOT NULL":                                                                       false,
			id + "," + headers + "," + payload + ", created_at DATETIME(6)":                                                                 false,
			id + "," + headers + "," + payload + ", created_at TIMESTAMP(6) NULL":                                                           true,
			id + "," + headers + "," + payload + ", created_at TIMESTAMP NULL":                                                              false,
			at + "," + headers + "," + payload + ", id BIGINT AUTO_INCREMENT PRIMARY KEY":                                                   false,
			at + "," + headers + "," + payload + ", id BIGINT UNSIGNED PRIMARY KEY":                                                         false,
			at + "," + headers + "," + payload + ", id BIGINT UNSIGNED AUTO_INCREMENT, x INT NOT NULL DEFAULT 1, KEY (id), PRIMARY KEY (x)": false,
			id + "," + at + "," + headers:                                                                                                   false,
			id:                                                                                                                              false,
		} {
			mysqltest.ExecAll(t, conn, "DROP TABLE IF EXISTS t", "CREATE TABLE t ("+columns+")")
			assert.Equal(t, want, describe(t, conn, "t").IsMessageTable(), columns)
		}
	})
}
