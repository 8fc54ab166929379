package guard

import (
	"fmt"
	"math"
	"time"

	names "github.com/mqnotify/mqnotify/internal/name"
)

// longestName is what the columns take, in characters.
const longestName = 255

// checkName refuses what servers would cut, or take for another name.
func checkName(what, name string) error {
	if problem := names.Problem(name, longestName); problem != "" {
		return wrongf("%s %s: %s", what, shown(name), problem)
	}
	return nil
}

// shown quotes a name for a message, the beginning of it.
func shown(name string) string {
	const most = 64
	if len(name) <= most {
		return fmt.Sprintf("%q", name)
	}
	return fmt.Sprintf("%q...", name[:most])
}

// longest is a time that no arithmetic with it overflows, here or on a server.
const longest = 10 * 365 * 24 * time.Hour

// checkTime refuses a time that is none, or shorter than the server's clock can tell.
func checkTime(what string, d, least time.Duration) error {
	switch {
	case d < least:
		return wrongf("%s of %v: give %v or more", what, d, least)
	case d > longest:
		return wrongf("%s of %v: give %v at most", what, d, longest)
	}
	return nil
}

// microseconds is d as servers count, rounded up.
func microseconds(d time.Duration) int64 {
	return int64(math.Ceil(float64(d) / float64(time.Microsecond)))
}
