//go:build !linux

package mysqltest

import "errors"

// freeSpace is known on Linux only.
func freeSpace(string) (uint64, error) { return 0, errors.ErrUnsupported }
