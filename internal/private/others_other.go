//go:build !unix

package private

import "io/fs"

// others returns no bits, because Go's permission bits do not say who can read a file here.
func others(fs.FileInfo) fs.FileMode { return 0 }
