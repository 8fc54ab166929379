-- Lists the triggers that wake listeners, as pairs of a table and an event. Accounts that may not see triggers call it: it
-- runs with the privileges of the account that made it, as the triggers do. A read-only server lists none, because its
-- writers are elsewhere. A trigger whose table was renamed since wakes another gate, and is not listed.
CREATE PROCEDURE mqnotify_wake_tables()
SQL SECURITY DEFINER
READS SQL DATA
SELECT EVENT_OBJECT_TABLE, EVENT_MANIPULATION FROM information_schema.TRIGGERS
WHERE EVENT_OBJECT_SCHEMA = DATABASE() AND DEFINER = CURRENT_USER()
  AND EXISTS (SELECT 1 FROM information_schema.ROUTINES
              WHERE ROUTINE_SCHEMA = DATABASE() AND ROUTINE_NAME = 'mqnotify_wake' AND DEFINER = CURRENT_USER())
  AND LOCATE(CONCAT('{prefix}:', IF(LOWER(EVENT_OBJECT_TABLE) = 'mqnotify_notification', {gates},
             CRC32(LOWER(CONVERT(EVENT_OBJECT_TABLE USING ascii))) % {gates}), ':'), ACTION_STATEMENT) > 0 AND CAST(@@GLOBAL.read_only AS CHAR) IN ('0', 'OFF')
