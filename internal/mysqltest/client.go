package mysqltest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// DumpProgram returns the path of the server's mysqldump or mariadb-dump.
func (s *Server) DumpProgram(tb testing.TB) string {
	tb.Helper()
	return s.program(tb, "dump", "mysqldump", "mariadb-dump")
}

// ClientProgram returns the path of the server's client, mysql or mariadb.
func (s *Server) ClientProgram(tb testing.TB) string {
	tb.Helper()
	return s.program(tb, "client", "mysql", "mariadb")
}

// program returns the path of a client program: the one that scripts/unpack-server has made for the server, the installed one
// in PATH, or the one of an unpacked server of the same kind.
func (s *Server) program(tb testing.TB, name, mysql, mariadb string) string {
	tb.Helper()
	installed, kind := mysql, "mysql"
	if s.mariadb {
		installed, kind = mariadb, "mariadb"
	}
	if s.initScript() != "" {
		return filepath.Join(filepath.Dir(s.binary), name)
	}
	if path, err := exec.LookPath(installed); err == nil {
		return path
	}
	cache, err := cacheFolder()
	if err == nil {
		path := filepath.Join(cache, "servers", kind, name)
		if _, err = os.Stat(path); err == nil {
			return path
		}
	}
	tb.Fatalf("needs %s: %s", installed, howToGetServers)
	return ""
}
