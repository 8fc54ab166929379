-- Leaves a row at the first {event} of a row, by whatever program, until a reader
-- deletes it: one reader a topic, and writers meet only while it is away.
CREATE TRIGGER {trigger} AFTER {event} ON {topic} FOR EACH ROW
  INSERT IGNORE INTO mqnotify_flag (topic, counter) VALUES ({name}, 1);
