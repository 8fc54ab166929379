-- The dead letters of rows, not of messages, that the group's consumer is to try again: it reads the row again, and deletes
-- the request and the dead letter when the row is handled. A retry of a message is published, and needs no row here.
CREATE TABLE IF NOT EXISTS mqnotify_retry (
  topic      VARCHAR(64)  CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  group_name VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  message_id BIGINT UNSIGNED NOT NULL,
  PRIMARY KEY (topic, group_name, message_id)
) ENGINE=InnoDB;
