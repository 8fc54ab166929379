package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/wake"
	schema "github.com/mqnotify/mqnotify/sql"
)

// grantsOptions are grants' flags.
type grantsOptions struct {
	roles   []string
	account string
}

func newGrants(a *app) *cobra.Command {
	var o grantsOptions
	cmd := &cobra.Command{
		Use:   "grants [TOPIC...]",
		Short: "Print the least privileges that each role needs, as GRANT statements",
		Long: `Prints what an account needs in each role, and no more. It asks no server: the
database is --database, or that of the DSN or my.cnf. The roles listener, guard, enqueuer,
worker, tasks, scheduler and ring need no TOPIC.

The offsets, dead letters and tasks of all topics and queues of a database are in the same
tables. Give parties that don't trust each other a database each.`,
		Example: `  mqnotify grants orders --database shop --to 'worker@10.0.%'
  mqnotify grants orders --database shop --role consumer
  mqnotify grants --database shop --role guard   # lock and once need no topic
  mqnotify grants --database shop --role worker`,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(_ *cobra.Command, topics []string) error {
			if len(topics) == 0 && !o.withoutTopics() {
				return usagef("TOPIC is missing: name it, or roles that need none: --role %s", strings.Join(topicless, ","))
			}
			text, err := a.grants(o, topics)
			if err != nil {
				return err
			}
			return ignoreBrokenPipe(writeAll(a.out, text))
		},
	}
	cmd.Flags().StringSliceVar(&o.roles, "role", roles, "only these roles, with commas between them")
	cmd.Flags().StringVar(&o.account, "to", "app@%", "the `account`, as user@host")
	completeWith(cmd, "role", roles...)
	completeNothing(cmd, "to")
	return cmd
}

const (
	roleProducer  = "producer"
	roleConsumer  = "consumer"
	roleTailer    = "tailer"
	roleListener  = "listener"
	roleFlag      = "flag"
	roleStatus    = "status"
	roleDead      = "dead"
	roleGuard     = "guard"
	roleEnqueuer  = "enqueuer"
	roleWorker    = "worker"
	roleTasks     = "tasks"
	roleScheduler = "scheduler"
	roleRing      = "ring"
	roleImporter  = "importer"
	roleServe     = "serve"
	roleCapture   = "capture"
	roleAdmin     = "admin"
)

var (
	roles = []string{
		roleProducer, roleConsumer, roleTailer, roleListener, roleFlag, roleStatus, roleDead,
		roleImporter, roleServe, roleCapture, roleGuard, roleEnqueuer, roleWorker, roleTasks,
		roleScheduler, roleRing, roleAdmin,
	}
	topicless = []string{roleListener, roleGuard, roleEnqueuer, roleWorker, roleTasks, roleScheduler, roleRing}
)

// withoutTopics reports whether the user asks only for roles of guards and queues, whose
// tables are the same for all.
func (o grantsOptions) withoutTopics() bool {
	return !slices.ContainsFunc(o.roles, func(role string) bool { return !slices.Contains(topicless, role) })
}

// need is a set of privileges that belong together.
type need struct {
	roles  []string
	what   string
	grants []grant
}

// grant is privileges on a table of the database, or on each topic if table is
// empty, its name with suffix behind it, or on what else on names, or on a routine or all of the database.
type grant struct {
	privileges, table, on, suffix, routine string
	database                               bool
}

// An account that may insert an id can insert the largest one, and the table takes no more rows. So these name the columns.
const (
	insertMessage = "INSERT (headers,payload)"
	insertTask    = "INSERT (queue,state,turn,state_at,priority,retries,unique_key,payload)"
)

var needs = []need{
	{[]string{roleProducer}, "producer: mqnotify produce",
		[]grant{{privileges: insertMessage}}},
	{[]string{roleProducer}, "besides, for produce --flag",
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
	{[]string{roleFlag}, "flag: mqnotify flag, --reset included",
		[]grant{{privileges: "SELECT"}, {privileges: "SELECT, DELETE", table: schema.FlagTable}}},
	{[]string{roleStatus}, "status: mqnotify status",
		[]grant{
			{privileges: "SELECT"},
			{privileges: "SELECT", table: schema.OffsetTable},
			{privileges: "SELECT", table: schema.DeadLetterTable},
		}},
	{[]string{roleStatus}, "besides, for groups whose members share them",
		[]grant{{privileges: "SELECT", table: schema.PartitionTable}}},
	{[]string{roleStatus}, "besides, for groups where several servers take writes",
		[]grant{{privileges: "SELECT", table: schema.LeaseTable}}},
	{[]string{roleStatus}, "besides, to see which wake triggers work",
		[]grant{{privileges: "EXECUTE", routine: wake.TablesRoutine}}},
	{[]string{roleStatus}, "besides, to count the sessions of other accounts, and to see how old their transactions are",
		[]grant{{privileges: "PROCESS", on: "*.*"}}},
	{[]string{roleDead}, "dead: mqnotify dead",
		[]grant{
			{privileges: "SELECT"},
			{privileges: "SELECT", table: schema.DeadLetterTable},
			{privileges: "SELECT", table: schema.RetryTable},
		}},
	{[]string{roleDead}, "dead, for retry and delete of messages",
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
	{[]string{roleGuard}, "guard, for RowMutex, in Go",
		[]grant{{privileges: "SELECT, INSERT, DELETE", table: schema.RowMutexTable}}},
	{[]string{roleGuard}, "guard, for FlagMutex, in Go",
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
		"-- mqnotify init has made. The triggers run with these rights. MySQL with a binary log wants SUPER too, or\n" +
		"-- log_bin_trust_function_creators=1",
		[]grant{{privileges: "SELECT"}, {privileges: "TRIGGER"}, {privileges: "INSERT", suffix: "_changes"}}},
	{[]string{roleCapture}, "capture, besides: mqnotify capture repair, which locks the table while it changes the triggers",
		[]grant{{privileges: "LOCK TABLES", database: true}}},
	{[]string{
		roleProducer, roleTailer, roleConsumer, roleListener, roleServe, roleImporter,
		roleEnqueuer, roleWorker, roleTasks, roleScheduler, roleRing,
	}, "all that listen or write, besides: to be woken by wake triggers, and to wake the listeners of tables without one (mqnotify\n" +
		"-- wake). The account that made the triggers needs CONNECTION_ADMIN (MySQL) or CONNECTION ADMIN (MariaDB) to wake\n" +
		"-- listeners of other accounts. Without these, rows are found by polling, up to a second later",
		[]grant{
			{privileges: "EXECUTE", routine: wake.Routine},
			{privileges: "EXECUTE", routine: wake.TablesRoutine},
		}},
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
	{[]string{roleAdmin}, "besides, for init --trigger, whose triggers run with these rights. MySQL with a binary log\n" +
		"-- wants SUPER too, or log_bin_trust_function_creators=1",
		[]grant{
			{privileges: "TRIGGER"},
			{privileges: "SELECT, INSERT, UPDATE", table: schema.FlagTable},
		}},
}

// statements are the GRANTs without their TO.
func (n need) statements(database string, topics []string) (all []string) {
	for _, g := range n.grants {
		switch {
		case g.database:
			all = append(all, "GRANT "+g.privileges+" ON "+ident.Quote(database)+".*")
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

func (a *app) grants(o grantsOptions, topics []string) (string, error) {
	for _, role := range o.roles {
		if err := oneOf("role", role, roles...); err != nil {
			return "", err
		}
	}
	for _, topic := range topics {
		if err := ident.Check(topic); err != nil {
			return "", err
		}
	}
	database, err := a.database()
	if err != nil {
		return "", err
	}
	var text strings.Builder
	text.WriteString("-- Make the tables first (mqnotify init): servers refuse most grants on tables that are not there.\n")
	for _, n := range needs {
		if !slices.ContainsFunc(n.roles, func(role string) bool { return slices.Contains(o.roles, role) }) {
			continue
		}
		fmt.Fprintf(&text, "\n-- %s\n", n.what)
		for _, statement := range n.statements(database, topics) {
			fmt.Fprintf(&text, "%s TO %s;\n", statement, quoteAccount(o.account))
		}
	}
	return text.String(), nil
}

// database is the database's name, by --database even where nothing names a server.
func (a *app) database() (string, error) {
	if name := a.connection.database; name != "" {
		if err := ident.Check(name); err != nil {
			return "", usagef("--database: %w", err)
		}
		return name, nil
	}
	config, err := a.config()
	switch {
	case errors.Is(err, errNoServer):
		return "", usagef("name the database: --database NAME, or a DSN that has it")
	case err == nil && config.DBName == "":
		err = errNoDatabase
	}
	if err != nil {
		return "", err
	}
	return config.DBName, nil
}

// quoteAccount reads user@host, quoted in any way or not. Identifier's quotes mean
// the same under every sql_mode.
func quoteAccount(account string) string {
	user, host := account, "%"
	if at := strings.LastIndexByte(account, '@'); at >= 0 {
		user, host = account[:at], account[at+1:]
	}
	return ident.Quote(unquote(user)) + "@" + ident.Quote(unquote(host))
}

func unquote(s string) string {
	if len(s) >= 2 && s[0] == s[len(s)-1] && strings.IndexByte("'\"`", s[0]) >= 0 {
		return s[1 : len(s)-1]
	}
	return s
}
