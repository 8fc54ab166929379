//go:build !unix

package mysqltest

// lockFile locks nothing here: two packages' tests that start at once on a fresh machine may both make
// the template, and the later one wins.
func lockFile(string, bool) (unlock func(), err error) { return func() {}, nil }
