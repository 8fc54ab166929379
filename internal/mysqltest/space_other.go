//go:build !linux

package mysqltest

import "errors"

// freeSpace works only on Linux.
func freeSpace(string) (uint64, error) { return 0, errors.ErrUnsupported }
