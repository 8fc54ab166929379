package table

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/server"
)

const shopTable = `CREATE TABLE shop (
	id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY,
	sku VARCHAR(40) CHARACTER SET latin1 NOT NULL,
	n INT(6) ZEROFILL NOT NULL DEFAULT 1,
	kind ENUM('signed', 'an unsigned one', 'invisible') CHARACTER SET utf8mb4 NOT NULL,
	made DATETIME(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
	details JSON,
	twice BIGINT GENERATED ALWAYS AS (n * 2) VIRTUAL,
	thrice BIGINT GENERATED ALWAYS AS (n * 3) STORED,
	raw VARBINARY(9) NOT NULL,
	UNIQUE KEY one (n),
	UNIQUE KEY two (kind, sku(3)),
	KEY three (raw)
) ENGINE=InnoDB`

func TestDescribe(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		cfg := s.Database(t)
		conn := open(t, cfg)
		mysqltest.ExecAll(t, conn, shopTable)
		table := describe(t, conn, "shop")

		assert.Equal(t, cfg.DBName, table.Schema)
		assert.Equal(t, "shop", table.Name)
		assert.Equal(t, "InnoDB", table.Engine)
		assert.False(t, table.IsView)
		for i := range table.Columns {
			// Display widths, and the type behind JSON, differ from server to server.
			assert.NotEmpty(t, table.Columns[i].ColumnType)
			table.Columns[i].ColumnType = ""
			assert.Equal(t, table.Columns[i].CharSet == "", table.Columns[i].Collation == "", table.Columns[i].Name)
			table.Columns[i].Collation = "" // the default differs, too
			if table.Columns[i].IsJSON {
				table.Columns[i].DataType, table.Columns[i].CharSet = "json", ""
			}
		}
		assert.Equal(t, []Column{
			{Name: "id", DataType: "bigint", Unsigned: true, AutoIncrement: true, HasDefault: true},
			{Name: "sku", DataType: "varchar", CharSet: "latin1"},
			{Name: "n", DataType: "int", Unsigned: true, HasDefault: true},
			{Name: "kind", DataType: "enum", CharSet: "utf8mb4"},
			{Name: "made", DataType: "datetime", HasDefault: true},
			{Name: "details", DataType: "json", Nullable: true, HasDefault: true, IsJSON: true},
			{Name: "twice", DataType: "bigint", Nullable: true, HasDefault: true, Generated: true},
			{Name: "thrice", DataType: "bigint", Nullable: true, HasDefault: true, Generated: true},
			{Name: "raw", DataType: "varbinary"},
		}, table.Columns)
		assert.ElementsMatch(t, []Index{
			{Name: "PRIMARY", Unique: true, Ordered: true, Columns: []string{"id"}},
			{Name: "one", Unique: true, Ordered: true, Columns: []string{"n"}},
			{Name: "two", Unique: true, Ordered: true, Columns: []string{"kind", ""}},
			{Name: "three", Ordered: true, Columns: []string{"raw"}},
		}, table.Indexes)

		assert.True(t, table.Unique("id"))
		assert.True(t, table.Unique("n"))
		assert.False(t, table.Unique("kind"))
		assert.False(t, table.Unique("raw"))
		assert.True(t, table.CheapHead("raw"))
		assert.False(t, table.CheapHead("sku"))
	})
}

func TestInvisibleColumnsAndIndexes(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		conn := open(t, s.Database(t))
		hidden := "INVISIBLE"
		if s.IsMariaDB() {
			hidden = "IGNORED"
		}
		mysqltest.ExecAll(t, conn, "CREATE TABLE t (a INT NOT NULL, b INT INVISIBLE DEFAULT 1, KEY a (a) "+hidden+")")
		table := describe(t, conn, "t")
		assert.False(t, table.Columns[0].Invisible)
		assert.True(t, table.Columns[1].Invisible)
		assert.False(t, table.CheapHead("a"), "the optimizer must not use the index")
		_, err := table.KeyColumn("a")
		assert.ErrorIs(t, err, ErrNoKey)
	})
}

func TestJSONColumns(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		cfg := s.Database(t)
		conn := open(t, cfg)
		for _, mode := range []string{"", "ANSI_QUOTES"} {
			mysqltest.ExecAll(t, conn, "SET sql_mode = '"+mode+"'", "DROP TABLE IF EXISTS t",
				"CREATE TABLE t (a JSON, `b\"``'` JSON NOT NULL COMMENT 'b', c LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"+
					" COMMENT ' CHECK (json_valid(`c`)),\\n', d VARCHAR(9), e JSON AS (JSON_ARRAY()) STORED, f JSON)")
			// An account that may only read must see the same as the account that created the table.
			reader := open(t, s.User(t, cfg, "SELECT ON "+ident.Quote(cfg.DBName)+".*"))
			mysqltest.ExecAll(t, reader, "SET sql_mode = '"+mode+"'")
			for _, table := range []*Table{describe(t, conn, "t"), describe(t, reader, "t")} {
				json := map[string]bool{}
				for _, c := range table.Columns {
					json[c.Name] = c.IsJSON
				}
				assert.Equal(t, map[string]bool{"a": true, "b\"`'": true, "c": false, "d": false, "e": true, "f": true}, json)
			}
		}

		// With privileges on single columns the definition can't be read, and only visible columns are described.
		narrow := open(t, s.User(t, cfg, "SELECT (a, d) ON "+ident.Quote(cfg.DBName)+".t"))
		table := describe(t, narrow, "t")
		require.Len(t, table.Columns, 2)
		assert.Equal(t, !s.IsMariaDB(), table.Columns[0].IsJSON)
		assert.Equal(t, "d", table.Columns[1].Name)
	})
}

func TestNoTable(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		cfg := s.Database(t)
		conn := open(t, cfg)
		ctx := testContext(t)
		mysqltest.ExecAll(t, conn, "CREATE TABLE orders (id INT PRIMARY KEY)", "CREATE TABLE other (id INT PRIMARY KEY)")

		_, err := Describe(ctx, conn, cfg.DBName, "order")
		assert.ErrorIs(t, err, ErrNoTable)
		assert.EqualError(t, err, "no table `order` in database `"+cfg.DBName+"` (did you mean `orders`?), "+
			"or this account has no privilege on it: SHOW TABLES lists what it sees, SHOW GRANTS what it may do")

		_, err = Describe(ctx, conn, "no_such_database", "orders")
		assert.ErrorIs(t, err, ErrNoTable)
		assert.ErrorContains(t, err, "no table `orders` in database `no_such_database`, or this account")

		// The account sees that the database has another table.
		limited := open(t, s.User(t, cfg, "SELECT ON "+ident.Quote(cfg.DBName)+".other"))
		_, err = Describe(ctx, limited, cfg.DBName, "orders")
		assert.ErrorIs(t, err, ErrNoTable)
		assert.ErrorContains(t, err, "no privilege on it")
		assert.NotContains(t, err.Error(), "did you mean `orders`")

		found, err := Describe(ctx, s.Admin(t), cfg.DBName, "orders")
		require.NoError(t, err)
		assert.Equal(t, cfg.DBName, found.Schema)

		for _, name := range []string{"", strings.Repeat("x", 65), "x\x00", "x "} {
			_, err = Describe(ctx, conn, cfg.DBName, name)
			var invalid *ident.InvalidError
			assert.ErrorAs(t, err, &invalid, "%q", name)
			_, err = found.Column(name)
			assert.ErrorAs(t, err, &invalid, "%q", name)
		}
	})
}

func TestServerLosesTheSession(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		cfg := s.Database(t)
		conn := open(t, cfg)
		mysqltest.ExecAll(t, conn, "CREATE TABLE t (id INT PRIMARY KEY)")
		table := describe(t, conn, "t")
		var id uint64
		require.NoError(t, conn.QueryRowContext(testContext(t), "SELECT CONNECTION_ID()").Scan(&id))
		kill := fmt.Sprintf("KILL CONNECTION %d", id)
		require.Eventually(t, func() bool { // until it has ended
			_, err := s.Admin(t).ExecContext(testContext(t), kill)
			return server.Is(err, server.ErrNoSuchThread)
		}, 30*time.Second, 5*time.Millisecond)
		_, err := Describe(testContext(t), conn, cfg.DBName, "t")
		require.Error(t, err)
		assert.NotErrorIs(t, err, ErrNoTable)
		_, _, err = NextAutoIncrement(testContext(t), conn, table)
		require.Error(t, err)
		assert.NotErrorIs(t, err, ErrNoTable)
	})
}

func TestNameAsTheServerStoresIt(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		conn := open(t, s.Database(t))
		mysqltest.ExecAll(t, conn, "CREATE TABLE Orders (Id INT PRIMARY KEY)")
		var folds int
		require.NoError(t, conn.QueryRowContext(testContext(t), "SELECT @@lower_case_table_names").Scan(&folds))
		table, err := Describe(testContext(t), conn, database(t, conn), "ORDERS")
		if folds == 0 {
			assert.ErrorIs(t, err, ErrNoTable)
			assert.ErrorContains(t, err, "did you mean `Orders`?")
		} else {
			require.NoError(t, err)
			assert.True(t, strings.EqualFold("Orders", table.Name))
		}
		c, err := describe(t, conn, "Orders").Column("ID")
		require.NoError(t, err)
		assert.Equal(t, "Id", c.Name)
	})
}

func TestNameFoldedToLowerCase(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		if !s.IsMariaDB() {
			t.Skip("MySQL takes lower_case_table_names only when its data folder is made")
		}
		folding := s.Start(t, "--lower-case-table-names=1")
		conn := open(t, folding.Database(t))
		mysqltest.ExecAll(t, conn, "CREATE TABLE Orders (id INT PRIMARY KEY)")
		assert.Equal(t, "orders", describe(t, conn, "ORDERS").Name)
	})
}
