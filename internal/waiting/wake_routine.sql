-- Wakes the processes that listen to the topic. Programs that write to a table without a trigger call it after their
-- commit. It does what the trigger does. If no leader waits, it wakes the session that is on trial.
CREATE PROCEDURE mqnotify_wake(topic VARCHAR(64) CHARACTER SET utf8mb4)
SQL SECURITY DEFINER
BEGIN
  DECLARE gate VARCHAR(64) CHARACTER SET ascii DEFAULT CONCAT('{prefix}:',
    IF(LOWER(topic) = 'mqnotify_notification', {gates}, CRC32(LOWER(CONVERT(topic USING ascii))) % {gates}), ':');
  DECLARE leader BIGINT UNSIGNED DEFAULT COALESCE(IS_USED_LOCK(CONCAT(gate, 'wake')), IS_USED_LOCK(CONCAT(gate, 'test')));
  DECLARE token VARBINARY(64) DEFAULT CONCAT(gate, FLOOR(UNIX_TIMESTAMP(SYSDATE(6)) * {slots}));
  DECLARE CONTINUE HANDLER FOR SQLEXCEPTION BEGIN END;
  IF leader IS NOT NULL AND NOT (CAST(@mqnotify_token AS BINARY) <=> token) AND GET_LOCK(CONVERT(token USING ascii), 0) = 1 THEN
    IF @mqnotify_token IS NOT NULL THEN
      DO RELEASE_LOCK(CONVERT(@mqnotify_token USING ascii));
    END IF;
    SET @mqnotify_token = token;
    KILL QUERY leader;
  END IF;
END
