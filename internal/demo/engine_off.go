//go:build nodemo

package demo

import (
	"context"

	"github.com/go-sql-driver/mysql"
)

// Engine stands for the engine that this build does not have. There is none to
// be had: Start never returns one.
type Engine struct{}

// Start returns ErrNotBuiltIn.
func Start(context.Context) (*Engine, error) { return nil, ErrNotBuiltIn }

// Config returns nil.
func (*Engine) Config() *mysql.Config { return nil }

// Close does nothing and returns nil.
func (*Engine) Close() error { return nil }
