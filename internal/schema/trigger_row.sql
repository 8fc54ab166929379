-- Inserts a row at the first {event} of a row by any program, until a reader deletes it. A topic
-- can have one reader, and writers wait for one another only while the row is missing.
CREATE TRIGGER {trigger} AFTER {event} ON {topic} FOR EACH ROW
  INSERT IGNORE INTO mqnotify_flag (topic, counter) VALUES ({name}, 1);
