package main

import (
	"strings"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/routines"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/waiting"
)

// need is a set of privileges that belong together.
type need struct {
	roles  []string
	what   string
	grants []grant
}

// grant has privileges on one of: the whole database (database), a routine, any object (on), a table of the database (table),
// or, if all of these are empty, the table of each topic, with suffix appended to its name.
type grant struct {
	privileges, table, on, suffix, routine string
	database                               bool
}

// These name the columns, without the id, because an account that may insert the largest id can make the table refuse all
// further rows.
const (
	insertMessage = "INSERT (headers,payload)"
	insertTask    = "INSERT (queue,state,claim_order,state_at,priority,retries,unique_key,payload)"
)

var needs = []need{
	{[]string{roleProducer}, "producer: mqnotify produce",
		[]grant{{privileges: insertMessage}}},
	{[]string{roleProducer}, "besides, for produce --set-flag",
		[]grant{{privileges: "SELECT, INSERT, UPDATE", table: schema.FlagTable}}},
	{[]string{roleTailer, roleConsumer}, "tailer and consumer: mqnotify tail, and consume without --group",
		[]grant{{privileges: "SELECT"}}},
	{[]string{roleConsumer}, "besides, for consume --group: offsets and dead letters",
		[]grant{
			{privileges: "SELECT, INSERT, UPDATE", table: schema.OffsetTable},
			{privileges: "SELECT, INSERT, UPDATE", table: schema.DeadLetterTable},
		}},
	{[]string{roleConsumer}, "besides, for consume --members-share",
		[]grant{{privileges: "SELECT, INSERT, UPDATE", table: schema.PartitionTable}}},
	{[]string{roleConsumer}, "besides, with PROCESS, to notice that the table was truncated and filled past the offset while no consumer ran",
		[]grant{{privileges: "SELECT, INSERT, UPDATE", table: schema.OriginTable}}},
	{[]string{roleConsumer}, "besides, to try rows of a table of your own again, for which mqnotify dead asks",
		[]grant{
			{privileges: "DELETE", table: schema.DeadLetterTable},
			{privileges: "SELECT, DELETE", table: schema.RetryTable},
		}},
	{[]string{roleConsumer}, "besides, for consume --flag row (for --flag counter, SELECT alone)",
		[]grant{{privileges: "SELECT, DELETE", table: schema.FlagTable}}},
	{[]string{roleServe}, "serve: mqnotify serve, for events and polling, and to show groups and dead letters",
		[]grant{
			{privileges: "SELECT"},
			{privileges: "SELECT", table: schema.OffsetTable},
			{privileges: "SELECT", table: schema.DeadLetterTable},
		}},
	{[]string{roleTailer, roleConsumer, roleServe},
		"besides, to know exactly which transactions may still fill a gap in the ids. Without\n" +
			"-- it, a row of a transaction that stays open for longer than --grace (1 minute) may be lost.\n" +
			"-- On MySQL:",
		[]grant{
			{privileges: "SELECT", on: "`performance_schema`.`metadata_locks`"},
			{privileges: "SELECT", on: "`performance_schema`.`threads`"},
		}},
	{[]string{roleTailer, roleConsumer, roleServe}, "or on MariaDB, and on MySQL instead (all transactions then count, not only the table's):",
		[]grant{{privileges: "PROCESS", on: "*.*"}}},
	{[]string{roleTailer, roleConsumer, roleServe}, "or, on both, if the account that ran mqnotify init has PROCESS:",
		[]grant{{privileges: "EXECUTE", routine: schema.OpenWritersRoutine}}},
	{[]string{roleTailer, roleConsumer, roleServe, roleGuard}, "besides, on a MySQL server that is a replica, or was one before a failover: to know which",
		[]grant{{privileges: "SELECT", on: "`performance_schema`.`replication_applier_status`"}}},
	{[]string{roleListener}, "listener: mqnotify listen",
		[]grant{{privileges: "SELECT", table: schema.NotificationTable}}},
	{[]string{roleListener}, "besides, to delete notifications that are older than an hour. One listening account should have it",
		[]grant{{privileges: "DELETE", table: schema.NotificationTable}}},
	{[]string{roleListener}, "listener, for mqnotify notify",
		[]grant{{privileges: "INSERT (name,payload)", table: schema.NotificationTable}}},
	{[]string{roleSQL}, "sql, to CALL mqnotify_wait from any language",
		[]grant{
			{privileges: "SELECT"},
			{privileges: "EXECUTE", routine: routines.Wait},
			{privileges: "EXECUTE", routine: routines.WaitFor},
		}},
	{[]string{roleSQL}, "sql, to CALL mqnotify_await",
		[]grant{
			{privileges: "SELECT"},
			{privileges: "EXECUTE", routine: routines.Await},
			{privileges: "EXECUTE", routine: routines.WaitFor},
		}},
	{[]string{roleSQL}, "sql, to CALL mqnotify_listen",
		[]grant{
			{privileges: "SELECT", table: schema.NotificationTable},
			{privileges: "EXECUTE", routine: routines.Listen},
			{privileges: "EXECUTE", routine: routines.WaitFor},
		}},
	{[]string{roleSQL}, "sql, besides, for these three: to be woken. Without it they poll",
		[]grant{{privileges: "EXECUTE", routine: routines.CountTriggers}}},
	{[]string{roleSQL}, "sql, to CALL mqnotify_publish",
		[]grant{
			{privileges: insertMessage},
			{privileges: "EXECUTE", routine: routines.Publish},
		}},
	{[]string{roleSQL}, "sql, to CALL mqnotify_notify",
		[]grant{
			{privileges: "INSERT (name,payload)", table: schema.NotificationTable},
			{privileges: "EXECUTE", routine: routines.Notify},
		}},
	{[]string{roleFlag}, "flag: mqnotify flag, --reset included",
		[]grant{{privileges: "SELECT"}, {privileges: "SELECT, DELETE", table: schema.FlagTable}}},
	{[]string{roleStatus}, "status: mqnotify status",
		[]grant{
			{privileges: "SELECT"},
			{privileges: "SELECT", table: schema.OffsetTable},
			{privileges: "SELECT", table: schema.DeadLetterTable},
		}},
	{[]string{roleStatus, roleServe}, "besides, for groups whose members share them",
		[]grant{{privileges: "SELECT", table: schema.PartitionTable}}},
	{[]string{roleStatus, roleServe}, "besides, for groups where several servers take writes",
		[]grant{{privileges: "SELECT", table: schema.LeaseTable}}},
	{[]string{roleStatus}, "besides, to see which wake triggers work",
		[]grant{{privileges: "EXECUTE", routine: waiting.TablesRoutine}}},
	{[]string{roleStatus}, "besides, to count the sessions of other accounts, and to see how old their transactions are",
		[]grant{{privileges: "PROCESS", on: "*.*"}}},
	{[]string{roleDead}, "dead: mqnotify dead",
		[]grant{
			{privileges: "SELECT"},
			{privileges: "SELECT", table: schema.DeadLetterTable},
			{privileges: "SELECT", table: schema.RetryTable},
		}},
	{[]string{roleDead}, "dead, for retry and delete of messages. If the topic has further columns, add them to those of INSERT",
		[]grant{
			{privileges: "SELECT, " + insertMessage},
			{privileges: "SELECT, DELETE", table: schema.DeadLetterTable},
		}},
	{[]string{roleDead}, "dead, for retry and delete of rows of a table of your own",
		[]grant{
			{privileges: "SELECT"},
			{privileges: "SELECT, DELETE", table: schema.DeadLetterTable},
			{privileges: "SELECT, INSERT, DELETE", table: schema.RetryTable},
		}},
	{[]string{roleGuard}, "guard, for any lock: mqnotify lock. Any other privilege in the database will do",
		[]grant{{privileges: "SELECT", table: schema.LeaseTable}}},
	{[]string{roleGuard, roleConsumer}, "besides, for lock --kind lease, and for consume --group where several servers take writes (Galera, a\n" +
		"-- replication group with several primaries)",
		[]grant{{privileges: "SELECT, INSERT, UPDATE", table: schema.LeaseTable}}},
	{[]string{roleGuard}, "guard, for mqnotify once",
		[]grant{{privileges: "SELECT, INSERT, UPDATE", table: schema.OnceTable}}},
	{[]string{roleGuard}, "guard, for once --every",
		[]grant{{privileges: "SELECT, INSERT, UPDATE", table: schema.IntervalTable}}},
	{[]string{roleGuard}, "guard, for Claims, in Go",
		[]grant{{privileges: "SELECT, INSERT, DELETE", table: schema.ClaimTable}}},
	{[]string{roleGuard}, "guard, for mutexes of kind row, in Go",
		[]grant{{privileges: "SELECT, INSERT, DELETE", table: schema.RowMutexTable}}},
	{[]string{roleGuard}, "guard, for mutexes of kind flag, in Go",
		[]grant{{privileges: "SELECT, INSERT, UPDATE", table: schema.FlagMutexTable}}},
	{[]string{roleEnqueuer}, "enqueuer: mqnotify enqueue",
		[]grant{
			{privileges: "SELECT", table: schema.QueueTable},
			{privileges: insertTask, table: schema.TaskTable},
		}},
	{[]string{roleEnqueuer}, "besides, for tasks with a unique key",
		[]grant{
			{privileges: "SELECT", table: schema.TaskTable},
			{privileges: "SELECT, INSERT, UPDATE", table: schema.TaskKeyTable},
		}},
	{[]string{roleEnqueuer, roleWorker}, "besides, for ordered queues, whose row is locked. MySQL wants it, MariaDB does not",
		[]grant{{privileges: "UPDATE", table: schema.QueueTable}}},
	{[]string{roleWorker}, "worker: mqnotify work",
		[]grant{
			{privileges: "SELECT", table: schema.QueueTable},
			{privileges: "SELECT, UPDATE", table: schema.TaskTable},
			{privileges: "SELECT, DELETE", table: schema.TaskKeyTable},
			{privileges: "SELECT", table: schema.ScheduleTable},
		}},
	{[]string{roleWorker}, "besides, for recurring tasks",
		[]grant{
			{privileges: insertTask, table: schema.TaskTable},
			{privileges: "UPDATE", table: schema.ScheduleTable},
		}},
	{[]string{roleWorker}, "besides, for the unique keys of recurring tasks",
		[]grant{{privileges: "INSERT, UPDATE", table: schema.TaskKeyTable}}},
	{[]string{roleWorker}, "besides, for work --discard",
		[]grant{{privileges: "DELETE", table: schema.TaskTable}}},
	{[]string{roleTasks}, "tasks: mqnotify tasks",
		[]grant{
			{privileges: "SELECT", table: schema.QueueTable},
			{privileges: "SELECT, UPDATE, DELETE", table: schema.TaskTable},
			{privileges: "SELECT, DELETE", table: schema.TaskKeyTable},
		}},
	{[]string{roleScheduler}, "scheduler: mqnotify schedule",
		[]grant{
			{privileges: "SELECT", table: schema.QueueTable},
			{privileges: "SELECT, INSERT, UPDATE, DELETE", table: schema.ScheduleTable},
		}},
	{[]string{roleRing}, "ring: mqnotify ring read",
		[]grant{
			{privileges: "SELECT", table: schema.RingTable},
			{privileges: "SELECT", table: schema.RingSlotTable},
		}},
	{[]string{roleRing}, "besides, for ring put",
		[]grant{
			{privileges: "UPDATE", table: schema.RingTable},
			{privileges: "INSERT, DELETE", table: schema.RingSlotTable},
		}},
	{[]string{roleRing}, "besides, for ring create",
		[]grant{{privileges: "INSERT", table: schema.RingTable}}},
	{[]string{roleImporter}, "importer: mqnotify import (mqnotify bridge is a consumer)",
		[]grant{
			{privileges: insertMessage},
			{privileges: "SELECT, INSERT, DELETE", table: schema.ImportTable},
		}},
	{[]string{roleServe}, "serve, besides, for POST: to publish",
		[]grant{{privileges: insertMessage}}},
	{[]string{roleServe}, "serve, besides, to publish with an Idempotency-Key",
		[]grant{
			{privileges: insertMessage},
			{privileges: "SELECT, INSERT, DELETE", table: schema.IdempotencyTable},
		}},
	{[]string{roleServe}, "serve, besides, to retry dead letters of messages, and to delete dead letters",
		[]grant{
			{privileges: insertMessage},
			{privileges: "DELETE", table: schema.DeadLetterTable},
		}},
	{[]string{roleServe}, "serve, besides, the same of rows of a table of your own",
		[]grant{{privileges: "SELECT, INSERT, DELETE", table: schema.RetryTable}}},
	{[]string{roleCapture}, "capture: mqnotify capture install, status and remove, for the table TOPIC into TOPIC_changes, which\n" +
		"-- mqnotify init has made. The triggers run with these rights. A server with a binary log wants SUPER too, or\n" +
		"-- log_bin_trust_function_creators=1",
		[]grant{{privileges: "SELECT"}, {privileges: "TRIGGER"}, {privileges: "INSERT", suffix: "_changes"}}},
	{[]string{roleCapture}, "capture, besides: mqnotify capture repair, which locks the table while it changes the triggers",
		[]grant{{privileges: "LOCK TABLES", database: true}}},
	{[]string{roleCapture}, "capture, besides: mqnotify capture snapshot, and install --snapshot",
		[]grant{{privileges: "SELECT, INSERT, UPDATE", table: schema.SnapshotTable}}},
	{[]string{
		roleProducer, roleTailer, roleConsumer, roleListener, roleServe, roleImporter,
		roleEnqueuer, roleWorker, roleTasks, roleScheduler, roleRing,
	}, "all that listen or write, besides: to be woken by wake triggers, and to wake the listeners of tables without one (mqnotify\n" +
		"-- wake). The account that made the triggers needs CONNECTION_ADMIN (MySQL) or CONNECTION ADMIN (MariaDB) to wake\n" +
		"-- listeners of other accounts. Without these, rows are found by polling, up to a second later",
		[]grant{
			{privileges: "EXECUTE", routine: waiting.WakeRoutine},
			{privileges: "EXECUTE", routine: waiting.TablesRoutine},
		}},
	{[]string{
		roleProducer, roleConsumer, roleTailer, roleListener, roleFlag, roleStatus, roleDead, roleImporter, roleServe, roleGuard,
		roleEnqueuer, roleWorker, roleTasks, roleScheduler, roleRing, roleCapture,
	}, "all, besides: to refuse tables of an older or newer mqnotify",
		[]grant{{privileges: "SELECT", table: schema.VersionTable}}},
	{[]string{roleAdmin}, "admin: mqnotify init",
		[]grant{
			{privileges: "CREATE"},
			{privileges: "CREATE", table: schema.FlagTable},
			{privileges: "CREATE", table: schema.OffsetTable},
			{privileges: "CREATE", table: schema.PartitionTable},
			{privileges: "CREATE", table: schema.DeadLetterTable},
			{privileges: "CREATE", table: schema.RetryTable},
			{privileges: "CREATE", table: schema.OriginTable},
			{privileges: "CREATE", table: schema.OnceTable},
			{privileges: "CREATE, REFERENCES", table: schema.ClaimTable},
			{privileges: "CREATE", table: schema.IntervalTable},
			{privileges: "CREATE", table: schema.RowMutexTable},
			{privileges: "CREATE", table: schema.FlagMutexTable},
			{privileges: "CREATE", table: schema.LeaseTable},
			{privileges: "CREATE", table: schema.NotificationTable},
			{privileges: "CREATE", table: schema.QueueTable},
			{privileges: "CREATE", table: schema.TaskTable},
			{privileges: "CREATE", table: schema.TaskKeyTable},
			{privileges: "CREATE", table: schema.ScheduleTable},
			{privileges: "CREATE", table: schema.RingTable},
			{privileges: "CREATE", table: schema.RingSlotTable},
			{privileges: "CREATE", table: schema.IdempotencyTable},
			{privileges: "CREATE", table: schema.ImportTable},
			{privileges: "CREATE", table: schema.SnapshotTable},
			{privileges: "CREATE, SELECT, INSERT", table: schema.VersionTable},
		}},
	{[]string{roleAdmin}, "besides, for the wake triggers that init and mqnotify wake make, and that run with these rights. A server\n" +
		"-- with a binary log wants SUPER too, or log_bin_trust_function_creators=1. Without them listeners poll",
		[]grant{
			{privileges: "TRIGGER"},
			{privileges: "TRIGGER", table: schema.NotificationTable},
			{privileges: "TRIGGER", table: schema.TaskTable},
			{privileges: "TRIGGER", table: schema.RingTable},
			{privileges: "CREATE ROUTINE", database: true},
		}},
	{[]string{roleAdmin}, "besides, for init --queue",
		[]grant{{privileges: "SELECT, INSERT", table: schema.QueueTable}}},
	{[]string{roleAdmin}, "besides, for init --trigger, whose triggers run with these rights. A server with a binary log\n" +
		"-- wants SUPER too, or log_bin_trust_function_creators=1",
		[]grant{
			{privileges: "TRIGGER"},
			{privileges: "SELECT, INSERT, UPDATE", table: schema.FlagTable},
		}},
}

// literal escapes what GRANT takes for a pattern in the name of a database, where it names no table.
var literal = strings.NewReplacer(`\`, `\\`, "_", `\_`, "%", `\%`)

// statements returns the GRANT statements without "TO account".
func (n need) statements(database string, topics []string) (all []string) {
	for _, g := range n.grants {
		switch {
		case g.database:
			all = append(all, "GRANT "+g.privileges+" ON "+ident.Quote(literal.Replace(database))+".*")
		case g.routine != "":
			all = append(all, "GRANT "+g.privileges+" ON PROCEDURE "+ident.Quote(database)+"."+ident.Quote(g.routine))
		case g.on != "":
			all = append(all, "GRANT "+g.privileges+" ON "+g.on)
		case g.table != "":
			all = append(all, "GRANT "+g.privileges+" ON "+ident.Quote(database)+"."+ident.Quote(g.table))
		default:
			for _, topic := range topics {
				all = append(all, "GRANT "+g.privileges+" ON "+ident.Quote(database)+"."+ident.Quote(topic+g.suffix))
			}
		}
	}
	return all
}
