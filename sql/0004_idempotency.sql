-- Which publishes by HTTP were done, by the key that the client gave (Idempotency-Key). The digest tells
-- another message under the same key. mqnotify serve deletes those that are old.
CREATE TABLE IF NOT EXISTS mqnotify_idempotency (
  topic      VARCHAR(64)  CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  name       VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  message_id BIGINT UNSIGNED NOT NULL,
  digest     BINARY(32) NOT NULL,
  created_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
  PRIMARY KEY (topic, name),
  KEY created_at (created_at)
) ENGINE=InnoDB;
