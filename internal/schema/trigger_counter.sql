-- Counts every {event} of a row by any program. The counter's row stays locked
-- until the writer commits, so writers of the table commit one at a time.
CREATE TRIGGER {trigger} AFTER {event} ON {topic} FOR EACH ROW
  INSERT INTO mqnotify_flag (topic, counter) VALUES ({name}, 1)
  ON DUPLICATE KEY UPDATE counter = counter + 1;
