package waiting

import (
	"hash/crc32"
	"strconv"
	"strings"

	"github.com/mqnotify/mqnotify/internal/lockname"
)

const (
	// Gates is the number of gates that the tables of a database share. The notification table has a gate of its own.
	Gates = 8
	// NotificationTable is the table whose rows are notifications.
	NotificationTable = "mqnotify_notification"
	// SlotsPerSecond is the number of slots in a second, and so the maximum number of KILLs of a leader in a second.
	SlotsPerSecond = 1000

	allGates = Gates + 1
	// maxPrefix bounds the prefix of a lock's name, which is followed by the gate, a connection id and a phase.
	maxPrefix = 40
	// phases is the number of names that a leader uses in a cycle.
	phases = 256
)

// Prefix returns the prefix of the names of all locks of a database's gates. Like [Gate], it ignores the case of letters. Two databases
// whose names differ in that alone share their gates.
func Prefix(database string) string {
	return lockname.Make(maxPrefix, "wait", strings.ToLower(database))
}

// Gate returns the number of a table's gate. Routines in the database compute the same number:
//
//	IF(LOWER(name) = 'mqnotify_notification', 8, CRC32(LOWER(CONVERT(name USING ascii))) % 8)
//
// It ignores the case of letters, because some servers do so in the names of tables.
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

// WokenLocks returns the names of two locks. mqnotify_wake wakes the session that holds the first of them that is held.
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

// test is the lock that a session holds during its trial, before it leads.
func (n lockNames) test() string { return string(n) + ":test" }

// phasesOf returns the prefix of the names of a leader's phases.
func (n lockNames) phasesOf(leader uint64) string {
	return string(n) + ":" + strconv.FormatUint(leader, 10) + ":"
}

func (n lockNames) phase(leader uint64, phase int) string {
	return n.phasesOf(leader) + strconv.Itoa((phase%phases+phases)%phases)
}
