package serve

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/internal/waiting"
	"github.com/mqnotify/mqnotify/notify"
)

// fresh is how old a topic's state may be. It limits how often the database is asked.
const fresh = 2 * time.Second

// topicState is a topic's state in the database.
type topicState struct {
	Trigger bool // every INSERT wakes the readers
	Gate    waiting.GateStatus
	Groups  *consumer.Status
	at      time.Time
}

// statusCache reads a topic's state when a request needs it.
type statusCache struct {
	db       *notify.DB
	topic    string
	patience time.Duration // limits a get
	permit   chan struct{} // one request at a time reads; the others wait for its result
	state    *topicState   // the last result; the permit's holder has it
}

func newStatusCache(db *notify.DB, topic string, options Options) *statusCache {
	return &statusCache{db: db, topic: topic, patience: options.asking, permit: make(chan struct{}, 1)}
}

// get returns the topic's state, which is at most fresh old.
func (c *statusCache) get(ctx context.Context) (*topicState, error) {
	ctx, cancel := context.WithTimeout(ctx, c.patience)
	defer cancel()
	select {
	case c.permit <- struct{}{}:
		defer func() { <-c.permit }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if c.state != nil && time.Since(c.state.at) < fresh {
		return c.state, nil
	}
	triggers, err := waiting.ReadTriggers(ctx, c.db.Pool())
	if err != nil && !waiting.NoRoutine(err) {
		return nil, err
	}
	gate, err := waiting.ReadGate(ctx, c.db.Pool(), c.db.Name(), c.topic)
	if err != nil {
		return nil, err
	}
	reader, err := consumer.New(c.db, c.topic, consumer.Options{})
	if err != nil {
		return nil, err
	}
	groups, err := reader.Status(ctx)
	if err != nil && !errors.Is(err, notify.ErrNoState) {
		return nil, err
	}
	c.state = &topicState{triggers[c.topic]&waiting.Insert != 0, gate, groups, time.Now()}
	return c.state, nil
}

type groupJSON struct {
	Group       string  `json:"group"`
	Member      string  `json:"member,omitempty"` // only with the scope admin
	Active      bool    `json:"active"`
	Session     uint64  `json:"session"`
	Offset      uint64  `json:"offset"`
	DoneAbove   uint64  `json:"done_above"`
	Gaps        int     `json:"gaps"`
	Lag         string  `json:"lag"`
	StoredAgo   float64 `json:"stored_seconds_ago"`
	DeadLetters string  `json:"dead_letters"`
	BelowOffset bool    `json:"below_offset"`
}

type topicJSON struct {
	Topic   string      `json:"topic"`
	Reading bool        `json:"reading"`
	Clients int         `json:"clients"`
	Rate    float64     `json:"rate"` // messages per second, over the last 10 s
	Scopes  []scope     `json:"scopes"`
	Head    *uint64     `json:"head,omitempty"`
	Lag     *string     `json:"lag,omitempty"` // the largest lag of a group
	Gate    *gate       `json:"gate,omitempty"`
	Groups  []groupJSON `json:"groups,omitempty"`
}

type gate struct {
	Trigger   bool   `json:"trigger"` // every INSERT wakes the readers
	Leader    uint64 `json:"leader"`  // the session that is woken first; 0 is none
	Followers int    `json:"followers"`
}

// describe returns the part of a topic's state that the token may see.
func (t *topic) describe(token *token, state *topicState) topicJSON {
	clients, perSecond, err := t.hub.state()
	out := topicJSON{Topic: t.name, Reading: err == nil, Clients: clients, Rate: perSecond, Scopes: []scope{}}
	for _, scope := range []scope{scopeRead, scopePublish, scopeAdmin} {
		if token.allows(scope, t.name) {
			out.Scopes = append(out.Scopes, scope)
		}
	}
	if state == nil {
		return out
	}
	out.Gate = &gate{state.Trigger, state.Gate.Leader, state.Gate.Followers}
	if state.Groups == nil {
		return out
	}
	out.Head = &state.Groups.Head
	most, more := 0, false
	named := token.allows(scopeAdmin, t.name) // a member's name may contain its host or account
	for _, s := range state.Groups.Groups {
		member := ""
		if named {
			member = s.Member
		}
		if s.Waiting > most || s.MoreWaiting {
			most, more = s.Waiting, s.MoreWaiting
		}
		out.Groups = append(out.Groups, groupJSON{
			s.Group, member, s.Session != 0 || s.Leased, s.Session, s.Settled, s.Done, s.Gaps, atLeast(s.Waiting, s.MoreWaiting), s.Moved.Seconds(), atLeast(s.DeadLetters, s.MoreDeadLetters), s.BelowOffset,
		})
	}
	lag := atLeast(most, more)
	out.Lag = &lag
	return out
}

// atLeast formats a number: "10000+" if there may be more.
func atLeast(n int, more bool) string {
	if more {
		return strconv.Itoa(n) + "+"
	}
	return strconv.Itoa(n)
}

// list handles GET /topics: the topics that the token may see.
func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	token := s.authenticate(w, r)
	if token == nil {
		return
	}
	// One timeout for all topics: if the database does not answer for one, it does not for the next.
	ctx, cancel := context.WithTimeout(r.Context(), s.options.asking)
	defer cancel()
	answers := s.pulse.check(ctx) == nil
	all := []topicJSON{}
	for _, name := range s.options.Topics {
		t := s.topics[name]
		switch {
		case token.allows(scopeRead, name):
			var state *topicState
			var err error
			if answers {
				state, err = t.status.get(ctx)
			}
			if err != nil {
				s.log.DebugContext(r.Context(), "the topic's state can't be read", "topic", name, "error", err)
			}
			described := t.describe(token, state)
			described.Reading = described.Reading && answers
			all = append(all, described)
		case token.allows(scopePublish, name):
			all = append(all, topicJSON{Topic: name, Scopes: []scope{scopePublish}})
		}
	}
	reply(w, http.StatusOK, map[string]any{"topics": slices.CompactFunc(all, func(a, b topicJSON) bool { return a.Topic == b.Topic })})
}

// state handles GET /topics/{topic}.
func (s *Server) state(w http.ResponseWriter, r *http.Request, t *topic) {
	state, err := t.status.get(r.Context())
	if err != nil {
		s.log.WarnContext(r.Context(), "the topic's state can't be read", "topic", t.name, "error", err)
		failLater(w, "the topic's state can't be read now: try again")
		return
	}
	reply(w, http.StatusOK, t.describe(s.token(r), state))
}

// deadLetter is a message that a group gave up.
type deadLetter struct {
	ID       uint64          `db:"id" json:"id"`
	Group    string          `db:"group_name" json:"group"`
	Message  uint64          `db:"message_id" json:"message_id"`
	Headers  json.RawMessage `db:"headers" json:"headers"`
	Payload  []byte          `db:"payload" json:"payload_base64"`
	Size     int             `db:"size" json:"size"`
	Attempts int             `db:"attempts" json:"attempts"`
	Error    string          `db:"error" json:"error"`
	FailedAt string          `db:"failed_at" json:"failed_at"` // RFC 3339, UTC
}

// deadLetters handles GET /topics/{topic}/dead-letters: the newest 100, with the first 4 KiB of each payload.
func (s *Server) deadLetters(w http.ResponseWriter, r *http.Request, t *topic) {
	letters := []deadLetter{}
	query := `SELECT id, group_name, message_id, COALESCE(headers, '{}') AS headers, LEFT(payload, 4096) AS payload, LENGTH(payload) AS size,
			attempts, error, DATE_FORMAT('1970-01-01' + INTERVAL UNIX_TIMESTAMP(failed_at) SECOND, '%Y-%m-%dT%H:%i:%sZ') AS failed_at
		FROM ` + schema.DeadLetterTable + " WHERE topic = ?"
	args := []any{t.name}
	group := r.URL.Query().Get("group")
	if !utf8.ValidString(group) {
		fail(w, http.StatusBadRequest, "group: the name is not UTF-8")
		return
	}
	if group != "" {
		query += " AND group_name = ?"
		args = append(args, group)
	}
	if err := s.db.Pool().SelectContext(r.Context(), &letters, query+" ORDER BY id DESC LIMIT 100", args...); err != nil {
		s.failed(w, r, t, "read dead letters", err)
		return
	}
	reply(w, http.StatusOK, map[string]any{"dead_letters": letters})
}

func (s *Server) failed(w http.ResponseWriter, r *http.Request, t *topic, what string, err error) {
	s.log.WarnContext(r.Context(), "could not "+what, "topic", t.name, "error", err)
	switch {
	case server.NoPrivilege(err):
		fail(w, http.StatusForbidden, "the server's account may not "+what)
	case server.Is(err, server.ErrNoSuchTable):
		fail(w, http.StatusConflict, "the database lacks a table: mqnotify init makes it")
	case server.Permanent(err):
		fail(w, http.StatusInternalServerError, "the database refuses to "+what+": the log of mqnotify serve says why")
	default:
		failLater(w, "the database could not answer: try again")
	}
}

// errNoLetter means that the dead letter does not exist.
var errNoLetter = errors.New("there is no such dead letter any more")

// retryDeadLetter handles POST /topics/{topic}/dead-letters/{id}/retry: the group tries the message again.
func (s *Server) retryDeadLetter(w http.ResponseWriter, r *http.Request, t *topic) {
	s.takeDeadLetter(w, r, t, func(ctx context.Context, letters *consumer.Consumer, f consumer.DeadFilter) (id uint64, err error) {
		messages, gone, err := letters.RetryDead(ctx, f)
		switch {
		case err != nil:
			return 0, err
		case len(gone) > 0:
			return 0, errRowGone
		case len(messages) == 0:
			return 0, errNoLetter
		}
		return messages[0], nil
	})
}

// errRowGone means that the dead letter's row was deleted.
var errRowGone = errors.New("the row is not in the table any more, and can't be tried again")

// dropDeadLetter handles DELETE /topics/{topic}/dead-letters/{id}.
func (s *Server) dropDeadLetter(w http.ResponseWriter, r *http.Request, t *topic) {
	s.takeDeadLetter(w, r, t, func(ctx context.Context, letters *consumer.Consumer, f consumer.DeadFilter) (id uint64, err error) {
		n, err := letters.DeleteDead(ctx, f)
		if err == nil && n == 0 {
			err = errNoLetter
		}
		return 0, err
	})
}

// takeDeadLetter calls do with a filter for the dead letter, and answers with the message's id.
func (s *Server) takeDeadLetter(w http.ResponseWriter, r *http.Request, t *topic,
	do func(ctx context.Context, letters *consumer.Consumer, f consumer.DeadFilter) (id uint64, err error),
) {
	id, err := strconv.ParseUint(r.PathValue("id"), 10, 64)
	if err != nil {
		fail(w, http.StatusNotFound, errNoLetter.Error())
		return
	}
	letters, err := consumer.New(s.db, t.name, consumer.Options{})
	var message uint64
	if err == nil {
		message, err = do(r.Context(), letters, consumer.DeadFilter{IDs: []uint64{id}})
	}
	switch {
	case errors.Is(err, errNoLetter):
		fail(w, http.StatusNotFound, err.Error())
	case errors.Is(err, errRowGone):
		fail(w, http.StatusConflict, err.Error())
	case err != nil:
		s.failed(w, r, t, "take a dead letter", err)
	default:
		reply(w, http.StatusOK, map[string]any{"id": message})
	}
}
