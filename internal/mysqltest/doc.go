// Package mysqltest runs tests on real database servers.
//
// [Each] runs a test once for every server of the matrix: on private instances, started from the
// server's binary on a free loopback port with a data folder of their own, and removed after the
// tests. All tests of a package share one instance of each server, each in a database of its own
// ([Server.Database]); a test that stops, kills or freezes a server starts an instance of its own
// ([Server.Start]).
//
// Where the servers come from:
//
//   - MQNOTIFY_TEST_DSN, a DSN in the driver's form: that server alone is the matrix, named "dsn".
//     Tests that need an instance of their own are skipped.
//   - MQNOTIFY_TEST_SERVERS, a list of "name=binary" separated by spaces. `scripts/servers` prints such a list.
//   - If neither is set: Debian's mariadbd or mysqld, and the servers that `scripts/servers` has unpacked into
//     the user's cache folder.
//
// A package that uses mysqltest has a TestMain that calls [Main].
//
// The instances are fast rather than durable: committed rows survive a crash of the server (kill -9), but not of the machine.
// Other settings that an application could see are the server's defaults.
package mysqltest
