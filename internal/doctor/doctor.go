// Package doctor checks whether a server, and the tables on it, meet the needs of mqnotify.
//
// A check is a function that answers one question. Checks try things instead of trusting the server's version or its grants. They
// change nothing: their writes have no rows, and their locks have random names. They run one after another, because the meaning of a
// later check depends on earlier ones. For example, no answer about locks is reliable through a proxy that sends the statements of one
// connection to several sessions.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/mqnotify/mqnotify/notify"
)

// Level is the severity of a finding.
type Level string

// The levels. Warning means that something works less well, or not in every use; Problem, that something does not work.
const (
	OK      Level = "ok"
	Warning Level = "warning"
	Problem Level = "problem"
)

// Result is a finding of a check. Its texts contain no credential.
type Result struct {
	Level  Level  `json:"level"`
	Check  string `json:"check"`
	Topic  string `json:"topic,omitempty"` // empty if it is about the server
	Text   string `json:"text"`
	Remedy string `json:"remedy,omitempty"`
}

// Options are the settings of an examination.
type Options struct {
	// Topics are tables to examine in addition to the server.
	Topics []string
	// Timeout is how long a check may take. After a timeout the examination ends. 0 means 10 s.
	Timeout time.Duration
	// Old is the age of an open transaction above which there is a warning. 0 means 1 minute.
	Old time.Duration
	// Unverified is the result of dsn.Unverified: the reason why another server could take this one's place; empty if none could.
	Unverified string

	only []string // names of the checks to make; nil means all
}

// check asks one question about a subject. An error means that there is no answer; errEnough, that further checks of the subject make
// no sense.
type check[T any] struct {
	name string
	ask  func(ctx context.Context, subject T) ([]Result, error)
}

var errEnough = errors.New("no need to go on")

// Examine makes the checks while the caller iterates over the results. It ends early if the connection to the server is lost, with a
// problem, and when ctx ends.
func Examine(ctx context.Context, db *notify.DB, options Options) iter.Seq[Result] {
	if options.Timeout == 0 {
		options.Timeout = 10 * time.Second
	}
	if options.Old == 0 {
		options.Old = time.Minute
	}
	return func(yield func(Result) bool) {
		e := &exam{db: db, options: options}
		defer e.close()
		if enough, ended := run(ctx, e, "", serverChecks, e, yield); enough || ended {
			return
		}
		for _, name := range options.Topics {
			if _, ended := run(ctx, e, name, topicChecks, &topic{exam: e, name: name}, yield); ended {
				return
			}
		}
	}
}

// ForStatus makes only the checks of other servers that write and of the topics' open transactions, and the checks that these need. It
// returns the warnings and problems.
func ForStatus(ctx context.Context, db *notify.DB, options Options) iter.Seq[Result] {
	options.only = []string{"connection", "cluster", "delay", "table", "writers", "transactions"}
	return func(yield func(Result) bool) {
		for r := range Examine(ctx, db, options) {
			if r.Level != OK && r.Check != "writers" && !yield(r) {
				return
			}
		}
	}
}

// run makes the checks of one subject. enough means that the subject needs no further checks, and ended that no further subject can be
// checked.
func run[T any](ctx context.Context, e *exam, topic string, checks []check[T], subject T, yield func(Result) bool) (enough, ended bool) {
	for _, c := range checks {
		if e.options.only != nil && !slices.Contains(e.options.only, c.name) {
			continue
		}
		bounded, cancel := context.WithTimeout(ctx, e.options.Timeout)
		results, err := c.ask(bounded, subject)
		cancel()
		if ctx.Err() != nil {
			return false, true
		}
		enough, ended = errors.Is(err, errEnough), e.lost(err)
		if err != nil && !enough {
			results = append(results, e.unanswered(err))
		}
		for _, r := range results {
			r.Check, r.Topic = c.name, topic
			if !yield(r) {
				return false, true
			}
		}
		if enough || ended {
			break
		}
	}
	return enough, ended
}

func ok(format string, args ...any) Result {
	return Result{Level: OK, Text: fmt.Sprintf(format, args...)}
}

func warning(remedy, format string, args ...any) Result {
	return Result{Level: Warning, Text: fmt.Sprintf(format, args...), Remedy: remedy}
}

func problem(remedy, format string, args ...any) Result {
	return Result{Level: Problem, Text: fmt.Sprintf(format, args...), Remedy: remedy}
}
