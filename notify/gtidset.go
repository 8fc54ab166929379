package notify

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// gtidSet is what a server has committed, @@GLOBAL.gtid_executed: for each origin, a
// server's UUID or "UUID:tag", the numbers of its transactions.
type gtidSet []gtidOrigin

type gtidOrigin struct {
	name      string
	intervals []gtidInterval // ascending, with gaps between them
}

type gtidInterval struct{ first, last uint64 }

// parseGTIDSet reads "uuid:1-5:7:tag:1-3, uuid:1", the form in which servers write.
func parseGTIDSet(text string) (gtidSet, error) {
	if text == "" {
		return nil, nil // nothing was committed yet
	}
	var set gtidSet
	for part := range strings.SplitSeq(text, ",") {
		uuid, items, _ := strings.Cut(strings.TrimSpace(part), ":")
		var intervals []gtidInterval
		name := uuid
		for item := range strings.SplitSeq(items, ":") {
			if item != "" && (item[0] < '0' || item[0] > '9') { // a tag: what follows is its own
				if len(intervals) > 0 {
					set = append(set, gtidOrigin{name, intervals})
				}
				intervals, name = nil, uuid+":"+item
				continue
			}
			from, to, several := strings.Cut(item, "-")
			if !several {
				to = from
			}
			first, err := strconv.ParseUint(from, 10, 64)
			if err != nil {
				return nil, fmt.Errorf("notify: gtid_executed is %q: %w", text, err)
			}
			last, err := strconv.ParseUint(to, 10, 64)
			if err != nil {
				return nil, fmt.Errorf("notify: gtid_executed is %q: %w", text, err)
			}
			intervals = append(intervals, gtidInterval{first, last})
		}
		if len(intervals) == 0 {
			return nil, fmt.Errorf("notify: gtid_executed is %q: no numbers of %s", text, name)
		}
		set = append(set, gtidOrigin{name, intervals})
	}
	return set, nil
}

func (s gtidSet) of(origin string) []gtidInterval {
	for _, o := range s {
		if o.name == origin {
			return o.intervals
		}
	}
	return nil
}

func (s gtidSet) without(origin string) gtidSet {
	return slices.DeleteFunc(slices.Clone(s), func(o gtidOrigin) bool { return o.name == origin })
}

// missing is the least number that is in none of the intervals.
func missing(intervals []gtidInterval) uint64 {
	if len(intervals) == 0 || intervals[0].first > 1 {
		return 1
	}
	return intervals[0].last + 1
}

// gtidNext is which transaction to wait for: the one that comes next.
//
// A server numbers its own commits, and takes the least number that is free. So that
// is the first missing one of its UUID. Where other origins grow, on a replica, in a
// group, with tagged GTIDs, the one that grew last is believed to grow again.
type gtidNext struct {
	server string // its UUID
	sure   bool   // the origin waited for was seen to grow, or should be the one
	others bool   // other origins than the server itself were seen to grow
	origin string // what to wait for, empty until the first look
	number uint64

	text string
	set  gtidSet
}

func (n *gtidNext) known() bool { return n.origin != "" }

// gtid is what to wait for.
func (n *gtidNext) gtid() string { return n.origin + ":" + strconv.FormatUint(n.number, 10) }

// came says that what was waited for was committed. The one after it may be, too: then
// a wait for it is none.
func (n *gtidNext) came() { n.number++ }

func newGTIDNext(caps *Capabilities) gtidNext {
	return gtidNext{
		server: strings.ToLower(caps.ServerUUID),
		sure:   !caps.ReadOnly && !caps.GroupReplication,
	}
}

// see takes the set as it is now, and tells whether it changed since the last time.
func (n *gtidNext) see(text string) (changed bool, err error) {
	first := !n.known()
	if text == n.text && !first {
		return false, nil
	}
	set, err := parseGTIDSet(text)
	if err != nil {
		return false, err
	}
	own := set.of(n.server)
	if first || !slices.Equal(own, n.set.of(n.server)) {
		n.origin, n.number = n.server, missing(own)
	} else if origin, number, ok := set.grown(n.set); ok {
		n.origin, n.number = origin, number
	}
	n.sure = n.sure && len(own) > 0 || !first
	if _, _, grown := set.without(n.server).grown(n.set); grown && !first {
		n.others = true
	}
	n.text, n.set = text, set
	return !first, nil
}

// grown is the number after the first interval that is not in the older set.
func (s gtidSet) grown(older gtidSet) (origin string, next uint64, ok bool) {
	for _, origin := range s {
		known := older.of(origin.name)
		for _, interval := range origin.intervals {
			if !slices.Contains(known, interval) {
				return origin.name, interval.last + 1, true
			}
		}
	}
	return "", 0, false
}
