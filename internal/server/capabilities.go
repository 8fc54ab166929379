// Package server knows what MySQL and MariaDB servers can do and what their
// errors mean. Code decides by a server's abilities, not by its name.
package server

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Capabilities are the abilities and settings of a session's server, read once per session.
type Capabilities struct {
	Version        string // in the server's form, such as "10.11.19-MariaDB"
	VersionComment string
	MariaDB        bool
	ReadOnly       bool // the server takes no writes
	Galera         bool // a node of a Galera cluster: advisory locks and open transactions are local to each node
	// GroupReplication is true on a member of a group; MultiPrimary if the
	// group's other members take writes too.
	GroupReplication, MultiPrimary bool
	// Replica is true if the server applies the transactions of another one, whether it is ReadOnly or not. MayBeReplica is
	// true if it has applied some and the account can't see whether it still does: Growth finds out.
	Replica, MayBeReplica bool
	GTID                  bool // gtid_mode=ON with a binary log: sessions can wait for commits
	StatementLog          bool // the binary log has statements, so the server refuses writes in READ COMMITTED
	Autocommit            bool // of the session that asked
	MaxAllowedPacket      int  // bytes
	LowerCaseTableNames   int
	ServerUUID            string

	variables map[string]string
	applied   string // the GTIDs of other servers' transactions
}

// variables are the variables that Discover reads. A server shows only those that it knows.
var variables = []string{
	"version", "version_comment", "read_only", "innodb_read_only", "super_read_only", "transaction_read_only",
	"wsrep_on", "group_replication_group_name", "group_replication_single_primary_mode",
	"gtid_mode", "log_bin", "binlog_format", "max_allowed_packet", "lower_case_table_names", "wait_timeout", "server_uuid", "hostname", "port", "server_id", "innodb_snapshot_isolation",
	"autocommit", "completion_type", "lock_wait_timeout", "innodb_lock_wait_timeout", "long_query_time",
	"max_execution_time", "max_statement_time", "idle_transaction_timeout", "sql_select_limit",
	"information_schema_stats_expiry", "time_zone",
	"gtid_executed", "gtid_slave_pos", "group_replication_view_change_uuid",
}

// shownChars is the length from which on SHOW VARIABLES may cut a value short: MySQL shows 1024 characters.
const shownChars = 1000

// Queryer runs a statement. *sql.DB, *sql.Conn and their sqlx equivalents implement it.
type Queryer interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Discover reads the capabilities of the server behind q. It sends one statement, or two to a MySQL server without GTIDs or with
// GTIDs of other servers.
func Discover(ctx context.Context, q Queryer) (*Capabilities, error) {
	query := "SHOW SESSION VARIABLES WHERE Variable_name IN ('" + strings.Join(variables, "', '") + "')"
	rows, err := q.QueryContext(ctx, query)
	if err != nil {
		return nil, fmt.Errorf("server: read variables: %w", err)
	}
	defer rows.Close()
	known := make(map[string]string, len(variables))
	for rows.Next() {
		var name, value string
		if err := rows.Scan(&name, &value); err != nil {
			return nil, fmt.Errorf("server: read variables: %w", err)
		}
		known[strings.ToLower(name)] = value
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("server: read variables: %w", err)
	}
	for _, name := range []string{"gtid_executed", "gtid_slave_pos"} {
		if len(known[name]) < shownChars {
			continue
		}
		if known[name], err = one[string](ctx, q, "SELECT @@GLOBAL."+name); err != nil {
			return nil, fmt.Errorf("server: read %s: %w", name, err)
		}
	}
	c := capabilities(known)
	// Without GTIDs, which MariaDB always has, only the channels show whether a server is a replica.
	if withGTIDs := c.MariaDB || c.GTID; c.WritersElsewhere() || withGTIDs && c.applied == "" {
		return c, nil
	}
	return c, c.lookForSource(ctx, q)
}

// lookForSource reads whether the server is a replica now. A former replica that became a source is none.
func (c *Capabilities) lookForSource(ctx context.Context, q Queryer) error {
	query := "SELECT COUNT(*) FROM performance_schema.replication_applier_status" +
		" WHERE SERVICE_STATE = 'ON' AND LEFT(CHANNEL_NAME, 18) <> 'group_replication_'"
	if c.MariaDB {
		query = "SELECT CAST(VARIABLE_VALUE AS UNSIGNED) FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'SLAVES_RUNNING'"
	}
	n, err := one[int](ctx, q, query)
	switch {
	case Number(err) != 0 && !ConnectionLost(err): // no privilege, or a server that has no such table
		c.MayBeReplica = c.applied != ""
	case err != nil:
		return fmt.Errorf("server: look for a source: %w", err)
	}
	c.Replica = n > 0
	return nil
}

// AppliesWithin reports whether the server is a replica. If the account can't see that, it waits for a time, and reports
// whether the server has applied transactions of another server since c was read.
func (c *Capabilities) AppliesWithin(ctx context.Context, q Queryer, wait time.Duration) (bool, error) {
	if !c.MayBeReplica {
		return c.Replica, nil
	}
	if err := Pause(ctx, wait); err != nil {
		return false, err
	}
	return c.Growth().Grows(ctx, q)
}

// Growth detects that a server applies the transactions of another one, by its GTIDs, which every account may
// read. A MySQL server without GTIDs shows nothing. Not safe for concurrent use.
type Growth struct {
	caps    *Capabilities
	applied string
}

// Growth returns a Growth that begins when c was read.
func (c *Capabilities) Growth() *Growth { return &Growth{c, c.applied} }

// Grows reports whether the server has applied a transaction of another server since the last call.
func (g *Growth) Grows(ctx context.Context, q Queryer) (bool, error) {
	variable := "gtid_executed"
	if g.caps.MariaDB {
		variable = "gtid_slave_pos"
	}
	if !g.caps.Has(variable) {
		return false, nil
	}
	now, err := one[string](ctx, q, "SELECT @@GLOBAL."+variable)
	if err != nil {
		return false, fmt.Errorf("server: read %s: %w", variable, err)
	}
	if !g.caps.MariaDB {
		now = g.caps.foreign(now)
	}
	before := g.applied
	g.applied = now
	return now != before, nil
}

// one returns the only value of a query.
func one[T any](ctx context.Context, q Queryer, query string) (value T, err error) {
	rows, err := q.QueryContext(ctx, query)
	if err != nil {
		return value, err
	}
	defer rows.Close()
	if rows.Next() {
		err = rows.Scan(&value)
	}
	return value, errors.Join(err, rows.Err())
}

// foreign returns the part of a set of GTIDs that other servers' transactions have. The members of a replication group share a name.
func (c *Capabilities) foreign(executed string) string {
	own := []string{c.ServerUUID, c.variables["group_replication_group_name"], c.variables["group_replication_view_change_uuid"]}
	var others []string
	for set := range strings.SplitSeq(executed, ",") {
		set = strings.TrimSpace(set)
		uuid, _, _ := strings.Cut(set, ":")
		if uuid != "" && !slices.ContainsFunc(own, func(name string) bool { return strings.EqualFold(name, uuid) }) {
			others = append(others, set)
		}
	}
	return strings.Join(others, ",")
}

func capabilities(known map[string]string) *Capabilities {
	on := func(name string) bool {
		switch strings.ToUpper(known[name]) {
		case "ON", "1", "YES", "NO_LOCK", "NO_LOCK_NO_ADMIN": // read_only since MariaDB 12
			return true
		}
		return false
	}
	number := func(name string) int {
		n, _ := strconv.Atoi(known[name])
		return n
	}
	c := &Capabilities{
		Version:             known["version"],
		VersionComment:      known["version_comment"],
		MariaDB:             strings.Contains(known["version"], "MariaDB"),
		ReadOnly:            on("read_only") || on("innodb_read_only") || on("super_read_only"),
		Galera:              on("wsrep_on"),
		GroupReplication:    known["group_replication_group_name"] != "",
		GTID:                on("gtid_mode") && on("log_bin"),
		StatementLog:        on("log_bin") && strings.EqualFold(known["binlog_format"], "STATEMENT"),
		Autocommit:          on("autocommit"),
		MaxAllowedPacket:    number("max_allowed_packet"),
		LowerCaseTableNames: number("lower_case_table_names"),
		ServerUUID:          known["server_uuid"],
		variables:           known,
	}
	c.MultiPrimary = c.GroupReplication && !on("group_replication_single_primary_mode")
	if c.applied = known["gtid_slave_pos"]; !c.MariaDB {
		c.applied = c.foreign(known["gtid_executed"])
	}
	return c
}

// Server returns a name of the server that differs from those of the others that replicate the same data.
func (c *Capabilities) Server() string {
	return strings.Join([]string{c.ServerUUID, c.variables["hostname"], c.variables["port"], c.variables["server_id"]}, " ")
}

// Has reports whether the server has a system variable of the name. It knows only the variables that mqnotify may set or read.
func (c *Capabilities) Has(variable string) bool {
	_, ok := c.variables[variable]
	return ok
}

// Settings returns a SET statement for pairs of a variable and its value. It omits variables that
// the server does not know, and is empty if none is left.
func (c *Capabilities) Settings(pairs ...string) string {
	var assignments []string
	for i := 0; i < len(pairs); i += 2 {
		if c.Has(pairs[i]) {
			assignments = append(assignments, pairs[i]+" = "+pairs[i+1])
		}
	}
	if len(assignments) == 0 {
		return ""
	}
	return "SET SESSION " + strings.Join(assignments, ", ")
}

// ForWaits returns the Settings for every session whose statements wait, whatever the defaults of server and account are.
func ForWaits() []string {
	return []string{
		"autocommit", "1",
		"completion_type", "'NO_CHAIN'", // otherwise a rollback would begin the next transaction
		"sql_select_limit", "9223372036854775807", // no limit
		"time_zone", "'+00:00'",
		"long_query_time", "3600", // otherwise every wait would be in the slow log
		"max_execution_time", "0",
		"max_statement_time", "0",
	}
}

// WritersElsewhere reports whether sessions of other servers write to the tables
// of this one. Their transactions hold no lock here, and can't be seen.
func (c *Capabilities) WritersElsewhere() bool {
	return c.Galera || c.MultiPrimary || c.ReadOnly || c.Replica
}
