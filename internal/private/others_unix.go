//go:build unix

package private

import (
	"io/fs"
	"os"
	"syscall"
)

// others returns the permission bits that the file must not have.
func others(info fs.FileInfo) fs.FileMode {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && stat.Uid == 0 && os.Geteuid() != 0 {
		return 0o027
	}
	return 0o077
}
