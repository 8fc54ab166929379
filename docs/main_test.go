// Package docs has the pages, and tests that run their code and commands.
package docs

import (
	"testing"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

func TestMain(m *testing.M) { mysqltest.Main(m) }
