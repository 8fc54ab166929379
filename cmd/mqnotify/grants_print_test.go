package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

func TestGrantsPrint(t *testing.T) {
	out := succeed(t, nil, "grants", "or`ders", "invoices", "--database", "shop", "--role", "producer", "--to", "'o''app'@\"10.%\"")
	require.Equal(t, "-- Make the tables first (mqnotify init): servers refuse most grants on tables that do not exist.\n"+
		"\n-- producer: mqnotify produce\n"+
		"GRANT INSERT (headers,payload) ON `shop`.`or``ders` TO `o''app`@`10.%`;\n"+
		"GRANT INSERT (headers,payload) ON `shop`.`invoices` TO `o''app`@`10.%`;\n"+
		"\n-- besides, for produce --set-flag\n"+
		"GRANT SELECT, INSERT, UPDATE ON `shop`.`mqnotify_flag` TO `o''app`@`10.%`;\n"+
		"\n-- all that listen or write, besides: to be woken by wake triggers, and to wake the listeners of tables without one (mqnotify\n"+
		"-- wake). The account that made the triggers needs CONNECTION_ADMIN (MySQL) or CONNECTION ADMIN (MariaDB) to wake\n"+
		"-- listeners of other accounts. Without these, rows are found by polling, up to a second later\n"+
		"GRANT EXECUTE ON PROCEDURE `shop`.`mqnotify_wake` TO `o''app`@`10.%`;\n"+
		"GRANT EXECUTE ON PROCEDURE `shop`.`mqnotify_wake_tables` TO `o''app`@`10.%`;\n"+
		"\n-- all, besides: to refuse tables of an older or newer mqnotify\n"+
		"GRANT SELECT ON `shop`.`mqnotify_schema` TO `o''app`@`10.%`;\n", out)
	all := succeed(t, nil, "grants", "orders", "--dsn", "me@tcp(127.0.0.1:9)/shop", "--to", "app")
	require.Contains(t, all, " TO `app`@`%`;\n")
	for _, role := range roles {
		require.Contains(t, all, role)
	}
	require.Contains(t, fail(t, exitUsage, nil, "grants", "orders", "--database", "shop", "--role", "king"), "producer, consumer")
	require.Contains(t, succeed(t, nil, "grants", "--database", "shop", "--role", "guard"), "`mqnotify_lease`")
	serve := succeed(t, nil, "grants", "orders", "--database", "shop_eu", "--role", "serve,capture")
	require.Contains(t, serve, "GRANT SELECT ON `shop_eu`.`mqnotify_partition`", "for groups whose members share them")
	require.Contains(t, serve, "GRANT SELECT ON `shop_eu`.`mqnotify_lease`")
	require.Contains(t, serve, "GRANT LOCK TABLES ON `shop\\_eu`.*", "the name is no pattern")
	require.Contains(t, serve, "partial_revokes")
	require.Contains(t, fail(t, exitUsage, nil, "grants", "--database", "shop", "--role", "guard,producer"), "TOPIC is missing")
	require.Contains(t, fail(t, exitUsage, nil, "grants", "orders", "--database", "shop "), "--database")
	require.Contains(t, fail(t, exitUsage, nil, "grants", "", "--database", "shop"), "empty")
	require.Contains(t, fail(t, exitFailed, nil, "grants", "orders", "--dsn", "me@tcp(127.0.0.1:9)/"), "--database")
	require.Contains(t, fail(t, exitUsage, nil, "grants", "orders"), "--database NAME")
}

// A database runs all that grants prints as it is.
func TestGrantsRun(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		root, db := database(t, s, "orders", "orders_changes")
		succeed(t, root, "init", "orders")
		user := s.User(t, root)
		printed := succeed(t, root, "grants", "orders", "--to", user.User)
		for statement := range strings.SplitSeq(printed, ";\n") {
			if s.IsMariaDB() && strings.Contains(statement, "performance_schema") {
				continue // the printed text says that this is only for MySQL
			}
			if statement = strings.TrimSpace(statement); statement != "" {
				mysqltest.Exec(t, db, statement)
			}
		}
		succeed(t, user, "produce", "orders", "x")
	})
}
