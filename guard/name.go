package guard

import (
	"fmt"
	"math"
	"time"

	names "github.com/mqnotify/mqnotify/internal/name"
)

// longestName is the length of the name columns, in characters.
const longestName = 255

// checkName refuses names that servers would cut, or confuse with another name.
func checkName(what, name string) error {
	if problem := names.Problem(name, longestName); problem != "" {
		return wrongf("%s %s: %s", what, shown(name), problem)
	}
	return nil
}

// shown quotes at most the first 64 bytes of a name for a message.
func shown(name string) string {
	const most = 64
	if len(name) <= most {
		return fmt.Sprintf("%q", name)
	}
	return fmt.Sprintf("%q...", name[:most])
}

// longest is a time with which no arithmetic overflows, here or on a server.
const longest = 10 * 365 * 24 * time.Hour

// checkTime refuses a time shorter than least, which is also the resolution of the server's clock, or longer than longest.
func checkTime(what string, d, least time.Duration) error {
	switch {
	case d < least:
		return wrongf("%s of %v: give %v or more", what, d, least)
	case d > longest:
		return wrongf("%s of %v: give %v at most", what, d, longest)
	}
	return nil
}

// microseconds returns d in the server's unit, rounded up.
func microseconds(d time.Duration) int64 {
	return int64(math.Ceil(float64(d) / float64(time.Microsecond)))
}
