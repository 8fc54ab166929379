package server_test

import (
	"testing"
	"time"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/server"
)

func TestMain(m *testing.M) {
	server.SetRollbackLimit(3 * time.Second)
	mysqltest.Main(m)
}
