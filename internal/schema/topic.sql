-- A message table: a topic. Any program adds a message by INSERT INTO it (payload) VALUES (...).
CREATE TABLE IF NOT EXISTS {topic} (
  id         BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
  created_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
  headers    JSON NULL,
  payload    LONGBLOB NOT NULL,
  PRIMARY KEY (id)
) ENGINE=InnoDB;
