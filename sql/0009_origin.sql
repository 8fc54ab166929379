-- Which table a group's offset is of, as InnoDB numbers it: TRUNCATE makes a new one, whose ids begin again.
CREATE TABLE IF NOT EXISTS mqnotify_origin (
  topic      VARCHAR(64)  CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  group_name VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  server     CHAR(64)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  table_id   BIGINT UNSIGNED NOT NULL,
  created    BIGINT UNSIGNED NOT NULL,
  PRIMARY KEY (topic, group_name)
) ENGINE=InnoDB;
