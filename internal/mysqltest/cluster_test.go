package mysqltest

import (
	"testing"
)

// The other servers of a cluster show what one of them commits. A promoted replica no longer applies the commits of its source.
func TestClusters(t *testing.T) {
	NotShort(t, "server.TestReplica")
	shows := func(t *testing.T, writer, reader *Server) {
		t.Helper()
		writer.exec(t, "CREATE DATABASE seen")
		reader.await(t, "SELECT COUNT(*) = 1 FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = 'seen'")
		writer.exec(t, "DROP DATABASE seen")
		reader.await(t, "SELECT COUNT(*) = 0 FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = 'seen'")
	}
	Each(t, func(t *testing.T, s *Server) {
		t.Run("replica", func(t *testing.T) {
			source, replica := s.Replica(t)
			shows(t, source, replica)
			replica.Promote(t)
			source.exec(t, "CREATE DATABASE unseen")
			replica.exec(t, "CREATE DATABASE unseen")
		})
		t.Run("several writers", func(t *testing.T) {
			start := s.Primaries
			if s.IsMariaDB() {
				start = s.Galera
			}
			nodes := start(t, 2)
			shows(t, nodes[0], nodes[1])
			shows(t, nodes[1], nodes[0])
		})
	})
}
