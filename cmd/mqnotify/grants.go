package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mqnotify/mqnotify/internal/ident"
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
		Use:   "grants TOPIC...",
		Short: "Print the least privileges that each role needs, as GRANT statements",
		Long: `Prints what an account needs in each role, and no more. It asks no server: the
database is --database, or that of the DSN or my.cnf.`,
		Example: `  mqnotify grants orders --database shop --to 'worker@10.0.%'
  mqnotify grants orders --database shop --role consumer`,
		Args:              someNames("TOPIC"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(_ *cobra.Command, topics []string) error {
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
	roleProducer = "producer"
	roleConsumer = "consumer"
	roleTailer   = "tailer"
	roleListener = "listener"
	roleKeeper   = "keeper"
	roleFlag     = "flag"
	roleStatus   = "status"
	roleAdmin    = "admin"
)

var roles = []string{roleProducer, roleConsumer, roleTailer, roleListener, roleKeeper, roleFlag, roleStatus, roleAdmin}

// need is a set of privileges that belong together.
type need struct {
	roles  []string
	what   string
	grants []grant
}

// grant is privileges on a table of the database, or on each topic if table is
// empty, or on what else on names.
type grant struct {
	privileges, table, on string
}

var needs = []need{
	{[]string{roleProducer}, "producer: mqnotify produce",
		[]grant{{privileges: "INSERT"}}},
	{[]string{roleProducer}, "besides, for produce --flag",
		[]grant{{privileges: "SELECT, INSERT, UPDATE", table: schema.FlagTable}}},
	{[]string{roleProducer}, "besides, so that a producer that lives may keep the gate itself, which brings its messages there\n" +
		"-- sooner. Without it a consumer keeps it",
		[]grant{{privileges: "SELECT"}}},
	{[]string{roleTailer, roleConsumer}, "tailer and consumer: mqnotify tail, and consume without --group",
		[]grant{{privileges: "SELECT"}}},
	{[]string{roleConsumer}, "besides, for consume --group: offsets and dead letters",
		[]grant{
			{privileges: "SELECT, INSERT, UPDATE", table: schema.OffsetTable},
			{privileges: "SELECT, INSERT, UPDATE", table: schema.DeadLetterTable},
		}},
	{[]string{roleConsumer}, "besides, for consume --flag row (for --flag counter, SELECT alone)",
		[]grant{{privileges: "SELECT, DELETE", table: schema.FlagTable}}},
	{[]string{roleTailer, roleConsumer},
		"besides, to know exactly which transactions may still fill a gap in the ids. Without\n" +
			"-- it, a row of a transaction that stays open for longer than --grace (1 minute) may be lost.\n" +
			"-- On MySQL:",
		[]grant{
			{privileges: "SELECT", on: "`performance_schema`.`metadata_locks`"},
			{privileges: "SELECT", on: "`performance_schema`.`threads`"},
		}},
	{[]string{roleTailer, roleConsumer}, "or on MariaDB, and on MySQL instead (all transactions then count, not only the table's):",
		[]grant{{privileges: "PROCESS", on: "*.*"}}},
	{[]string{roleListener}, "listener: mqnotify listen and notify. Any privilege in the database will do, if another account keeps\n" +
		"-- the gate, or if the topic is no table",
		[]grant{{privileges: "SELECT"}}},
	{[]string{roleKeeper}, "keeper: mqnotify keeper",
		[]grant{{privileges: "SELECT"}}},
	{[]string{roleKeeper}, "besides, for topics whose flag is set by triggers (init --trigger)",
		[]grant{{privileges: "SELECT", table: schema.FlagTable}}},
	{[]string{roleFlag}, "flag: mqnotify flag, --reset included",
		[]grant{{privileges: "SELECT"}, {privileges: "SELECT, DELETE", table: schema.FlagTable}}},
	{[]string{roleStatus}, "status: mqnotify status",
		[]grant{
			{privileges: "SELECT"},
			{privileges: "SELECT", table: schema.OffsetTable},
			{privileges: "SELECT", table: schema.DeadLetterTable},
		}},
	{[]string{roleStatus}, "besides, to see the sessions of other accounts, and how old their transactions are",
		[]grant{{privileges: "PROCESS", on: "*.*"}}},
	{[]string{roleAdmin}, "admin: mqnotify init",
		[]grant{
			{privileges: "CREATE"},
			{privileges: "CREATE", table: schema.FlagTable},
			{privileges: "CREATE", table: schema.OffsetTable},
			{privileges: "CREATE", table: schema.DeadLetterTable},
			{privileges: "CREATE, SELECT, INSERT", table: schema.VersionTable},
		}},
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
		case g.on != "":
			all = append(all, "GRANT "+g.privileges+" ON "+g.on)
		case g.table != "":
			all = append(all, "GRANT "+g.privileges+" ON "+ident.Quote(database)+"."+ident.Quote(g.table))
		default:
			for _, topic := range topics {
				all = append(all, "GRANT "+g.privileges+" ON "+ident.Quote(database)+"."+ident.Quote(topic))
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
	if err == nil && config.DBName == "" {
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
