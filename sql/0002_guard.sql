-- What guards remember. Keys and names are compared byte by byte. Times are the
-- server's, in UTC, as DATETIME: no session's time zone changes what they mean. A
-- taker is the random mark of the attempt that got through: who lost the connection
-- finds out by it whether it did.

-- Once: done_at is when somebody got through, NULL before.
CREATE TABLE IF NOT EXISTS mqnotify_once (
  once_key VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  done_at  DATETIME(6) NULL,
  taker    CHAR(26) CHARACTER SET ascii COLLATE ascii_bin NULL,
  PRIMARY KEY (once_key)
) ENGINE=InnoDB;

-- Claims. One that follows another names it: each has one successor at most, and
-- none follows what was not claimed.
CREATE TABLE IF NOT EXISTS mqnotify_claim (
  claim_key  VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  follows    VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
  taker      CHAR(26) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  claimed_at DATETIME(6) NOT NULL,
  PRIMARY KEY (claim_key),
  UNIQUE KEY follows (follows),
  CONSTRAINT mqnotify_claim_follows FOREIGN KEY (follows) REFERENCES mqnotify_claim (claim_key)
) ENGINE=InnoDB;

-- At most once an interval: when somebody got through last, and how many have.
CREATE TABLE IF NOT EXISTS mqnotify_interval (
  interval_key VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  times        BIGINT UNSIGNED NOT NULL,
  taker        CHAR(26) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  taken_at     DATETIME(6) NOT NULL,
  PRIMARY KEY (interval_key)
) ENGINE=InnoDB;

-- A mutex that is held while its row is there.
CREATE TABLE IF NOT EXISTS mqnotify_mutex_row (
  name     VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  taker    CHAR(26) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  taken_at DATETIME(6) NOT NULL,
  PRIMARY KEY (name)
) ENGINE=InnoDB;

-- A mutex that is held while held is true. The token counts its holders.
CREATE TABLE IF NOT EXISTS mqnotify_mutex_flag (
  name     VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  held     BOOLEAN NOT NULL DEFAULT FALSE,
  token    BIGINT UNSIGNED NOT NULL DEFAULT 0,
  taker    CHAR(26) CHARACTER SET ascii COLLATE ascii_bin NULL,
  taken_at DATETIME(6) NULL,
  PRIMARY KEY (name)
) ENGINE=InnoDB;

-- Leases. One is held until expires_at, which is NULL when it was released. The
-- token counts its holders, and never falls: no row is deleted.
CREATE TABLE IF NOT EXISTS mqnotify_lease (
  name       VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  token      BIGINT UNSIGNED NOT NULL,
  taker      CHAR(26) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  taken_at   DATETIME(6) NOT NULL,
  renewals   BIGINT UNSIGNED NOT NULL DEFAULT 0,
  expires_at DATETIME(6) NULL,
  PRIMARY KEY (name)
) ENGINE=InnoDB;
