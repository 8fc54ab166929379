//go:build !unix

package mysqltest

// lockFile locks nothing on these systems. If the tests of two packages start together on a new machine, both may make the
// template, and the later one wins.
func lockFile(string, bool) (unlock func(), err error) { return func() {}, nil }
