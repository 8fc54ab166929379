-- A message table: the topic. INSERT INTO it (payload) VALUES (...) by any program is a message.
CREATE TABLE IF NOT EXISTS {topic} (
  id         BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
  created_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
  headers    JSON NULL,
  payload    LONGBLOB NOT NULL,
  PRIMARY KEY (id)
) ENGINE=InnoDB;
