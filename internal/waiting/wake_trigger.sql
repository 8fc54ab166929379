-- Wakes the processes that listen to the table, at every {event} of a row by any program. The row is in the table
-- by now, and the listeners wait for its commit. While no listener waits, this costs one function call a row.
-- A KILL is sent at most once in a slot of a millisecond, by the session that gets the slot's lock. Other rows of the slot end
-- at the first condition, because the block costs several times as much. SYSDATE, because NOW is the start of a statement that
-- may have waited.
CREATE TRIGGER {trigger} AFTER {event} ON {table} FOR EACH ROW
IF IS_USED_LOCK('{gate}:wake') IS NOT NULL
  AND IS_USED_LOCK(CONVERT(CONCAT('{gate}:', FLOOR(UNIX_TIMESTAMP(SYSDATE(6)) * {slots})) USING ascii)) IS NULL THEN
BEGIN
  DECLARE leader BIGINT UNSIGNED DEFAULT IS_USED_LOCK('{gate}:wake');
  DECLARE token VARBINARY(64) DEFAULT CONCAT('{gate}:', FLOOR(UNIX_TIMESTAMP(SYSDATE(6)) * {slots}));
  DECLARE CONTINUE HANDLER FOR SQLEXCEPTION BEGIN END;
  IF leader IS NOT NULL AND GET_LOCK(CONVERT(token USING ascii), 0) = 1 THEN
    IF @mqnotify_token_{number} IS NOT NULL THEN
      DO RELEASE_LOCK(CONVERT(@mqnotify_token_{number} USING ascii));
    END IF;
    SET @mqnotify_token_{number} = token;
    KILL QUERY leader;
  END IF;
END;
END IF
