-- Waits until a query returns a number, or until the time (in seconds) is over. It returns the number as value, or NULL if the
-- time is over. The query reads one table, such as SELECT MAX(id) FROM jobs WHERE reserved_at IS NULL, and is repeated at every
-- INSERT into this table. It runs with the privileges of the caller, as the whole procedure does.
CREATE PROCEDURE mqnotify_await(topic TEXT CHARACTER SET utf8mb4, query LONGTEXT CHARACTER SET utf8mb4, seconds DECIMAL(12, 3))
SQL SECURITY INVOKER
BEGIN
  IF topic IS NULL OR CHAR_LENGTH(topic) > 64 OR query IS NULL OR seconds IS NULL OR seconds < 0 THEN
    SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT = 'mqnotify_await(topic, query, seconds): none may be NULL or negative, and the topic has 64 characters at most';
  END IF;
  SET @mqnotify_read = CONCAT('SELECT (', query, CHAR(10), ') INTO @mqnotify_id');
  CALL mqnotify_wait_for(topic, UTC_TIMESTAMP(6) + INTERVAL seconds SECOND);
  SELECT @mqnotify_found AS value;
END
