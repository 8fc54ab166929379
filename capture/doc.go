// Package capture makes every change of a table a message, whatever program makes
// it: triggers write the old and the new row as JSON, and the operation, into a
// message table, in the writer's own transaction.
//
// A message is there if, and only if, the change is: both commit or neither does.
// That is the outbox pattern for writers that can't be changed. It needs no binary
// log, no REPLICATION privilege, and nothing that runs. What it costs is the writer's
// time; docs/guide/capture.md has figures. Prefer producer.PublishTx where the writer is
// yours: the message is then what you mean, not what the table's columns are.
//
// # The message
//
//	headers  {"op":"update","table":"orders","key":"7"}
//	payload  {"op":"update","table":"orders","old":{"id":7,"paid":0},"new":{"id":7,"paid":1}}
//
// old is null for an insert, new for a delete. A row is written as mqnotify tail writes
// it, and every type comes out whole: integers, BIT and DECIMAL with every digit, times
// in RFC 3339 and UTC whatever the writer's time zone, binary columns and geometry in
// base64, JSON as it is. docs/guide/capture.md has the table.
//
// The key is the primary key: the text of a single column, the JSON array of several. An
// UPDATE that changes it is a delete and an insert.
//
// An UPDATE that changes none of the captured columns is no message.
//
// # The rows that are there already
//
// [Snapshot] writes them as messages whose op is read, while programs go on writing. A reader that stores new under the key, or deletes the key
// if new is null, ends with a copy of the table.
//
// # What no trigger sees
//
//   - TRUNCATE, DROP, a partition that is exchanged or dropped;
//   - rows that a foreign key's CASCADE or SET NULL changes in another table: servers
//     fire no triggers for those;
//   - rows that a replica applies in the row format. They carry the messages with them.
//
// # What can go wrong
//
// A trigger that fails makes the write fail, and nothing is written: a row that is too
// large for max_allowed_packet when written as JSON, a topic that was dropped, a
// captured column that was dropped or renamed: repair the capture without that column
// first. A column that is added is not captured, and one whose type was changed may be
// written in another form, until [Repair]. [Status] tells of all of these, and of a table
// that was swapped for another.
//
// The triggers run with the rights of the account that made them: it must stay.
package capture
