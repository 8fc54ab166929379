-- The files of this folder that were applied to the database, by number.
CREATE TABLE IF NOT EXISTS mqnotify_schema (
  version    INT UNSIGNED NOT NULL,
  applied_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
  PRIMARY KEY (version)
) ENGINE=InnoDB;
