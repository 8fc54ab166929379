package server

import (
	"testing"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

func TestMain(m *testing.M) { mysqltest.Main(m) }
