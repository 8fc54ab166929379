// Package capture writes a message for every change of a table, whichever program makes the change. Triggers write the operation,
// the old row and the new row as JSON into a message table, in the writer's own transaction.
//
// The change and its message commit together, or neither does. This is the outbox pattern for writers that can't be changed. It
// needs no binary log, no REPLICATION privilege and no running process. Its cost is the writer's time; docs/guide/capture.md has
// figures. If you can change the writer, prefer producer.PublishTx: the message then has what you mean instead of the table's
// columns.
//
// # The message
//
//	headers  {"op":"update","table":"orders","key":"7"}
//	payload  {"op":"update","table":"orders","old":{"id":7,"paid":0},"new":{"id":7,"paid":1}}
//
// old is null for an insert, new for a delete. A row has the form of mqnotify tail, which loses nothing of any type: integers, BIT
// and DECIMAL have every digit, times are RFC 3339 in UTC in every session time zone, binary columns and geometry are base64, JSON
// is embedded. docs/guide/capture.md has the table of types.
//
// The key is the primary key: the text of a single column, or a JSON array of several. An UPDATE of the key becomes a delete and an
// insert.
//
// An UPDATE that changes no captured column writes no message.
//
// # Existing rows
//
// [Snapshot] writes the existing rows as messages whose op is read, while programs go on writing. A reader gets a copy of the table if
// it stores new under the key, and deletes the key if new is null.
//
// # Changes that fire no trigger
//
//   - TRUNCATE, DROP, and partitions that are exchanged or dropped;
//   - rows of another table that a foreign key's CASCADE or SET NULL changes;
//   - rows that a replica applies in the row format. The replica also gets the messages from the primary.
//
// # Errors
//
// If a trigger fails, the write fails and changes nothing. The causes are a row whose JSON is too large for max_allowed_packet, a
// dropped topic, and a captured column that was dropped or renamed: before you drop or rename a column, repair the capture without it.
// An added column is not captured, and values of a column whose type was changed may have a wrong form, until [Repair]. [Status] shows
// all of these, and a table that was swapped for another.
//
// Don't drop the account that made the triggers: they run with its rights.
package capture
