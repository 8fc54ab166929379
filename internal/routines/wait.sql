-- Waits until a row with an id larger than after_id is committed, or until the time (in seconds) is over. It returns the
-- largest id of the table as head, or NULL if none is larger than after_id. The table needs a column id whose values grow.
CREATE PROCEDURE mqnotify_wait(topic TEXT CHARACTER SET utf8mb4, after_id DECIMAL(20), seconds DECIMAL(12, 3))
SQL SECURITY INVOKER
BEGIN
  IF topic IS NULL OR CHAR_LENGTH(topic) > 64 OR after_id IS NULL OR after_id < 0 OR seconds IS NULL OR seconds < 0 THEN
    SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT = 'mqnotify_wait(topic, after_id, seconds): none may be NULL or negative, and the topic has 64 characters at most';
  END IF;
  SET @mqnotify_read = CONCAT('SELECT MAX(id) INTO @mqnotify_id FROM `', REPLACE(topic, '`', '``'), '` WHERE id > ', after_id);
  CALL mqnotify_wait_for(topic, UTC_TIMESTAMP(6) + INTERVAL seconds SECOND);
  SELECT @mqnotify_found AS head;
END
