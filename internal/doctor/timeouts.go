package doctor

import (
	"context"
	"strconv"
	"strings"
)

// timeout is a global time limit of the server. Waiting sessions set most of these for themselves. Sessions of the pool have the server's
// values, except for the limits of a statement's time.
type timeout struct {
	variable, unit string
	short          float64 // a value above 0 and up to this is a warning
	harm           string
}

var knownTimeouts = []timeout{
	{"wait_timeout", "s", 10, "the server closes connections that are idle for longer"},
	{"lock_wait_timeout", "s", 0, ""},
	{"innodb_lock_wait_timeout", "s", 0, ""},
	{"max_execution_time", "ms", 0, ""},
	{"max_statement_time", "s", 0, ""},
	{"idle_transaction_timeout", "s", 60, "a transaction that sends no statement for longer is lost, such as a handler's"},
	{"idle_readonly_transaction_timeout", "s", 60, "a transaction that sends no statement for longer is lost, such as a handler's"},
	{"idle_write_transaction_timeout", "s", 60, "a transaction that sends no statement for longer is lost, such as a handler's"},
}

func timeouts(ctx context.Context, e *exam) ([]Result, error) {
	names := make([]string, len(knownTimeouts))
	for i, t := range knownTimeouts {
		names[i] = t.variable
	}
	var variables []struct {
		Name  string `db:"Variable_name"`
		Value string `db:"Value"`
	}
	// The server leaves out variables that it does not have.
	err := e.all(ctx, &variables, "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('"+strings.Join(names, "', '")+"')")
	if err != nil {
		return nil, err
	}
	values := make(map[string]string, len(variables))
	for _, v := range variables {
		values[strings.ToLower(v.Name)] = v.Value
	}
	return judgeTimeouts(values), nil
}

func judgeTimeouts(values map[string]string) []Result {
	var fine []string
	var results []Result
	for _, t := range knownTimeouts {
		text, known := values[t.variable]
		value, err := strconv.ParseFloat(text, 64)
		switch {
		case !known || err != nil:
		case value == 0:
			fine = append(fine, t.variable+" none")
		case value <= t.short:
			results = append(results, warning("raise it", "%s is %s %s: %s", t.variable, plainly(value), t.unit, t.harm))
		default:
			fine = append(fine, t.variable+" "+plainly(value)+" "+t.unit)
		}
	}
	if len(fine) > 0 {
		results = append([]Result{ok("%s", strings.Join(fine, ", "))}, results...)
	}
	return results
}

func plainly(value float64) string { return strconv.FormatFloat(value, 'f', -1, 64) }
