package main

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/doctor"
	"github.com/mqnotify/mqnotify/notify"
)

// The status for programs.
type (
	statusJSON struct {
		Database      string            `json:"database"`
		Topic         string            `json:"topic"`
		Table         bool              `json:"table"` // the groups are known
		Head          uint64            `json:"head"`
		Triggers      []triggerJSON     `json:"triggers"`
		Leader        uint64            `json:"leader,omitempty"`    // the session that the triggers wake
		Followers     int               `json:"followers,omitempty"` // that wait at its gate
		Keeper        *keeperJSON       `json:"keeper"`
		Claimant      *participantJSON  `json:"claimant"`
		Bells         []bellJSON        `json:"bells"`
		Listeners     []participantJSON `json:"listeners"`
		OthersVisible bool              `json:"others_visible"`
		Groups        []groupJSON       `json:"groups"`
		Note          string            `json:"note,omitempty"`
		Findings      []doctor.Result   `json:"findings"`
	}
	triggerJSON struct {
		On      string `json:"on"`
		Trigger string `json:"trigger"`
		Definer string `json:"definer"`
		Problem string `json:"problem,omitempty"`
	}
	participantJSON struct {
		Session uint64 `json:"session"`
		User    string `json:"user,omitempty"`
		Host    string `json:"host,omitempty"`
		Seconds int64  `json:"seconds"`
	}
	keeperJSON struct {
		participantJSON
		Producer bool `json:"producer"`
		Phase    *int `json:"phase"`
	}
	bellJSON struct {
		Slot int `json:"slot"`
		participantJSON
	}
	groupJSON struct {
		Group       string  `json:"group"`
		Active      bool    `json:"active"`
		Member      string  `json:"member"`
		Session     uint64  `json:"session,omitempty"`
		Offset      uint64  `json:"offset"`
		DoneAbove   uint64  `json:"done_above"`
		Gaps        int     `json:"gaps"`
		Lag         int     `json:"lag"`
		LagMore     bool    `json:"lag_more"`
		IDsBehind   uint64  `json:"ids_behind"`
		StoredAgo   float64 `json:"stored_seconds_ago"`
		DeadLetters int     `json:"dead_letters"`
		MoreLetters bool    `json:"dead_letters_more"`
		BelowOffset bool    `json:"below_offset"`

		Partitions  int          `json:"partitions,omitempty"`
		PartitionBy string       `json:"partition_by,omitempty"`
		Members     []memberJSON `json:"members,omitempty"`
	}
	memberJSON struct {
		Member     string `json:"member"`
		Session    uint64 `json:"session"`
		Partitions []int  `json:"partitions"`
		Offset     uint64 `json:"offset"`
		Lag        int    `json:"lag"`
		LagMore    bool   `json:"lag_more"`
	}
)

func (s *topicStatus) json() (string, error) {
	g := s.gate
	view := statusJSON{
		Database: s.database, Topic: s.name, OthersVisible: !g.Partial, Findings: append([]doctor.Result{}, s.findings...),
		Triggers: []triggerJSON{}, Leader: s.waits.Leader, Followers: s.waits.Followers,
		Bells: []bellJSON{}, Listeners: []participantJSON{}, Groups: []groupJSON{},
	}
	for _, t := range s.triggers {
		view.Triggers = append(view.Triggers, triggerJSON{t.Event, t.Trigger, t.Definer, t.Problem})
	}
	if g.Keeper.ID != 0 {
		view.Keeper = &keeperJSON{participantJSON: forJSON(g.Keeper), Producer: g.Keeper.ID == g.Claimant.ID}
		if g.Phase >= 0 {
			view.Keeper.Phase = &g.Phase
		}
	}
	if g.Claimant.ID != 0 {
		claimant := forJSON(g.Claimant)
		view.Claimant = &claimant
	}
	for _, bell := range g.Bells {
		view.Bells = append(view.Bells, bellJSON{bell.Slot, forJSON(bell.Owner)})
	}
	for _, listener := range g.Listeners {
		view.Listeners = append(view.Listeners, forJSON(listener))
	}
	if s.note != nil {
		view.Note = s.note.Error()
	}
	if s.groups != nil {
		view.Table, view.Head = true, s.groups.Head
		for _, g := range s.groups.Groups {
			view.Groups = append(view.Groups, groupJSON{
				g.Group, g.Session != 0, g.Member, g.Session, g.Settled, g.Done, g.Gaps, g.Waiting.N, g.Waiting.More,
				g.Behind, float64(g.Moved.Milliseconds()) / 1000, g.DeadLetters.N, g.DeadLetters.More, g.BelowOffset,
				g.Partitions, g.PartitionBy, membersJSON(g.Members),
			})
		}
	}
	var line strings.Builder
	encoder := json.NewEncoder(&line)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(view)
	return line.String(), err
}

func membersJSON(members []consumer.MemberStatus) (all []memberJSON) {
	for _, m := range members {
		all = append(all, memberJSON{m.Member, m.Session, append([]int{}, m.Partitions...), m.Settled, m.Waiting.N, m.Waiting.More})
	}
	return all
}

func forJSON(p notify.Participant) participantJSON {
	return participantJSON{p.ID, p.User, p.Host, int64(p.For / time.Second)}
}
