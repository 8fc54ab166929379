package waiting

import (
	"hash/crc32"
	"strconv"
	"strings"

	"github.com/mqnotify/mqnotify/internal/lockname"
)

const (
	// Gates is the number of gates that the tables of a database share. The notification table has one more for itself.
	Gates = 8
	// NotificationTable is the table of which every row is a NOTIFY.
	NotificationTable = "mqnotify_notification"
	// SlotsPerSecond is how many slots a second has, and so how often at most the leader is killed in one.
	SlotsPerSecond = 1000

	allGates = Gates + 1
	// maxPrefix leaves room for what follows in a lock's name: the gate, a connection id and a phase.
	maxPrefix = 40
	// phases is the number of names that a leader uses one after the other.
	phases = 256
)

// Prefix is how the names of all the locks of a database's gates begin.
func Prefix(database string) string { return lockname.Make(maxPrefix, "wait", database) }

// Gate is the number of the gate of a table. Routines in the database compute the same number:
//
//	IF(LOWER(name) = 'mqnotify_notification', 8, CRC32(LOWER(CONVERT(name USING ascii))) % 8)
//
// The case of letters makes no difference, because on some servers it makes none for the names of tables.
func Gate(table string) int {
	ascii := strings.Map(func(r rune) rune {
		switch {
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		case r > 0x7F:
			return '?'
		}
		return r
	}, table)
	if ascii == NotificationTable {
		return Gates
	}
	return int(crc32.ChecksumIEEE([]byte(ascii)) % Gates)
}

// WokenLocks are the names of the locks of the session that mqnotify_wake wakes: it holds the first of them that is held.
func WokenLocks(database, table string) []string {
	names := namesOf(database, Gate(table))
	return []string{names.wake(), names.test()}
}

// lockNames are the names of a gate's locks.
type lockNames string

func namesOf(database string, gate int) lockNames {
	return lockNames(Prefix(database) + ":" + strconv.Itoa(gate))
}

func (n lockNames) leader() string { return string(n) + ":leader" }
func (n lockNames) wake() string   { return string(n) + ":wake" }

// test is the lock of a session that is killed on trial before it leads.
func (n lockNames) test() string { return string(n) + ":test" }

// phasesOf is how the names of a leader's phases begin.
func (n lockNames) phasesOf(leader uint64) string {
	return string(n) + ":" + strconv.FormatUint(leader, 10) + ":"
}

func (n lockNames) phase(leader uint64, phase int) string {
	return n.phasesOf(leader) + strconv.Itoa((phase%phases+phases)%phases)
}
