-- Counts the triggers that wake those who wait for rows of a table, for accounts that may not see triggers: it runs with the
-- rights of the account that made it, as the triggers do. A server that is read-only has none: its writers are elsewhere.
CREATE PROCEDURE mqnotify_count_triggers(topic VARCHAR(64) CHARACTER SET utf8mb4, OUT triggers INT)
SQL SECURITY DEFINER
READS SQL DATA
SELECT COUNT(*) INTO triggers FROM information_schema.TRIGGERS
WHERE TRIGGER_SCHEMA = DATABASE() AND EVENT_OBJECT_TABLE = topic AND EVENT_MANIPULATION = 'INSERT'
  AND DEFINER = (SELECT DEFINER FROM information_schema.ROUTINES WHERE ROUTINE_SCHEMA = DATABASE() AND ROUTINE_NAME = 'mqnotify_wake')
  AND (@@lower_case_table_names > 0 OR CAST(EVENT_OBJECT_TABLE AS BINARY) = CAST(topic AS BINARY))
  AND LOCATE('{prefix}:', ACTION_STATEMENT) > 0 AND CAST(@@GLOBAL.read_only AS CHAR) IN ('0', 'OFF')
