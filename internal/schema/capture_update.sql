-- Writes a message for every UPDATE by any program that changes something of a row, in the writer's own transaction. A row
-- that is too large for max_allowed_packet becomes NULL, which the topic refuses, so that the writer gets an error. The DO
-- statement never runs. It stores what the trigger was made for, and mqnotify reads it. Columns whose types were changed
-- since then take the ELSE branch, which is slower.
CREATE TRIGGER {trigger} AFTER UPDATE ON {table} FOR EACH ROW
BEGIN
  DECLARE old_row, new_row, old_key, new_key LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
  IF FALSE THEN DO {definition}; END IF;
  IF {same} THEN
    SET old_key = {old_key}, new_key = {new_key}, old_row =
      {old},
    new_row =
      {new};
  ELSE
    SET old_key = {any_old_key}, new_key = {any_new_key}, old_row =
      {any_old},
    new_row =
      {any_new};
  END IF;
  IF {split} AND COALESCE(old_key <> new_key, TRUE) THEN
    INSERT INTO {topic} (headers, payload) VALUES
    {moved};
  ELSEIF COALESCE(old_row <> new_row, TRUE) THEN
    INSERT INTO {topic} (headers, payload) VALUES
    {messages};
  END IF;
END;
