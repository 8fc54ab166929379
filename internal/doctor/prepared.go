package doctor

import (
	"context"
	"fmt"
	"strings"

	"github.com/mqnotify/mqnotify/internal/server"
)

// prepared returns the ids of the server's prepared XA transactions, in the form that XA COMMIT and XA ROLLBACK accept; none if the
// account may not see them.
func (e *exam) prepared(ctx context.Context) ([]string, error) {
	var rows []struct {
		Format int64  `db:"formatID"`
		Global int    `db:"gtrid_length"`
		Branch int    `db:"bqual_length"`
		Data   []byte `db:"data"`
	}
	err := e.all(ctx, &rows, "XA RECOVER")
	if server.Number(err) != 0 { // MySQL requires XA_RECOVER_ADMIN; a server may have no XA
		return nil, nil
	}
	ids := make([]string, 0, len(rows))
	for _, r := range rows {
		if r.Global+r.Branch <= len(r.Data) {
			ids = append(ids, fmt.Sprintf("X'%X',X'%X',%d", r.Data[:r.Global], r.Data[r.Global:r.Global+r.Branch], r.Format))
		}
	}
	return ids, err
}

// endPrepared returns the remedy that ends a prepared transaction, which may be any of ids.
func endPrepared(ids []string) string {
	const most = 5
	switch {
	case len(ids) == 0:
		return "XA RECOVER names it (with the privilege XA_RECOVER_ADMIN), XA COMMIT or XA ROLLBACK ends it"
	case len(ids) == 1:
		return "XA COMMIT or XA ROLLBACK " + ids[0]
	case len(ids) > most:
		ids = append(ids[:most:most], "...")
	}
	return "XA COMMIT or XA ROLLBACK one of XA RECOVER's: " + strings.Join(ids, " or ")
}
