-- NOTIFY: every row is a notification to the processes that listen to its name. INSERT INTO it (name, payload) VALUES
-- (...) by any program is one. Listening processes delete rows that are older than an hour.
CREATE TABLE IF NOT EXISTS mqnotify_notification (
  id         BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
  name       VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  payload    VARBINARY(8000) NOT NULL DEFAULT '',
  created_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
  PRIMARY KEY (id),
  KEY created_at (created_at)
) ENGINE=InnoDB;
