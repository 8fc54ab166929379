package schema_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/notify"
)

// TestExamples runs the example that needs a server, on each server.
func TestExamples(t *testing.T) {
	mysqltest.EachInTurn(t, func(t *testing.T, s *mysqltest.Server) {
		t.Setenv("MQNOTIFY_DSN", s.Database(t).FormatDSN())
		require.Equal(t, "the newest tables: true\n", mysqltest.Output(t, ExampleInit))
	})
}

// Init at a program's start replaces `mqnotify init orders`.
func ExampleInit() {
	ctx := context.Background()
	db, err := notify.Open(os.Getenv("MQNOTIFY_DSN"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = db.Close() }()
	if err := schema.Init(ctx, db.Pool(), "orders"); err != nil {
		fmt.Println(err)
		return
	}
	var version int
	err = db.Pool().GetContext(ctx, &version, "SELECT MAX(version) FROM "+schema.VersionTable)
	fmt.Println("the newest tables:", version == schema.Newest() && err == nil)
}

// Script is for an administrator, or for a migration tool.
func ExampleScript() {
	script, err := schema.Script("orders")
	fmt.Println(strings.Contains(script, "CREATE TABLE IF NOT EXISTS `orders`"), err)
	// Output: true <nil>
}

func ExampleTopic() {
	fmt.Println(schema.Topic("orders"))
	// Output:
	// CREATE TABLE IF NOT EXISTS `orders` (
	//   id         BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
	//   created_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
	//   headers    JSON NULL,
	//   payload    LONGBLOB NOT NULL,
	//   PRIMARY KEY (id)
	// ) ENGINE=InnoDB
}

// This trigger sets the flag of a table at every change by any program.
func ExampleTrigger() {
	statement, err := schema.Trigger("customers", schema.TriggerCounter, "update")
	if err != nil {
		fmt.Println(err)
		return
	}
	for line := range strings.Lines(statement) {
		if !strings.HasPrefix(line, "--") {
			fmt.Print(line)
		}
	}
	// Output:
	// CREATE TRIGGER `mqnotify_update_customers` AFTER UPDATE ON `customers` FOR EACH ROW
	//   INSERT INTO mqnotify_flag (topic, counter) VALUES ('customers', 1)
	//   ON DUPLICATE KEY UPDATE counter = counter + 1;
}

func ExampleTriggerName() {
	fmt.Println(schema.TriggerName("customers", "UPDATE"))
	// Output: mqnotify_update_customers
}

func ExampleCaptureName() {
	fmt.Println(schema.CaptureName("customers", "UPDATE"))
	// Output: mqnotify_capture_update_customers
}

// capture.Install makes such a trigger, with an SQL expression for the row.
func ExampleCaptureTrigger() {
	trigger := schema.CaptureTrigger{
		Table: "stock", Topic: "stock_changes", Event: "delete", Old: schema.CaptureRow{Row: "JSON_OBJECT('id', OLD.id)"},
	}
	statement, err := trigger.Statement()
	fmt.Println(trigger.Name(), strings.Contains(statement, "JSON_OBJECT('id', OLD.id)"), err)
	// Output: mqnotify_capture_delete_stock true <nil>
}

// OpenWriters is for a script that an administrator runs.
func ExampleOpenWriters() {
	for line := range strings.Lines(schema.OpenWriters()) {
		if strings.HasPrefix(line, "CREATE") {
			fmt.Print(line)
		}
	}
	// Output: CREATE PROCEDURE mqnotify_open_writers(number BIGINT UNSIGNED)
}
