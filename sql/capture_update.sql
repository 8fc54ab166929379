-- Writes a message for every UPDATE that changes something of a row, by whatever program, in the writer's own
-- transaction. What is too large for max_allowed_packet is NULL, which the topic refuses, and the writer is told.
CREATE TRIGGER {trigger} AFTER UPDATE ON {table} FOR EACH ROW
BEGIN
  DECLARE old_row, new_row LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
  SET old_row =
      {old};
  SET new_row =
      {new};
  IF COALESCE(old_row <> new_row, TRUE) THEN
    INSERT INTO {topic} (headers, payload) VALUES ({headers},
      CONCAT({before}, old_row, ',"new":', new_row, '}'));
  END IF;
END;
