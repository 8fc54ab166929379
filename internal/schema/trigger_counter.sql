-- Counts every {event} of a row, by whatever program. The counter's row is locked
-- until the writer commits: writers of the table commit one at a time.
CREATE TRIGGER {trigger} AFTER {event} ON {topic} FOR EACH ROW
  INSERT INTO mqnotify_flag (topic, counter) VALUES ({name}, 1)
  ON DUPLICATE KEY UPDATE counter = counter + 1;
