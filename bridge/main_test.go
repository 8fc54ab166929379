package bridge

import (
	"testing"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

func TestMain(m *testing.M) {
	mysqltest.AsProcess(childEnv, bridgeMain)
	mysqltest.AsProcess(importEnv, importMain)
	mysqltest.Main(m)
}
