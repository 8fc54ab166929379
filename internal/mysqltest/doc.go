// Package mysqltest runs tests on real database servers.
//
// [Each] runs a test once for every server of the matrix: on private instances, started from the
// server's binary on a free loopback port with a data folder of their own, and gone when the tests
// are. One instance a server is shared by all tests of a package, each in a database of its own
// ([Server.Database]); a test that stops, kills or freezes a server starts an instance of its own
// ([Server.Start]).
//
// Where the servers come from:
//
//   - MQNOTIFY_TEST_DSN, a DSN in the driver's form: that server alone is the matrix, named "dsn".
//     Tests that need an instance of their own are skipped.
//   - MQNOTIFY_TEST_SERVERS, "name=binary" separated by spaces: those. `scripts/servers` prints the value.
//   - neither: Debian's mariadbd or mysqld, and what `scripts/servers` has unpacked into the user's
//     cache folder.
//
// A package that uses this has a TestMain which calls [Main].
//
// The instances are quick rather than durable: committed rows survive the server's death (kill -9),
// not the machine's. Other settings that an application could see are the server's defaults.
package mysqltest
