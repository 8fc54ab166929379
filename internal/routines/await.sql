-- Waits until a query returns a number, or for so many seconds, and returns the number, as value: NULL if the time is over. The
-- query reads one table, such as SELECT MAX(id) FROM jobs WHERE reserved_at IS NULL, and is asked again at each INSERT into it.
-- It runs with the caller's rights, as the whole procedure does.
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
