-- How far each partition of a group is whose members share it. The group's own row, in
-- mqnotify_offset, says how many there are and what they go by; its settled is the least
-- of theirs. A member may move a row only while the fence is the one it set.
CREATE TABLE IF NOT EXISTS mqnotify_partition (
  topic      VARCHAR(64)  CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  group_name VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  part       SMALLINT UNSIGNED NOT NULL,
  settled    BIGINT UNSIGNED NOT NULL,
  delivered  LONGBLOB NOT NULL,
  fence      BIGINT UNSIGNED NOT NULL,
  version    BIGINT UNSIGNED NOT NULL,
  member     VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  updated_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6),
  PRIMARY KEY (topic, group_name, part)
) ENGINE=InnoDB;
