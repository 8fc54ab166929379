-- What mqnotify remembers, one set of tables a database. The topic is a table's
-- name, compared byte by byte, since table names may differ by case alone.

-- The one-row flag: a counter that grows with each change of the topic. A row
-- that is not there counts as 0.
CREATE TABLE IF NOT EXISTS mqnotify_flag (
  topic      VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  counter    BIGINT UNSIGNED NOT NULL,
  changed_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6),
  PRIMARY KEY (topic)
) ENGINE=InnoDB;

-- How far a group has read: every id up to settled is done, and so are the ids
-- in delivered. A member may move its row only while the fence is the one it
-- set; the version counts the moves.
CREATE TABLE IF NOT EXISTS mqnotify_offset (
  topic      VARCHAR(64)  CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  group_name VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  settled    BIGINT UNSIGNED NOT NULL,
  delivered  LONGBLOB NOT NULL,
  fence      BIGINT UNSIGNED NOT NULL,
  version    BIGINT UNSIGNED NOT NULL,
  member     VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  updated_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6),
  PRIMARY KEY (topic, group_name)
) ENGINE=InnoDB;

-- Messages whose handler failed too often, whole, so that they can be tried
-- again after the topic's own rows are gone.
CREATE TABLE IF NOT EXISTS mqnotify_dead_letter (
  id         BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
  topic      VARCHAR(64)  CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  group_name VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  message_id BIGINT UNSIGNED NOT NULL,
  headers    JSON NULL,
  payload    LONGBLOB NOT NULL,
  attempts   INT UNSIGNED NOT NULL,
  error      TEXT CHARACTER SET utf8mb4 NOT NULL,
  failed_at  TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
  PRIMARY KEY (id),
  UNIQUE KEY message (topic, group_name, message_id)
) ENGINE=InnoDB;
