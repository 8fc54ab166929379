package doctor

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/server"
)

// stateUses are the uses of mqnotify's own tables.
var stateUses = []attempts{
	{"keep the offsets of a group", []string{
		"SELECT settled, delivered, fence FROM " + schema.OffsetTable + " WHERE FALSE",
		"INSERT INTO " + schema.OffsetTable + " (topic, group_name, settled, delivered, fence, version, member)" +
			" SELECT '', '', 0, '', 0, 0, '' FROM DUAL WHERE FALSE",
		"UPDATE " + schema.OffsetTable + " SET version = version WHERE FALSE",
	}},
	{"keep dead letters", []string{
		"INSERT INTO " + schema.DeadLetterTable + " (topic, group_name, message_id, headers, payload, attempts, error)" +
			" SELECT '', '', 0, NULL, '', 0, '' FROM DUAL WHERE FALSE",
		"UPDATE " + schema.DeadLetterTable + " SET attempts = 0 WHERE FALSE",
	}},
	{"set the flag", []string{
		"INSERT INTO " + schema.FlagTable + " (topic, counter) SELECT '', 1 FROM DUAL WHERE FALSE",
		"UPDATE " + schema.FlagTable + " SET counter = counter + 1 WHERE FALSE",
	}},
	{"read the flag", []string{"SELECT counter FROM " + schema.FlagTable + " WHERE FALSE"}},
	{"reset the flag", []string{"DELETE FROM " + schema.FlagTable + " WHERE FALSE"}},
}

// state checks the tables that `mqnotify init` makes.
func state(ctx context.Context, e *exam) ([]Result, error) {
	newest := schema.Newest()
	var has sql.Null[int]
	err := e.get(ctx, &has, "SELECT MAX(version) FROM "+schema.VersionTable)
	known := !server.NoPrivilege(err) // an account that may store offsets need not see the version
	if err != nil && known && !server.Is(err, server.ErrNoSuchTable) {
		return nil, err
	}
	database := ident.Quote(e.db.Name())
	e.initialised = known && has.Valid
	switch {
	case known && !has.Valid:
		return []Result{warning("mqnotify init",
			"database %s has no tables of mqnotify: groups and flags do not work; consume without a group does", database)}, nil
	case known && has.V < newest:
		return []Result{problem("mqnotify init", "mqnotify's tables in %s have version %d, and this mqnotify needs %d",
			database, has.V, newest)}, nil
	}
	can, results, err := e.judge(ctx, stateUses)
	if err != nil {
		return nil, err
	}
	if known && has.V > newest {
		results = append(results, warning("update this mqnotify", "mqnotify's tables in %s have version %d, and this mqnotify knows only %d",
			database, has.V, newest))
	}
	if len(can) > 0 {
		version := "of a version that this account may not see"
		if known {
			version = fmt.Sprintf("version %d", has.V)
		}
		results = append([]Result{ok("mqnotify's tables, %s: this account can %s", version, strings.Join(can, ", "))}, results...)
	}
	return results, nil
}
