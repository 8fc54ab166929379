package guard

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/notify"
)

// identify returns the identity of the row, which is the same for every key and every spelling by which a caller names the row:
// the stored values of its primary key.
func (p *place) identify(ctx context.Context, db *notify.DB) (identity string, err error) {
	err = again(ctx, func() error {
		var columns []keyColumn
		// In a table without a primary key, PRI marks the unique key that the server uses as one.
		err := db.Pool().SelectContext(ctx, &columns, `SELECT COLUMN_NAME AS name, LOWER(DATA_TYPE) AS type, COLUMN_KEY = 'PRI' AS pri
			FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ? AND (COLUMN_KEY = 'PRI' OR COLUMN_NAME = ?)
			ORDER BY COLUMN_KEY = 'PRI' DESC, ORDINAL_POSITION`, db.Name(), p.row.Table, p.row.Key)
		if err != nil {
			return err
		}
		var values []string
		for _, c := range columns {
			if c.Primary || len(values) == 0 {
				values = append(values, c.canonical())
			}
		}
		p.identity = "CONCAT_WS(',', " + strings.Join(values, ", ") + ")"
		err = db.Pool().QueryRowContext(ctx, "SELECT "+p.identity+p.from(), p.arg).Scan(&identity)
		if errors.Is(err, sql.ErrNoRows) {
			return ErrNoRow
		}
		return err
	})
	return identity, explain("look for row", p.row.text(), err)
}

type keyColumn struct {
	Name, Type string
	Primary    bool `db:"pri"`
}

// canonical returns an expression for the column's value that no setting of a session
// changes: its character set, time zone or sql_mode.
func (c keyColumn) canonical() string {
	name := ident.Quote(c.Name)
	switch c.Type {
	case "tinyint", "smallint", "mediumint", "int", "bigint", "decimal":
		return name
	case "binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "bit":
		return "HEX(" + name + ")"
	case "timestamp":
		return "UNIX_TIMESTAMP(" + name + ")"
	case "char":
		name = "RTRIM(" + name + ")" // sql_mode PAD_CHAR_TO_FULL_LENGTH adds spaces
	}
	return "HEX(CAST(" + name + " AS CHAR CHARACTER SET utf8mb4))"
}

// leaseName returns the name of the row's lease, with a hash if it would be too long.
func (p *place) leaseName(identity string) string {
	name := "row " + p.key.table + " " + identity
	if checkName("name", name) == nil {
		return name
	}
	return fmt.Sprintf("row %x", sha256.Sum256([]byte(name)))
}
