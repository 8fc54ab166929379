// Package server knows what MySQL and MariaDB servers can do and what their
// errors mean. Decisions are made on what a server can do, not on its name.
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

// Capabilities is what a session's server can do, found out once a session.
type Capabilities struct {
	Version        string // as the server says it, such as "10.11.19-MariaDB"
	VersionComment string
	MariaDB        bool
	ReadOnly       bool // no writes on this server
	Galera         bool // a node of a Galera cluster: advisory locks and writers are each node's own
	// GroupReplication is set on a member of a group; MultiPrimary when the
	// group's other members take writes too.
	GroupReplication, MultiPrimary bool
	// Replica is set when the server applies what another one commits, whether it is ReadOnly or not. MayBeReplica is set
	// when it has done so and the account can't see whether it still does: Growth tells.
	Replica, MayBeReplica  bool
	GTID                   bool // gtid_mode=ON with a binary log: commits can be waited for
	PerformanceSchema      bool
	Autocommit             bool   // of the session that asked
	MaxAllowedPacket       int    // bytes
	AutoIncrementIncrement uint64 // the step between two ids
	LowerCaseTableNames    int
	WaitTimeout            int // seconds until an idle session is closed
	ServerUUID             string
	TimeZone               string // of the session that asked

	variables map[string]string
	applied   string // the GTIDs of other servers' transactions
}

// variables that decide; a server shows those it knows.
var variables = []string{
	"version", "version_comment", "read_only", "innodb_read_only", "super_read_only", "transaction_read_only",
	"wsrep_on", "group_replication_group_name", "group_replication_single_primary_mode",
	"gtid_mode", "log_bin", "performance_schema", "max_allowed_packet", "auto_increment_increment",
	"lower_case_table_names", "wait_timeout", "server_uuid", "innodb_snapshot_isolation",
	"autocommit", "completion_type", "lock_wait_timeout", "innodb_lock_wait_timeout", "long_query_time",
	"max_execution_time", "max_statement_time", "idle_transaction_timeout", "sql_select_limit",
	"information_schema_stats_expiry", "time_zone",
	"gtid_executed", "gtid_slave_pos", "group_replication_view_change_uuid",
}

// Queryer runs a statement: *sql.DB, *sql.Conn and their sqlx twins.
type Queryer interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Discover asks the server behind q, in one statement, or in two on a MySQL server without GTIDs or with those of others.
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
	c := capabilities(known)
	// A replica without GTIDs, which MariaDB always has, is known only by its channels.
	if withGTIDs := c.MariaDB || c.GTID; c.WritersElsewhere() || withGTIDs && c.applied == "" {
		return c, nil
	}
	return c, c.lookForSource(ctx, q)
}

// lookForSource finds out whether the server is a replica, and not one that was made a source.
func (c *Capabilities) lookForSource(ctx context.Context, q Queryer) error {
	query := "SELECT COUNT(*) FROM performance_schema.replication_applier_status" +
		" WHERE SERVICE_STATE = 'ON' AND CHANNEL_NAME NOT LIKE 'group\\_replication\\_%'"
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

// AppliesWithin reports whether the server is a replica. Where the account can't see that, it waits for a time, and looks
// whether the server has applied anything of another one's since c was found out.
func (c *Capabilities) AppliesWithin(ctx context.Context, q Queryer, wait time.Duration) (bool, error) {
	if !c.MayBeReplica {
		return c.Replica, nil
	}
	select {
	case <-time.After(wait):
		return c.Growth().Grows(ctx, q)
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// Growth finds out whether a server applies the transactions of another one, by the GTIDs that it has: an account needs no
// privilege to read them. A MySQL server without GTIDs shows nothing. Growth is not safe for concurrent use.
type Growth struct {
	caps    *Capabilities
	applied string
}

// Growth returns one that begins when c was found out.
func (c *Capabilities) Growth() *Growth { return &Growth{c, c.applied} }

// Grows reports whether the server has applied any since the last call.
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

// one reads the one value of a query.
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

// foreign is what of a set of GTIDs is of other servers' transactions. The members of a replication group share a name.
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
		PerformanceSchema:   on("performance_schema"),
		Autocommit:          on("autocommit"),
		MaxAllowedPacket:    number("max_allowed_packet"),
		LowerCaseTableNames: number("lower_case_table_names"),
		WaitTimeout:         number("wait_timeout"),
		ServerUUID:          known["server_uuid"],
		TimeZone:            known["time_zone"],
		variables:           known,
	}
	c.MultiPrimary = c.GroupReplication && !on("group_replication_single_primary_mode")
	if c.applied = known["gtid_slave_pos"]; !c.MariaDB {
		c.applied = c.foreign(known["gtid_executed"])
	}
	c.AutoIncrementIncrement = uint64(max(1, number("auto_increment_increment")))
	return c
}

// Has reports whether the server has a system variable of the name, among those that
// mqnotify may want to set or read.
func (c *Capabilities) Has(variable string) bool {
	_, ok := c.variables[variable]
	return ok
}

// Settings is the SET statement for the given variables and values, those that
// the server does not know left out; empty when none is left.
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

// ForWaits are the Settings that every session has whose statements wait, whatever the server's and the account's are.
func ForWaits() []string {
	return []string{
		"autocommit", "1",
		"completion_type", "'NO_CHAIN'", // or a rollback would begin the next transaction
		"sql_select_limit", "9223372036854775807", // none
		"time_zone", "'+00:00'",
		"long_query_time", "3600", // each wait would fill the slow log
		"max_execution_time", "0",
		"max_statement_time", "0",
	}
}

// WritersElsewhere reports whether sessions of other servers write to the tables
// of this one: their transactions hold no lock here, and can't be seen.
func (c *Capabilities) WritersElsewhere() bool {
	return c.Galera || c.MultiPrimary || c.ReadOnly || c.Replica
}
