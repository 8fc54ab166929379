// Package server knows what MySQL and MariaDB servers can do and what their
// errors mean. Decisions are made on what a server can do, not on its name.
package server

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"
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
	GTID                           bool // gtid_mode=ON with a binary log: commits can be waited for
	PerformanceSchema              bool
	Autocommit                     bool   // of the session that asked
	MaxAllowedPacket               int    // bytes
	AutoIncrementIncrement         uint64 // the step between two ids
	LowerCaseTableNames            int
	WaitTimeout                    int // seconds until an idle session is closed
	ServerUUID                     string
	TimeZone                       string // of the session that asked

	variables map[string]string
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
}

// Queryer runs a statement: *sql.DB, *sql.Conn and their sqlx twins.
type Queryer interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Discover asks the server behind q, in one statement.
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
	return capabilities(known), nil
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
	c.AutoIncrementIncrement = uint64(max(1, number("auto_increment_increment")))
	return c
}

// Has tells whether the server has a system variable of the name, of those that
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

// WritersElsewhere tells whether sessions of other servers write to the tables
// of this one: their transactions hold no lock here, and can't be seen.
func (c *Capabilities) WritersElsewhere() bool {
	return c.Galera || c.MultiPrimary || c.ReadOnly
}
