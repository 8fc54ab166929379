package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mqnotify/mqnotify/internal/ident"
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

// withoutTopics reports whether the user asks only for roles of guards and queues, whose
// tables are the same for all.
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
