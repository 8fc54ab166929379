package doctor

import (
	"context"
	"fmt"
	"strings"

	"github.com/mqnotify/mqnotify/internal/server"
)

// release is a version's first two numbers.
type release struct{ major, minor int }

func (r release) before(other release) bool {
	return r.major < other.major || r.major == other.major && r.minor < other.minor
}

func (r release) String() string { return fmt.Sprintf("%d.%d", r.major, r.minor) }

// flavours are what is refused and what is not tested.
var flavours = map[bool]struct { // whether it is MariaDB
	name             string
	oldest, tested   release
	whyNotBeforeThat string
}{
	false: {"MySQL", release{5, 7}, release{8, 0}, "an older one keeps one advisory lock a session: a second silently lets the first go"},
	true:  {"MariaDB", release{10, 3}, release{10, 6}, "an older one has no JSON columns"},
}

// lookalikes speak MySQL's protocol, and have locks and transactions of another kind.
var lookalikes = []string{"TiDB", "Vitess"}

func version(_ context.Context, e *exam) ([]Result, error) {
	flavour := flavours[e.caps.MariaDB]
	is := e.caps.Version
	for _, other := range lookalikes {
		if strings.Contains(strings.ToLower(is+e.caps.VersionComment), strings.ToLower(other)) {
			return []Result{warning("use MySQL or MariaDB, or consume without a group, in mode poll",
				"%s %s, not MySQL itself: advisory locks may be lost without a word, and open writers can't be seen", other, is)}, nil
		}
	}
	var has release
	if n, _ := fmt.Sscanf(e.caps.Version, "%d.%d", &has.major, &has.minor); n < 2 {
		return []Result{warning("", "a server of unknown version %q", is)}, nil
	}
	switch {
	case has.before(flavour.oldest):
		return []Result{problem(fmt.Sprintf("upgrade: %s is what mqnotify is tested from", flavour.tested),
			"%s %s is too old, mqnotify needs %s: %s", flavour.name, is, flavour.oldest, flavour.whyNotBeforeThat)}, nil
	case has.before(flavour.tested):
		return []Result{warning(fmt.Sprintf("upgrade to %s or newer", flavour.tested),
			"%s %s: mqnotify is not tested with it", flavour.name, is)}, nil
	}
	return []Result{ok("%s %s", flavour.name, is)}, nil
}

// writes tries to begin a transaction that may write: a server that is read-only
// refuses it to whom it refuses writes, whatever the tables.
func writes(ctx context.Context, e *exam) ([]Result, error) {
	err := e.exec(ctx, "START TRANSACTION READ WRITE; ROLLBACK") // in one packet: nothing is left open
	switch {
	case server.ReadOnly(err):
		return []Result{problem("connect to the primary; tail, and consume without a group, work here too, with --grace for rows that commit late",
			"the server is read-only: init, produce and groups do not work")}, nil
	case err != nil:
		return nil, err
	case e.caps.ReadOnly:
		return []Result{warning("connect to the primary, unless you know why not",
			"the server is read-only, a replica perhaps, though this account is not kept from writing")}, nil
	}
	return []Result{ok("the server is not read-only")}, nil
}

func cluster(_ context.Context, e *exam) ([]Result, error) {
	var kind string
	switch {
	case e.caps.Galera:
		kind = "a node of a Galera cluster"
	case e.caps.MultiPrimary:
		kind = "a member of a replication group with several primaries"
	case e.caps.GroupReplication:
		return []Result{ok("a member of a replication group with one primary")}, nil
	default:
		return []Result{ok("no Galera, no group replication")}, nil
	}
	return []Result{warning("let all producers and consumers of a topic connect to the same server",
		"%s: advisory locks and open transactions are each server's own. Members of a group, and the two sides of a handshake, "+
			"meet on this one only; rows of a transaction on another that stays open for longer than --grace may be LOST", kind)}, nil
}

// gtid is for information: with it every commit is a hint for consumers whose tables have no wake trigger.
func gtid(_ context.Context, e *exam) ([]Result, error) {
	switch {
	case e.caps.GTID:
		return []Result{ok("gtid_mode is on: where a table has no wake trigger, every commit wakes its consumers")}, nil
	case e.caps.MariaDB:
		return []Result{ok("MariaDB's GTIDs can't be waited for on a primary (not needed)")}, nil
	}
	return []Result{ok("gtid_mode is off (not needed)")}, nil
}

// smallPacket is less than many an application's messages.
const smallPacket = 1 << 20

func packet(_ context.Context, e *exam) ([]Result, error) {
	limit, whose := e.caps.MaxAllowedPacket, "max_allowed_packet"
	if own := e.db.MaxAllowedPacket(); own > 0 && own < limit {
		limit, whose = own, "the DSN's maxAllowedPacket"
	}
	if limit < smallPacket {
		return []Result{warning("raise "+whose, "messages of %s at most (%s)", size(limit), whose)}, nil
	}
	return []Result{ok("messages of a little less than %s (%s)", size(limit), whose)}, nil
}

func size(bytes int) string {
	if bytes >= 1<<20 {
		return fmt.Sprintf("%.4g MiB", float64(bytes)/(1<<20))
	}
	return fmt.Sprintf("%.4g KiB", float64(bytes)/(1<<10))
}
