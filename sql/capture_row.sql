-- Writes a message for every {event} of a row, by whatever program, in the writer's own transaction. The statement that is
-- never run says what the trigger was made for: mqnotify reads it.
CREATE TRIGGER {trigger} AFTER {event} ON {table} FOR EACH ROW
BEGIN
  IF FALSE THEN DO {definition}; END IF;
  INSERT INTO {topic} (headers, payload) VALUES
    {messages};
END;
