-- Counts the table's triggers that wake listeners. Accounts that may not see triggers call it: it runs with the privileges of
-- the account that made it, as the triggers do. On a read-only server it returns 0, because the writers are on other servers.
CREATE PROCEDURE mqnotify_count_triggers(topic VARCHAR(64) CHARACTER SET utf8mb4, OUT triggers INT)
SQL SECURITY DEFINER
READS SQL DATA
SELECT COUNT(*) INTO triggers FROM information_schema.TRIGGERS
WHERE EVENT_OBJECT_SCHEMA = DATABASE() AND EVENT_OBJECT_TABLE = topic AND EVENT_MANIPULATION = 'INSERT'
  AND DEFINER = (SELECT DEFINER FROM information_schema.ROUTINES WHERE ROUTINE_SCHEMA = DATABASE() AND ROUTINE_NAME = 'mqnotify_wake')
  AND (@@lower_case_table_names > 0 OR CAST(EVENT_OBJECT_TABLE AS BINARY) = CAST(topic AS BINARY))
  AND LOCATE('{prefix}:', ACTION_STATEMENT) > 0 AND CAST(@@GLOBAL.read_only AS CHAR) IN ('0', 'OFF')
