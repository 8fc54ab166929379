package doctor

import (
	"context"
	"slices"
	"strings"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/internal/waiting"
	"github.com/mqnotify/mqnotify/internal/wake"
)

// flagTriggers checks the triggers that set the one-row flag for writers that can't be changed.
func flagTriggers(ctx context.Context, t *topic) ([]Result, error) {
	events := []string{"INSERT", "UPDATE", "DELETE"}
	var found []struct {
		Name  string `db:"name"`
		Event string `db:"event"`
		Body  string `db:"body"`
		By    string `db:"definer"`
	}
	err := t.all(ctx, &found, `SELECT TRIGGER_NAME AS name, EVENT_MANIPULATION AS event, ACTION_STATEMENT AS body, DEFINER AS definer
		FROM information_schema.TRIGGERS WHERE EVENT_OBJECT_SCHEMA = ? AND EVENT_OBJECT_TABLE = ? ORDER BY name`, t.table.Schema, t.table.Name)
	if err != nil {
		return nil, err
	}
	var results []Result
	for _, trigger := range found {
		if !strings.EqualFold(trigger.Name, waiting.TriggerName(t.table.Name, strings.ToLower(trigger.Event))) { // not a wake trigger, which the check wake reports
			failure, err := wake.AccountProblem(ctx, t.db, trigger.By, t.table.Name)
			if err != nil {
				return nil, err
			}
			if failure != "" {
				results = append(results, problem("make the account, or drop the trigger and make it again", "trigger %s: %s", ident.Quote(trigger.Name), failure))
			}
		}
		if !slices.Contains(events, trigger.Event) || trigger.Name != schema.TriggerName(t.table.Name, trigger.Event) {
			continue
		}
		name := ident.Quote(trigger.Name)
		switch {
		case sameBody(trigger.Body, t.table.Name, schema.TriggerCounter, trigger.Event):
			results = append(results, ok("trigger %s counts every %s in the flag: writers of the table commit one at a time", name, trigger.Event))
		case sameBody(trigger.Body, t.table.Name, schema.TriggerRow, trigger.Event):
			results = append(results, ok("trigger %s sets the flag's row at every %s, for one reader", name, trigger.Event))
		default:
			results = append(results, warning("DROP TRIGGER "+name+", then mqnotify init --trigger",
				"trigger %s has the name of a flag's trigger, and does something else", name))
		}
	}
	if len(results) == 0 {
		return []Result{ok("no trigger sets the flag, or none that this account may see (not needed)")}, nil
	}
	if err := t.exec(ctx, "SELECT 1 FROM "+schema.FlagTable+" WHERE FALSE"); server.Is(err, server.ErrNoSuchTable) {
		results = append(results, problem("mqnotify init", "the triggers' table %s does not exist: writes to the topic fail", schema.FlagTable))
	}
	return results, nil
}

// sameBody reports whether a trigger has the body of mqnotify's trigger.
func sameBody(body, topic string, form schema.TriggerForm, event string) bool {
	statement, err := schema.Trigger(topic, form, event)
	return err == nil && schema.SameTrigger(body, statement)
}
