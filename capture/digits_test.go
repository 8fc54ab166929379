package capture

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// An UPDATE of the last bit of a DOUBLE writes a message, however many digits the number has.
func TestCaptureOfTheLastBit(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := open(t, s.Database(t))
		mysqltest.ExecAll(t, db.Pool(), "CREATE TABLE measured (id INT PRIMARY KEY, d DOUBLE NOT NULL)", "INSERT INTO measured VALUES (1, 0)")
		_, err := Install(t.Context(), db, "measured", Options{})
		require.NoError(t, err)
		d := -1.2345678901234567e-100
		const updates = 100
		for range updates {
			mysqltest.Exec(t, db.Pool(), fmt.Sprintf("UPDATE measured SET d = %v", d))
			d = math.Nextafter(d, -1)
		}
		require.Len(t, changes(t, db, "measured_changes"), updates)
	})
}
