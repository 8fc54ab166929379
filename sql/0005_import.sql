-- Messages that an import has put into a topic, by where they came from and their
-- broker's id: written in the transaction that inserts them, so that none is inserted
-- twice. Old ones are deleted.
CREATE TABLE IF NOT EXISTS mqnotify_import (
  topic      VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  source     VARBINARY(255) NOT NULL,
  message_id VARBINARY(255) NOT NULL,
  seen_at    TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
  PRIMARY KEY (topic, source, message_id),
  KEY age (topic, source, seen_at)
) ENGINE=InnoDB;
