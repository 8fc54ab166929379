package main

import (
	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/doctor"
)

// The status in the form of --json.
type (
	statusJSON struct {
		Database  string          `json:"database"`
		Topic     string          `json:"topic"`
		Table     bool            `json:"table"` // the groups are known
		Head      uint64          `json:"head"`
		Wakes     []string        `json:"wakes"` // the events of wake triggers that work
		Triggers  []triggerJSON   `json:"triggers"`
		Leader    uint64          `json:"leader,omitempty"` // of the topic's gate
		Followers int             `json:"followers"`
		Groups    []groupJSON     `json:"groups"`
		Note      string          `json:"note,omitempty"`
		Findings  []doctor.Result `json:"findings"`
	}
	triggerJSON struct {
		On      string `json:"on"`
		Trigger string `json:"trigger"`
		Definer string `json:"definer"`
		Problem string `json:"problem,omitempty"`
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
	view := statusJSON{
		Database: s.database, Topic: s.name, Findings: append([]doctor.Result{}, s.findings...),
		Wakes: append([]string{}, s.wakes...), Triggers: []triggerJSON{}, Leader: s.gate.Leader, Followers: s.gate.Followers,
		Groups: []groupJSON{},
	}
	for _, t := range s.triggers {
		view.Triggers = append(view.Triggers, triggerJSON{t.Event, t.Trigger, t.Definer, t.Problem})
	}
	if s.note != nil {
		view.Note = s.note.Error()
	}
	if s.groups != nil {
		view.Table, view.Head = true, s.groups.Head
		for _, g := range s.groups.Groups {
			view.Groups = append(view.Groups, groupJSON{
				g.Group, g.Session != 0 || g.Leased, g.Member, g.Session, g.Settled, g.Done, g.Gaps, g.Waiting, g.MoreWaiting,
				g.Behind, float64(g.Moved.Milliseconds()) / 1000, g.DeadLetters, g.MoreDeadLetters, g.BelowOffset,
				g.Partitions, g.PartitionBy, membersJSON(g.Members),
			})
		}
	}
	line, err := toJSON(view)
	return line + "\n", err
}

func membersJSON(members []consumer.MemberStatus) (all []memberJSON) {
	for _, m := range members {
		all = append(all, memberJSON{m.Member, m.Session, append([]int{}, m.Partitions...), m.Settled, m.Waiting, m.MoreWaiting})
	}
	return all
}
