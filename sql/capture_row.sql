-- Writes a message for every {event} of a row, by whatever program, in the writer's own transaction.
CREATE TRIGGER {trigger} AFTER {event} ON {table} FOR EACH ROW
  INSERT INTO {topic} (headers, payload) VALUES ({headers},
    CONCAT({before},
      {row},
      {after}));
