package mysqltest

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mqnotify/mqnotify/internal/child"
)

// Replica starts a source and its replica for this test alone. The replica accepts writes (read_only=OFF is the default). It
// applies the commits of the source with a short delay.
func (s *Server) Replica(tb testing.TB) (source, replica *Server) {
	tb.Helper()
	flags := func(id int) []string {
		flags := []string{"--server-id=" + strconv.Itoa(id), "--log-bin=binlog", "--binlog-format=ROW", "--report-host=127.0.0.1"}
		if s.mariadb {
			return append(flags, "--log-slave-updates")
		}
		return append(flags, "--gtid-mode=ON", "--enforce-gtid-consistency=ON")
	}
	source, replica = s.Start(tb, flags(1)...), s.Start(tb, flags(2)...)
	replica.ownUUID(tb)
	host, port, _ := net.SplitHostPort(source.Addr())
	if s.mariadb {
		source.exec(tb, "CREATE USER copier@'%' IDENTIFIED BY 'r'", "GRANT REPLICATION SLAVE ON *.* TO copier@'%'", "RESET MASTER")
		replica.exec(tb, "CHANGE MASTER TO MASTER_HOST='"+host+"', MASTER_PORT="+port+", MASTER_USER='copier', MASTER_PASSWORD='r',"+
			" MASTER_SSL=0, MASTER_USE_GTID=slave_pos, MASTER_CONNECT_RETRY=1", "START SLAVE")
	} else {
		source.exec(tb, "RESET BINARY LOGS AND GTIDS")
		replica.exec(tb, "RESET BINARY LOGS AND GTIDS", "CHANGE REPLICATION SOURCE TO SOURCE_HOST='"+host+"', SOURCE_PORT="+port+","+
			" SOURCE_USER='root', SOURCE_AUTO_POSITION=1, GET_SOURCE_PUBLIC_KEY=1, SOURCE_CONNECT_RETRY=1", "START REPLICA")
	}
	source.exec(tb, "CREATE DATABASE mq_replicated")
	replica.await(tb, "SELECT COUNT(*) = 1 FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = 'mq_replicated'")
	return source, replica
}

// Promote makes a replica a source: it no longer replicates from another server.
func (s *Server) Promote(tb testing.TB) {
	tb.Helper()
	if s.mariadb {
		s.exec(tb, "STOP SLAVE", "RESET SLAVE ALL")
	} else {
		s.exec(tb, "STOP REPLICA", "RESET REPLICA ALL")
	}
}

// ownUUID gives a MySQL instance a server_uuid of its own, because the instances are copies of one data folder. It does nothing
// on MariaDB.
func (s *Server) ownUUID(tb testing.TB) {
	tb.Helper()
	if s.mariadb {
		return
	}
	s.Stop()
	if err := os.Remove(filepath.Join(s.dataFolder(), "auto.cnf")); err != nil {
		tb.Fatal(err)
	}
	s.Restart(tb)
}

// Primaries starts a replication group of MySQL servers that all accept writes, for this test alone. It skips the test if the
// server has no plugin group_replication.
func (s *Server) Primaries(tb testing.TB, count int) []*Server {
	tb.Helper()
	var all []*Server
	var seeds []string
	for n := range count {
		one := s.Start(tb, fmt.Sprintf("--server-id=%d", n+1), "--log-bin=binlog", "--gtid-mode=ON", "--enforce-gtid-consistency=ON",
			"--report-host=127.0.0.1", "--replica-parallel-workers=1")
		one.ownUUID(tb)
		seeds = append(seeds, freeAddress(tb))
		all = append(all, one)
	}
	for n, one := range all {
		if _, err := one.admin.ExecContext(context.Background(), "INSTALL PLUGIN group_replication SONAME 'group_replication.so'"); err != nil {
			tb.Skipf("needs the plugin group_replication: %v", err)
		}
		one.exec(tb,
			"RESET BINARY LOGS AND GTIDS",
			"SET GLOBAL group_replication_group_name = '8a5f6f0e-2f0c-4c51-9a4c-0d1c1a4b7d10'",
			"SET GLOBAL group_replication_single_primary_mode = OFF",
			"SET GLOBAL group_replication_local_address = '"+seeds[n]+"'",
			"SET GLOBAL group_replication_group_seeds = '"+strings.Join(seeds, ",")+"'",
			"SET GLOBAL group_replication_ip_allowlist = '127.0.0.1/32'",
			"CHANGE REPLICATION SOURCE TO SOURCE_USER = 'root' FOR CHANNEL 'group_replication_recovery'",
			fmt.Sprintf("SET GLOBAL group_replication_bootstrap_group = %v", n == 0),
			"START GROUP_REPLICATION",
			"SET GLOBAL group_replication_bootstrap_group = OFF")
		one.await(tb, fmt.Sprintf("SELECT COUNT(*) = %d FROM performance_schema.replication_group_members WHERE MEMBER_STATE = 'ONLINE'", n+1))
	}
	return all
}

// galera returns the path of the server's Galera library: the one that scripts/servers has unpacked, or the one of Debian's
// package galera-4.
func (s *Server) galera(tb testing.TB) string {
	tb.Helper()
	path := filepath.Join(filepath.Dir(s.binary), "root/usr/lib/galera/libgalera_smm.so")
	if _, err := os.Stat(path); err == nil {
		return path
	}
	path = "/usr/lib/galera/libgalera_smm.so"
	if _, err := os.Stat(path); err != nil {
		tb.Skipf("needs Debian's galera-4: %v", err)
	}
	return path
}

// Galera starts a cluster of MariaDB nodes for this test alone. It skips the test if the Galera library is missing. No node
// copies data from another when it joins, because all nodes start with the same data.
func (s *Server) Galera(tb testing.TB, count int) []*Server {
	tb.Helper()
	provider, cluster := s.galera(tb), "mq"+randomName()
	scripts := tb.TempDir()
	if err := os.WriteFile(filepath.Join(scripts, "wsrep_sst_equal"), []byte(transfersNothing), 0o755); err != nil {
		tb.Fatal(err)
	}
	var all []*Server
	var addresses []string
	for n := range count {
		one := &Server{name: s.name, version: s.version, mariadb: true, binary: s.binary, tb: tb, path: scripts}
		if n > 0 { // a copy of the first node's data, which includes the cluster's position
			one.from = filepath.Join(all[0].dir, "copy")
		}
		address := freeAddress(tb)
		err := one.launch("--wsrep-on=ON", "--wsrep-provider="+provider, "--wsrep-cluster-name="+cluster,
			"--wsrep-cluster-address=gcomm://"+strings.Join(addresses, ","), "--wsrep-node-address="+address, "--wsrep-sst-method=equal",
			"--binlog-format=ROW", "--innodb-autoinc-lock-mode=2",
			"--wsrep-provider-options=gmcast.listen_addr=tcp://"+address+";ist.recv_addr="+freeAddress(tb)+
				";gcache.size=1M;evs.suspect_timeout=PT2S;evs.inactive_timeout=PT4S;evs.keepalive_period=PT0.5S;evs.inactive_check_period=PT0.5S")
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() {
			if err := one.close(); err != nil {
				tb.Error(err)
			}
		})
		one.logWhenFailed(tb)
		addresses, all = append(addresses, address), append(all, one)
		if n == 0 && count > 1 {
			one.copyNode(tb)
		}
	}
	return all
}

// Bootstrap lets a Galera node that has lost the other nodes form a cluster by itself, and returns when the node can be used.
func (s *Server) Bootstrap(tb testing.TB) {
	tb.Helper()
	if _, err := s.admin.ExecContext(context.Background(), "SET GLOBAL wsrep_provider_pc_bootstrap = ON"); err != nil {
		s.exec(tb, "SET GLOBAL wsrep_provider_options = 'pc.bootstrap=YES'") // before MariaDB 11
	}
	Eventually(tb, "the node answers", func() bool {
		var ready bool
		err := s.admin.QueryRowContext(context.Background(), `SELECT VARIABLE_VALUE = 'ON' FROM information_schema.GLOBAL_STATUS
			WHERE VARIABLE_NAME = 'wsrep_ready'`).Scan(&ready)
		return err == nil && ready
	})
}

// copyNode stops the first node of a cluster, copies its data for the other nodes, and starts it again.
func (s *Server) copyNode(tb testing.TB) {
	tb.Helper()
	s.Stop()
	state := filepath.Join(s.dataFolder(), "grastate.dat")
	text, err := os.ReadFile(state)
	if err == nil {
		err = os.WriteFile(state, bytes.Replace(text, []byte("safe_to_bootstrap: 0"), []byte("safe_to_bootstrap: 1"), 1), 0o600)
	}
	for _, name := range []string{"galera.cache", "gvwstate.dat"} {
		_ = os.Remove(filepath.Join(s.dataFolder(), name)) // the next start makes a new one
	}
	if err == nil {
		err = copyFolder(filepath.Join(s.dir, "copy"), s.dataFolder())
	}
	if err != nil {
		tb.Fatalf("mysqltest: copy the first node: %v", err)
	}
	s.Restart(tb)
}

// transfersNothing is the cluster's state transfer script, which should copy a donor's data to a joining node. It copies
// nothing, because the nodes have the same data. On the donor it must read its standard input to the end.
const transfersNothing = `#!/bin/sh
while [ $# -gt 0 ]; do case $1 in
--role) role=$2; shift;; --address) address=$2; shift;; --datadir) data=${2%/}; shift;;
--gtid) gtid=$2; shift;; --gtid-domain-id) domain=$2; shift;; --bypass) bypass=1;; --mysqld-args) break;;
esac; shift; done
case $role in
joiner)
  rm -f "$data/none_sst"; echo "ready 127.0.0.1/$data/none_sst"
  while [ ! -s "$data/none_sst" ]; do sleep 0.05; done
  cat "$data/none_sst";;
donor)
  cat >/dev/null
  [ "$bypass" ] || { echo "the nodes differ" >&2; exit 1; }
  file=/${address#*//}; echo "$gtid ${domain:-0}" >"$file.new"; mv "$file.new" "$file"; echo "done $gtid";;
esac
`

func freeAddress(tb testing.TB) string {
	tb.Helper()
	port, err := child.FreePort()
	if err != nil {
		tb.Fatal(err)
	}
	return loopback(port)
}

func (s *Server) exec(tb testing.TB, statements ...string) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, statement := range statements {
		if _, err := s.admin.ExecContext(ctx, statement); err != nil {
			tb.Fatalf("mysqltest: %s: %v", statement, err)
		}
	}
}

// await waits until a query returns true.
func (s *Server) await(tb testing.TB, query string) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		var is sql.NullBool
		err := s.admin.QueryRowContext(ctx, query).Scan(&is)
		if is.Bool {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			tb.Fatalf("mysqltest: not after %v: %s: %v", patience, query, err)
		}
	}
}
