package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mqnotify/mqnotify/internal/ident"
)

type grantsOptions struct {
	roles   []string
	account string
}

func newGrants(a *app) *cobra.Command {
	var o grantsOptions
	cmd := &cobra.Command{
		Use:   "grants [TOPIC...]",
		Short: "Print the least privileges that each role needs, as GRANT statements",
		Long: `Prints GRANT statements for exactly the privileges that an account needs in each role. It does
not connect to a server: the database is --database, or that of the DSN or my.cnf. The roles
listener, guard, enqueuer, worker, tasks, scheduler and ring need no TOPIC.

The offsets, dead letters and tasks of all topics and queues of a database are in the same
tables. If two parties don't trust each other, give each a database of its own.`,
		Example: `  mqnotify grants orders --database shop --to 'worker@10.0.%'
  mqnotify grants orders --database shop --role consumer
  mqnotify grants --database shop --role guard   # lock and once need no topic
  mqnotify grants --database shop --role worker`,
		RunE: func(_ *cobra.Command, topics []string) error {
			if len(o.roles) == 0 {
				o.roles = roles
			}
			if len(topics) == 0 && !o.withoutTopics() {
				return usagef("TOPIC is missing: name it, or give only roles that need none: --role %s", strings.Join(topicless, ","))
			}
			text, err := a.grants(o, topics)
			if err != nil {
				return err
			}
			return ignoreBrokenPipe(writeAll(a.out, text))
		},
	}
	cmd.Flags().StringSliceVar(&o.roles, "role", nil, "only these roles, separated by commas; without it all:\n"+
		strings.Join(roles[:9], ", ")+",\n"+strings.Join(roles[9:], ", "))
	cmd.Flags().StringVar(&o.account, "to", "app@%", "the `account`, as user@host")
	completeWith(cmd, "role", roles...)
	return cmd
}

const (
	roleProducer  = "producer"
	roleConsumer  = "consumer"
	roleTailer    = "tailer"
	roleListener  = "listener"
	roleSQL       = "sql"
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
		roleProducer, roleConsumer, roleTailer, roleListener, roleSQL, roleFlag, roleStatus, roleDead,
		roleImporter, roleServe, roleCapture, roleGuard, roleEnqueuer, roleWorker, roleTasks,
		roleScheduler, roleRing, roleAdmin,
	}
	topicless = []string{roleListener, roleGuard, roleEnqueuer, roleWorker, roleTasks, roleScheduler, roleRing}
)

// withoutTopics reports whether the user asks only for roles that use no topic's table.
func (o grantsOptions) withoutTopics() bool {
	return !slices.ContainsFunc(o.roles, func(role string) bool { return !slices.Contains(topicless, role) })
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
	text.WriteString("-- Make the tables first (mqnotify init): servers refuse most grants on tables that do not exist.\n")
	if literal.Replace(database) != database {
		text.WriteString("-- On MySQL with partial_revokes=ON leave the backslashes out.\n")
	}
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

// database returns the database's name. --database suffices, even if no server is named.
func (a *app) database() (string, error) {
	if name := a.connection.database; name != "" {
		if err := ident.Check(name); err != nil {
			return "", usagef("--database: %w", err)
		}
		return name, nil
	}
	config, err := a.databaseConfig()
	if errors.Is(err, errNoServer) {
		return "", usagef("no database is named: give --database NAME, or a DSN with a database")
	}
	if err != nil {
		return "", err
	}
	return config.DBName, nil
}

// quoteAccount quotes user@host, whose parts may be quoted already. It uses backquotes, which mean the same in every sql_mode.
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
