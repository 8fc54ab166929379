package waiting

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/mqnotify/mqnotify/internal/server"
)

// gtids are transactions of one origin, a server's UUID or "UUID:tag", with consecutive numbers.
type gtids struct {
	origin      string
	first, last uint64
}

// parseGTIDs reads "uuid:1-5:7:tag:1-3, uuid:1", the form of @@GLOBAL.gtid_executed. An origin's intervals ascend.
func parseGTIDs(text string) (all []gtids, err error) {
	if text == "" {
		return nil, nil // nothing was committed yet
	}
	for part := range strings.SplitSeq(text, ",") {
		uuid, items, _ := strings.Cut(strings.TrimSpace(part), ":")
		origin := uuid
		for item := range strings.SplitSeq(items, ":") {
			if item != "" && (item[0] < '0' || item[0] > '9') { // a tag, for what follows
				origin = uuid + ":" + item
				continue
			}
			from, to, several := strings.Cut(item, "-")
			if !several {
				to = from
			}
			one := gtids{origin: origin}
			if one.first, err = strconv.ParseUint(from, 10, 64); err == nil {
				one.last, err = strconv.ParseUint(to, 10, 64)
			}
			if err != nil {
				return nil, fmt.Errorf("waiting: gtid_executed is %q: %w", text, err)
			}
			all = append(all, one)
		}
	}
	return all, nil
}

// gtidNext is the transaction that is expected next.
//
// A server gives its own commits the least number that is free. Where other origins grow, on a replica, in a group, with
// tagged GTIDs, the one that grew last is expected to grow again.
type gtidNext struct {
	server string // its UUID
	sure   bool   // the origin was seen to grow, or should be the one
	origin string
	number uint64

	text string
	own  uint64 // the server's next number
	all  []gtids
}

func newGTIDNext(caps *server.Capabilities) gtidNext {
	return gtidNext{server: strings.ToLower(caps.ServerUUID), sure: !caps.ReadOnly && !caps.GroupReplication}
}

func (n *gtidNext) gtid() string { return n.origin + ":" + strconv.FormatUint(n.number, 10) }

// see takes gtid_executed as it is now, and reports whether it changed since the last time.
func (n *gtidNext) see(text string) (changed bool, err error) {
	first := n.origin == ""
	if text == n.text && !first {
		return false, nil
	}
	all, err := parseGTIDs(text)
	if err != nil {
		return false, err
	}
	own := uint64(1)
	at := slices.IndexFunc(all, func(g gtids) bool { return g.origin == n.server })
	if at >= 0 && all[at].first == 1 {
		own = all[at].last + 1
	}
	if first || own != n.own {
		n.origin, n.number = n.server, own
	} else if grown := slices.IndexFunc(all, func(g gtids) bool { return !slices.Contains(n.all, g) }); grown >= 0 {
		n.origin, n.number = all[grown].origin, all[grown].last+1
	}
	n.sure = n.sure && at >= 0 || !first
	n.text, n.own, n.all = text, own, all
	return !first, nil
}
