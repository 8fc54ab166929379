-- Waits until a row with a larger id than after_id is committed, or for so many seconds, and returns the largest id of the
-- table, as head: NULL if none is larger. The table has a column id that grows.
CREATE PROCEDURE mqnotify_wait(topic VARCHAR(64) CHARACTER SET utf8mb4, after_id BIGINT UNSIGNED, seconds DECIMAL(12, 3))
SQL SECURITY INVOKER
BEGIN
  IF topic IS NULL OR after_id IS NULL OR seconds IS NULL OR seconds < 0 THEN
    SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT = 'mqnotify_wait(topic, after_id, seconds): no argument may be NULL, and seconds not negative';
  END IF;
  SET @mqnotify_read = CONCAT('SELECT MAX(id) INTO @mqnotify_id FROM `', REPLACE(topic, '`', '``'), '` WHERE id > ', after_id);
  CALL mqnotify_wait_for(topic, UTC_TIMESTAMP(6) + INTERVAL seconds SECOND);
  SELECT @mqnotify_found AS head;
END
