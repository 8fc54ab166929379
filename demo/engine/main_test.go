package engine

import (
	"testing"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// A closed engine leaves no goroutine behind.
func TestMain(m *testing.M) { mysqltest.Main(m) }
