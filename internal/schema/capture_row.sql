-- Writes a message for every {event} of a row by any program, in the writer's own transaction. The DO statement never runs.
-- It stores what the trigger was made for, and mqnotify reads it. Columns whose types were changed since then take the ELSE
-- branch, which is slower.
CREATE TRIGGER {trigger} AFTER {event} ON {table} FOR EACH ROW
BEGIN
  DECLARE {row}_row, {row}_key LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
  IF FALSE THEN DO {definition}; END IF;
  IF {same} THEN
    SET {row}_key = {key}, {row}_row =
      {value};
  ELSE
    SET {row}_key = {any_key}, {row}_row =
      {any_value};
  END IF;
  INSERT INTO {topic} (headers, payload) VALUES
    {messages};
END;
