-- Shows the open transactions of the server, but not their statements, to accounts that may execute it. It runs with the
-- privileges of the account that made it, which needs PROCESS. The server's view may be 100 ms old. The view is
-- newer than the call if it has the caller's own row, inside a transaction, with the number in the row's statement.
CREATE PROCEDURE mqnotify_open_writers(number BIGINT UNSIGNED)
SQL SECURITY DEFINER
BEGIN
  SET @mqnotify_open_writers = CONCAT('SELECT /* mqnotify ', CONNECTION_ID(), ' ', number, ' */ trx_id, trx_mysql_thread_id, ',
    'CAST(trx_started AS CHAR), COALESCE(IF(trx_mysql_thread_id = CONNECTION_ID(), trx_query, NULL), SPACE(0)), ',
    'trx_tables_in_use + trx_tables_locked + trx_lock_structs + trx_rows_modified > 0 FROM information_schema.INNODB_TRX');
  PREPARE mqnotify_open_writers FROM @mqnotify_open_writers;
  EXECUTE mqnotify_open_writers;
  DEALLOCATE PREPARE mqnotify_open_writers;
END
