// Package docs has the pages, and tests that try what they say.
package docs

import (
	"testing"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

func TestMain(m *testing.M) { mysqltest.Main(m) }
