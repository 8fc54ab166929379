// Package doctor examines a server, and the tables on it, for what mqnotify
// needs of them.
//
// A check is a function that asks one question and returns what it found. Checks
// try things rather than believe the server's version or its grants, and change
// nothing: what they write has no rows, and their locks have names of their own.
// They run one after the other, since what a later one means depends on the
// earlier ones: through a proxy that deals a connection's statements out to many
// sessions, say, no answer about locks would be true.
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

// Level is how bad a finding is.
type Level string

// The levels: a warning is of what works less well, or in some uses only; a
// problem, of what does not work.
const (
	OK      Level = "ok"
	Warning Level = "warning"
	Problem Level = "problem"
)

// Result is a finding of a check. None of its texts has a credential in it.
type Result struct {
	Level  Level  `json:"level"`
	Check  string `json:"check"`
	Topic  string `json:"topic,omitempty"` // empty for what is about the server
	Text   string `json:"text"`
	Remedy string `json:"remedy,omitempty"`
}

// Options are what to examine, and how.
type Options struct {
	// Topics are tables to examine besides the server.
	Topics []string
	// Timeout is how long a check may take; a server that takes longer is taken to
	// hang, and not asked any more. 0 means 10 s.
	Timeout time.Duration
	// Old is how long a transaction may be open before it is worth a warning. 0
	// means 1 minute.
	Old time.Duration
	// Unverified is why another server could take this one's place, as dsn.Unverified says it.
	Unverified string

	only []string // names of checks; nil means all
}

// check asks one question about a subject. An error means that there is no
// answer; errEnough, that further ones about the same subject make no sense.
type check[T any] struct {
	name string
	ask  func(ctx context.Context, subject T) ([]Result, error)
}

var errEnough = errors.New("no need to go on")

// Examine makes the checks as its results are asked for. It ends early when the
// server is lost, with a problem that says so, and when ctx ends.
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

// ForStatus makes only the checks of other servers that write and of the topics' open transactions, and those that these
// rest on, and returns what is not OK.
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

// run makes the checks of one subject. ended tells that no other subject's can
// be made either.
func run[T any](ctx context.Context, e *exam, topic string, checks []check[T], subject T, yield func(Result) bool) (enough, ended bool) {
	for _, c := range checks {
		if e.options.only != nil && !slices.Contains(e.options.only, c.name) {
			continue
		}
		results, err := bounded(ctx, e.options.Timeout, c, subject)
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

func bounded[T any](ctx context.Context, timeout time.Duration, c check[T], subject T) ([]Result, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return c.ask(ctx, subject)
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
