package engine

import (
	"testing"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// An engine that was closed leaves no goroutine.
func TestMain(m *testing.M) { mysqltest.Main(m) }
