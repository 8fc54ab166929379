//go:build !linux

// Package postgrestest starts a private PostgreSQL, from Debian's package, for comparative measurements.
package postgrestest

import (
	"context"
	"errors"
)

// ErrNone means that no PostgreSQL can be started.
var ErrNone = errors.New("postgrestest: a private PostgreSQL is started on Linux only")

// Start fails with ErrNone.
func Start(context.Context, ...string) (url string, stop func() error, err error) {
	return "", nil, ErrNone
}
