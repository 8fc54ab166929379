package doctor

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
)

func TestTables(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := initialised(t, s)
		mysqltest.ExecAll(t, db.Pool(),
			"CREATE TABLE `my``\nisam` (id INT AUTO_INCREMENT PRIMARY KEY) ENGINE=MyISAM",
			"CREATE TABLE hashed (id BIGINT AUTO_INCREMENT PRIMARY KEY) ENGINE=MEMORY",
			"CREATE TABLE named (name VARCHAR(9) PRIMARY KEY, n INT NOT NULL, KEY (n))",
			"CREATE TABLE twins (n INT AUTO_INCREMENT, KEY (n))",
			"CREATE TABLE filled (id SMALLINT UNSIGNED AUTO_INCREMENT PRIMARY KEY)", "CREATE TABLE sequence (id BIGINT PRIMARY KEY)", "INSERT INTO filled VALUES (7), (41)",
			"CREATE VIEW seen AS SELECT * FROM filled",
		)
		found := examine(t, db, "my`\nisam", "hashed", "named", "twins", "filled", "sequence", "seen", "order", "", "orders")
		of := func(topic, check string) Result {
			var all findings
			for _, r := range found.of(check) {
				if r.Topic == topic {
					all = append(all, r)
				}
			}
			require.Len(t, all, 1, "%s of %s in\n%v", check, topic, found)
			return all[0]
		}
		says(t, of("my`\nisam", "engine"), Warning, "MyISAM has no transactions", "ALTER TABLE `my``\nisam` ENGINE=InnoDB")
		says(t, of("my`\nisam", "key"), OK, "the table is empty", "")
		says(t, of("hashed", "engine"), Warning, "MEMORY has no transactions", "ENGINE=InnoDB")
		says(t, of("hashed", "key"), Warning, "no index that can be read in order", "--flag")
		says(t, of("named", "key"), Problem, "no integer key: name one with --id-column, such as `n`", "")
		says(t, of("twins", "key"), Problem, "no unique index of its own", "ALTER TABLE `twins` ADD UNIQUE KEY (`n`)")
		says(t, of("filled", "key"), OK, "key `id` (smallint", "")
		assert.Contains(t, of("filled", "key").Text, "the largest is 41")
		says(t, of("sequence", "key"), Problem, "is not AUTO_INCREMENT: a row that is inserted later with a smaller key is lost", "mqnotify capture install sequence")
		assert.NotContains(t, of("sequence", "writers").Text, "no row that commits late is lost")
		says(t, of("filled", "table"), OK, "`"+config.DBName+"`.`filled` is no message table", "")
		says(t, of("filled", "privileges"), OK, "can consume and tail", "")
		says(t, of("seen", "table"), Problem, "is a view", "the table behind it")
		says(t, of("order", "table"), Problem, "did you mean `orders`?", "mqnotify init")
		says(t, of("", "table"), Problem, "it is empty", "")
		says(t, of("orders", "table"), OK, "is a message table", "")
		for _, gone := range []string{"seen", "order", ""} {
			for _, r := range found {
				assert.False(t, r.Topic == gone && r.Check == "key", "a topic that is not there has no key")
			}
		}
	})
}

func TestFewPrivileges(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, _ := initialised(t, s)
		in := " ON " + config.DBName + "."

		reader := examine(t, open(t, s.User(t, config, "SELECT"+in+"orders")), "orders")
		assert.NotContains(t, reader.String(), string(Problem), "missing privileges are no problem for a reader")
		says(t, reader.of("privileges")[0], OK, "this account can consume and tail", "")
		says(t, reader.of("privileges")[1], Warning, "can't produce", "mqnotify grants")
		says(t, reader.of("state")[0], Warning,
			"can't keep the offsets of a group, keep dead letters, set the flag, read the flag, reset the flag: Error 1142", "mqnotify grants")
		assert.Len(t, reader.of("state"), 1)
		says(t, reader.only(t, "writers"), Warning, "may LOSE its rows", "PROCESS")
		says(t, reader.only(t, "transactions"), OK, "none that this account can see", "")

		writer := examine(t, open(t, s.User(t, config, "INSERT"+in+"orders")), "orders")
		says(t, writer.of("privileges")[0], OK, "this account can produce", "")
		says(t, writer.of("privileges")[1], Warning, "can't consume and tail", "mqnotify grants")

		member := examine(t, open(t, s.User(t, config, "SELECT"+in+"orders", "SELECT, INSERT, UPDATE"+in+schema.OffsetTable,
			"INSERT, UPDATE"+in+schema.DeadLetterTable, "SELECT"+in+schema.FlagTable, "PROCESS ON *.*")), "orders")
		says(t, member.of("state")[0], OK, "of a version that this account may not see: this account can keep the offsets of a group, keep dead letters, read the flag", "")
		says(t, member.only(t, "writers"), OK, "INNODB_TRX", "")

		stranger := examine(t, open(t, s.User(t, config, "SELECT"+in+schema.FlagTable)), "orders")
		says(t, stranger.only(t, "table"), Problem, "or this account has no privilege on it", "mqnotify init")
	})
}

func TestState(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := open(t, s.Database(t))
		says(t, examine(t, db).only(t, "state"), Warning, "has no tables of mqnotify", "mqnotify init")

		require.NoError(t, schema.Init(t.Context(), db.Pool()))
		says(t, examine(t, db).only(t, "state"), OK, "this account can keep the offsets of a group, keep dead letters, set the flag, read the flag, reset the flag", "")

		mysqltest.ExecAll(t, db.Pool(), "DROP TABLE "+schema.DeadLetterTable)
		says(t, examine(t, db).of("state").worse()[0], Warning, "can't keep dead letters", "mqnotify init")

		newest := schema.Newest()
		mysqltest.ExecAll(t, db.Pool(), "UPDATE "+schema.VersionTable+" SET version = 0")
		says(t, examine(t, db).only(t, "state"), Problem, fmt.Sprintf("have version 0, and this mqnotify needs %d", newest), "mqnotify init")

		mysqltest.ExecAll(t, db.Pool(), "UPDATE "+schema.VersionTable+" SET version = 99")
		worse := examine(t, db).of("state").worse()
		says(t, worse[len(worse)-1], Warning, "have version 99", "update this mqnotify")
	})
}

func TestFlagTriggers(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		_, db := initialised(t, s)
		for event, form := range map[string]schema.TriggerForm{"INSERT": schema.TriggerCounter, "DELETE": schema.TriggerRow} {
			statement, err := schema.Trigger("orders", form, event)
			require.NoError(t, err)
			mysqltest.ExecAll(t, db.Pool(), statement)
		}
		mysqltest.ExecAll(t, db.Pool(),
			"CREATE TRIGGER mqnotify_update_orders AFTER UPDATE ON orders FOR EACH ROW SET @x = 1",
			"CREATE TRIGGER shops_own AFTER UPDATE ON orders FOR EACH ROW SET @x = 2")

		found := examine(t, db, "orders").of("flag")
		require.Len(t, found, 3, "%v", found)
		says(t, found[0], OK, "`mqnotify_delete_orders` sets the flag's row at every DELETE", "")
		says(t, found[1], OK, "`mqnotify_insert_orders` counts every INSERT in the flag", "")
		says(t, found[2], Warning, "`mqnotify_update_orders` has the name of a flag's trigger, and does something else", "DROP TRIGGER `mqnotify_update_orders`")

		mysqltest.ExecAll(t, db.Pool(), "DROP TABLE "+schema.FlagTable)
		found = examine(t, db, "orders").of("flag")
		says(t, found[len(found)-1], Problem, "writes to the topic fail", "mqnotify init")
	})
}

// A table that a DDL statement locks is not checked. The other tables are.
func TestLockedTable(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		_, db := initialised(t, s)
		mysqltest.ExecAll(t, db.Pool(), "CREATE TABLE other (id INT AUTO_INCREMENT PRIMARY KEY)")
		holder := session(t, db)
		mysqltest.ExecAll(t, holder, "LOCK TABLES orders WRITE")
		found := examine(t, db, "orders", "other")
		says(t, found.of("key")[0], Warning, "not checked: Error 1205", "LOCK TABLES")
		says(t, found.of("key")[1], OK, "the table is empty", "")
		mysqltest.ExecAll(t, holder, "UNLOCK TABLES")
	})
}
