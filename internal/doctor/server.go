package doctor

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/server"
)

// release has a version's first two numbers.
type release struct{ major, minor int }

func (r release) before(other release) bool {
	return r.major < other.major || r.major == other.major && r.minor < other.minor
}

func (r release) String() string { return fmt.Sprintf("%d.%d", r.major, r.minor) }

// flavours has the oldest versions that mqnotify accepts, and those from which on it is tested.
var flavours = map[bool]struct { // by: is it MariaDB
	name             string
	oldest, tested   release
	whyNotBeforeThat string
}{
	false: {"MySQL", release{5, 7}, release{8, 0}, "an older one keeps one advisory lock for each session: a second silently releases the first"},
	true:  {"MariaDB", release{10, 3}, release{10, 6}, "an older one has no JSON columns"},
}

// lookalikes are servers with MySQL's protocol whose locks and transactions differ.
var lookalikes = []string{"TiDB", "Vitess"}

func version(_ context.Context, e *exam) ([]Result, error) {
	flavour := flavours[e.caps.MariaDB]
	is := e.caps.Version
	for _, other := range lookalikes {
		if strings.Contains(strings.ToLower(is+e.caps.VersionComment), strings.ToLower(other)) {
			return []Result{warning("use MySQL or MariaDB, or only consume --mode poll without a group",
				"%s %s, not MySQL itself: advisory locks may be lost silently, and open writers can't be seen", other, is)}, nil
		}
	}
	var has release
	if n, _ := fmt.Sscanf(e.caps.Version, "%d.%d", &has.major, &has.minor); n < 2 {
		return []Result{warning("", "a server of unknown version %q", is)}, nil
	}
	switch {
	case has.before(flavour.oldest):
		return []Result{problem(fmt.Sprintf("upgrade: mqnotify is tested with %s and newer", flavour.tested),
			"%s %s is too old, mqnotify needs %s: %s", flavour.name, is, flavour.oldest, flavour.whyNotBeforeThat)}, nil
	case has.before(flavour.tested):
		return []Result{warning(fmt.Sprintf("upgrade to %s or newer", flavour.tested),
			"%s %s: mqnotify is not tested with it", flavour.name, is)}, nil
	}
	return []Result{ok("%s %s", flavour.name, is)}, nil
}

// writes tries to begin a transaction that may write. A read-only server refuses it to every account that may not write.
func writes(ctx context.Context, e *exam) ([]Result, error) {
	err := e.exec(ctx, "START TRANSACTION READ WRITE; ROLLBACK") // in one packet, so that no transaction stays open
	switch {
	case server.ReadOnly(err):
		return []Result{problem("connect to the primary; only tail, and consume without a group, work here, with --grace for rows that commit late",
			"the server is read-only: init, produce and groups do not work")}, nil
	case err != nil:
		return nil, err
	case e.caps.ReadOnly:
		return []Result{warning("connect to the primary, unless you write here on purpose",
			"the server is read-only, perhaps a replica, although this account may write")}, nil
	}
	return []Result{ok("the server is not read-only")}, nil
}

// cluster reports whether other servers write to this server's tables.
func cluster(ctx context.Context, e *exam) ([]Result, error) {
	if e.caps.Galera {
		var status struct {
			Name  string `db:"Variable_name"`
			Value string `db:"Value"`
		}
		if err := e.get(ctx, &status, "SHOW GLOBAL STATUS LIKE 'wsrep_cluster_status'"); err != nil {
			return nil, err
		}
		if status.Value != "Primary" {
			return []Result{problem("connect to a node in the part with the majority, or repair this node",
				"a node of a Galera cluster without a quorum (wsrep_cluster_status is %s): it accepts no statements", status.Value)}, nil
		}
	}
	const lost = "rows of a transaction on another server that takes longer than --grace, replication delay included, are LOST"
	switch {
	case e.caps.Galera || e.caps.MultiPrimary:
		kind := "a node of a Galera cluster"
		if e.caps.MultiPrimary {
			kind = "a member of a replication group with several primaries"
		}
		return []Result{warning("let all producers and consumers of a topic connect to the same server",
			"%s: each server has its own advisory locks and open transactions. A group has one active member by a lease, locks and --members-share are refused, "+
				"both sides of a handshake must use this server; %s", kind, lost)}, nil
	case e.caps.Replica:
		return []Result{warning("connect to the server that takes the writes",
			"a replica of another server: groups and locks are refused here; %s", lost)}, nil
	case e.caps.MayBeReplica:
		return []Result{warning("GRANT SELECT ON performance_schema.replication_applier_status to the account",
			"this server has applied another server's transactions, and this account can't see whether it still does. If it does, connect to the other server, which these locks do not reach; %s", lost)}, nil
	case e.caps.GroupReplication:
		return []Result{ok("a member of a replication group with one primary")}, nil
	}
	return []Result{ok("no Galera, no group replication, no replica")}, nil
}

// defaultGrace is the default of a consumer's --grace.
const defaultGrace = time.Minute

// delay compares how far the server is behind the others with how long a gap in the ids stays open.
func delay(ctx context.Context, e *exam) ([]Result, error) {
	if !e.caps.Galera && !e.caps.MultiPrimary && !e.caps.Replica {
		return nil, nil
	}
	behind, err := replicationDelay(ctx, e)
	switch {
	case server.NoPrivilege(err):
		return []Result{ok("this account can't see how far the server is behind the others")}, nil
	case err != nil:
		return nil, err
	case behind > defaultGrace/2:
		return []Result{problem(fmt.Sprintf("consume --grace %v, or more", (4*behind).Round(time.Second)),
			"it is %v behind the others, and a gap in the ids stays open for %v (--grace): rows are LOST if it falls further behind",
			behind.Round(time.Millisecond), defaultGrace)}, nil
	}
	return []Result{ok("it is %v behind the others, and a gap in the ids stays open for %v (--grace)", behind.Round(time.Millisecond), defaultGrace)}, nil
}

// replicationDelay measures how far the server is behind the others.
func replicationDelay(ctx context.Context, e *exam) (delay time.Duration, err error) {
	if e.caps.Galera || e.caps.MultiPrimary {
		// A read that waits until all earlier commits on all servers are applied.
		variable, value, before := "wsrep_sync_wait", "1", "@@SESSION.wsrep_sync_wait"
		if e.caps.MultiPrimary {
			variable, value, before = "group_replication_consistency", "'BEFORE'", "@@SESSION.group_replication_consistency"
		}
		if err := e.exec(ctx, "SET @mqnotify_before = "+before+", SESSION "+variable+" = "+value); err != nil {
			return 0, err
		}
		begun := time.Now()
		var n int
		err = e.get(ctx, &n, "SELECT COUNT(*) FROM information_schema.ENGINES")
		delay = time.Since(begun)
		return delay, errors.Join(err, e.exec(ctx, "SET SESSION "+variable+" = @mqnotify_before"))
	}
	if !e.caps.MariaDB {
		// The delay of the transaction that is being applied, or else of one that was applied within the last minute.
		var microseconds int64
		err = e.get(ctx, &microseconds, "SELECT COALESCE(MAX(CASE WHEN APPLYING_TRANSACTION <> ''"+
			" THEN TIMESTAMPDIFF(MICROSECOND, APPLYING_TRANSACTION_ORIGINAL_COMMIT_TIMESTAMP, NOW(6))"+
			" WHEN LAST_APPLIED_TRANSACTION_END_APPLY_TIMESTAMP > NOW(6) - INTERVAL 1 MINUTE"+
			" THEN TIMESTAMPDIFF(MICROSECOND, LAST_APPLIED_TRANSACTION_ORIGINAL_COMMIT_TIMESTAMP, LAST_APPLIED_TRANSACTION_END_APPLY_TIMESTAMP)"+
			" END), 0) FROM performance_schema.replication_applier_status_by_worker")
		return time.Duration(max(0, microseconds)) * time.Microsecond, err
	}
	var behind []map[string]any
	if behind, err = e.maps(ctx, "SHOW ALL SLAVES STATUS"); err != nil {
		return 0, err
	}
	for _, source := range behind {
		seconds, _ := strconv.Atoi(fmt.Sprint(source["Seconds_Behind_Master"])) // NULL if replication does not run
		delay = max(delay, time.Duration(seconds)*time.Second)
	}
	return delay, nil
}

// gtid reports gtid_mode. If it is on, every commit is a hint for consumers of tables without a wake trigger.
func gtid(_ context.Context, e *exam) ([]Result, error) {
	switch {
	case e.caps.GTID:
		return []Result{ok("gtid_mode is on: every commit wakes the consumers of tables without a wake trigger")}, nil
	case e.caps.MariaDB:
		return []Result{ok("a MariaDB primary has no wait for GTIDs (not needed)")}, nil
	}
	return []Result{ok("gtid_mode is off (not needed)")}, nil
}

// smallPacket is a limit below which many applications' messages do not fit.
const smallPacket = 1 << 20

func packet(_ context.Context, e *exam) ([]Result, error) {
	limit, whose := e.caps.MaxAllowedPacket, "max_allowed_packet"
	if own := core.MaxAllowedPacket(e.db); own > 0 && own < limit {
		limit, whose = own, "the DSN's maxAllowedPacket"
	}
	if limit < smallPacket {
		return []Result{warning("raise "+whose, "messages of at most %s (%s)", size(limit), whose)}, nil
	}
	return []Result{ok("messages of a little less than %s (%s)", size(limit), whose)}, nil
}

func size(bytes int) string {
	if bytes >= 1<<20 {
		return fmt.Sprintf("%.4g MiB", float64(bytes)/(1<<20))
	}
	return fmt.Sprintf("%.4g KiB", float64(bytes)/(1<<10))
}
