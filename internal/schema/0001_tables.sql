-- The state of mqnotify; a database has one set of these tables. A topic is a table's
-- name, compared byte by byte, because names of tables may differ only in case. ROW_FORMAT=DYNAMIC,
-- because COMPACT, the default of some servers, limits keys to 767 bytes.

-- The one-row flag: a counter that grows with every change of the topic. A missing
-- row counts as 0.
CREATE TABLE IF NOT EXISTS mqnotify_flag (
  topic      VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  counter    BIGINT UNSIGNED NOT NULL,
  changed_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6),
  PRIMARY KEY (topic)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- A group's offset: every id up to settled is done, and so are the ids in delivered. A member
-- may move its row only while the fence is the one that it set; the version counts the moves.
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
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- Messages whose handler failed too often. They are stored whole, so that they can be tried
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
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- The offset of each partition of a shared group. The group's own row in mqnotify_offset
-- has the number of partitions and their key; its settled is the smallest of theirs.
-- A member may move a row only while the fence is the one that it set.
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
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- Requests to try again the dead letters of rows, not of messages. The group's consumer reads the row again, and deletes
-- the request and the dead letter when the row is handled. A message is published again instead, and needs no request.
CREATE TABLE IF NOT EXISTS mqnotify_retry (
  topic      VARCHAR(64)  CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  group_name VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  message_id BIGINT UNSIGNED NOT NULL,
  PRIMARY KEY (topic, group_name, message_id)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- The table that a group's offset belongs to, by InnoDB's number: after TRUNCATE the table has another one, and its ids begin again.
CREATE TABLE IF NOT EXISTS mqnotify_origin (
  topic      VARCHAR(64)  CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  group_name VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  server     CHAR(64)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  table_id   BIGINT UNSIGNED NOT NULL,
  created    BIGINT UNSIGNED NOT NULL,
  PRIMARY KEY (topic, group_name)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- NOTIFY: every row is a notification to the processes that listen to its name. Any program sends one by INSERT INTO it
-- (name, payload) VALUES (...). Listening processes delete rows that are older than an hour.
CREATE TABLE IF NOT EXISTS mqnotify_notification (
  id         BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
  name       VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  payload    VARBINARY(8000) NOT NULL DEFAULT '',
  created_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
  PRIMARY KEY (id),
  KEY name (name),
  KEY created_at (created_at)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- The state of guards. Keys and names are compared byte by byte. Times are the
-- server's, in UTC, as DATETIME, which no session's time zone changes. taker is the
-- random mark of the attempt that succeeded: after a lost connection a process reads
-- in it whether its own attempt succeeded.

-- Once: done_at is when an attempt succeeded, NULL before.
CREATE TABLE IF NOT EXISTS mqnotify_once (
  once_key VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  done_at  DATETIME(6) NULL,
  taker    CHAR(26) CHARACTER SET ascii COLLATE ascii_bin NULL,
  PRIMARY KEY (once_key)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- Claims. A claim that follows another one names it. Each has at most one successor,
-- and only a claim that was made can have one.
CREATE TABLE IF NOT EXISTS mqnotify_claim (
  claim_key  VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  follows    VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
  taker      CHAR(26) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  claimed_at DATETIME(6) NOT NULL,
  PRIMARY KEY (claim_key),
  UNIQUE KEY follows (follows),
  CONSTRAINT mqnotify_claim_follows FOREIGN KEY (follows) REFERENCES mqnotify_claim (claim_key)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- At most once an interval: when an attempt last succeeded, and how many did.
CREATE TABLE IF NOT EXISTS mqnotify_interval (
  interval_key VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  times        BIGINT UNSIGNED NOT NULL,
  taker        CHAR(26) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  taken_at     DATETIME(6) NOT NULL,
  PRIMARY KEY (interval_key)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- A mutex that is held while its row exists.
CREATE TABLE IF NOT EXISTS mqnotify_mutex_row (
  name     VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  taker    CHAR(26) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  taken_at DATETIME(6) NOT NULL,
  PRIMARY KEY (name)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- A mutex that is held while held is true. The token counts its holders.
CREATE TABLE IF NOT EXISTS mqnotify_mutex_flag (
  name     VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  held     BOOLEAN NOT NULL DEFAULT FALSE,
  token    BIGINT UNSIGNED NOT NULL DEFAULT 0,
  taker    CHAR(26) CHARACTER SET ascii COLLATE ascii_bin NULL,
  taken_at DATETIME(6) NULL,
  PRIMARY KEY (name)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- Leases. A lease is held until expires_at, which is NULL after a release. The
-- token counts its holders, and never falls, because no row is deleted.
CREATE TABLE IF NOT EXISTS mqnotify_lease (
  name       VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  token      BIGINT UNSIGNED NOT NULL,
  taker      CHAR(26) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  taken_at   DATETIME(6) NOT NULL,
  renewals   BIGINT UNSIGNED NOT NULL DEFAULT 0,
  expires_at DATETIME(6) NULL,
  PRIMARY KEY (name)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- The queues, by name. An ordered queue gives out one task at a time, in the order
-- of their ids.
CREATE TABLE IF NOT EXISTS mqnotify_queue (
  name       VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  ordered    BOOLEAN NOT NULL DEFAULT FALSE,
  created_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
  PRIMARY KEY (name)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- The tasks of all queues. Any program adds a task by INSERT INTO it (queue, payload)
-- VALUES (...). One index finds the tasks to claim, those that become due and those to
-- prune: each kind is the beginning of a range of the index.
CREATE TABLE IF NOT EXISTS mqnotify_task (
  id         BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
  queue      VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  state      ENUM('scheduled', 'ready', 'in progress', 'failed', 'done', 'dead') NOT NULL DEFAULT 'ready',
-- Ready: the priority. In progress: 1 if the task was cancelled and becomes dead when its worker gives it up; 2 if it was
-- cancelled and becomes ready then. Otherwise 0.
  claim_order SMALLINT NOT NULL DEFAULT 0,
-- UTC. Scheduled, failed: when it becomes ready. In progress: when the claim lapses. Done, dead: since when.
-- This column and owner have a fixed length: a claim is cheap because the row keeps its length.
  state_at   DATETIME(6) NOT NULL DEFAULT '1970-01-01 00:00:00',
  priority   SMALLINT NOT NULL DEFAULT 0,
-- The number of claims so far. With the id it identifies a claim.
  attempts   INT UNSIGNED NOT NULL DEFAULT 0,
  retries    INT UNSIGNED NOT NULL DEFAULT 5,
-- How many of its claims have lapsed because their workers vanished.
  lapses     INT UNSIGNED NOT NULL DEFAULT 0,
-- Whether the task still has this key is in mqnotify_task_key.
  unique_key VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
-- The worker that has the task, or had it last. Ready: ~ and the time (UTC) until which a busy worker has reserved it.
  owner      CHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
  created_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
  last_error TEXT CHARACTER SET utf8mb4 NULL,
  payload    LONGBLOB NOT NULL,
  PRIMARY KEY (id),
  KEY claim (queue, state, claim_order, state_at)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- The unique keys of tasks. A task has its key until it is done or dead, or its row is gone; then the key is free.
CREATE TABLE IF NOT EXISTS mqnotify_task_key (
  queue      VARCHAR(64)  CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  unique_key VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  task       BIGINT UNSIGNED NOT NULL,
  PRIMARY KEY (queue, unique_key)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- Recurring tasks: which task is added next, and when (UTC).
CREATE TABLE IF NOT EXISTS mqnotify_schedule (
  queue      VARCHAR(64)  CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  name       VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  cron       VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  next_at    DATETIME(6) NOT NULL,
  priority   SMALLINT NOT NULL,
  retries    INT UNSIGNED NOT NULL,
  unique_key VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
  payload    LONGBLOB NOT NULL,
  PRIMARY KEY (queue, name),
  KEY due (queue, next_at)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- Ring buffers, and how many entries each has had.
CREATE TABLE IF NOT EXISTS mqnotify_ring (
  name       VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  size       INT UNSIGNED NOT NULL,
  head       BIGINT UNSIGNED NOT NULL DEFAULT 0,
  created_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
  PRIMARY KEY (name)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- A ring buffer's rows, as many as its size: entry n is in slot n modulo the size.
CREATE TABLE IF NOT EXISTS mqnotify_ring_slot (
  ring       VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  slot       INT UNSIGNED NOT NULL,
  entry      BIGINT UNSIGNED NOT NULL,
  written_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
  payload    LONGBLOB NOT NULL,
  PRIMARY KEY (ring, slot),
  KEY entry (ring, entry)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- The publishes by HTTP that were done, by the key that the client gave (Idempotency-Key). The digest shows whether
-- a publish under a known key has another message. mqnotify serve deletes old rows.
CREATE TABLE IF NOT EXISTS mqnotify_idempotency (
  topic      VARCHAR(64)  CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  name       VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  message_id BIGINT UNSIGNED NOT NULL,
  digest     BINARY(32) NOT NULL,
  created_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
  PRIMARY KEY (topic, name),
  KEY created_at (created_at)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- Messages that an import has put into a topic, by their source and their
-- broker's id. The transaction that inserts a message also inserts its row here, so that
-- none is inserted twice. Old rows are deleted.
CREATE TABLE IF NOT EXISTS mqnotify_import (
  topic      VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  source     VARBINARY(255) NOT NULL,
  message_id VARBINARY(255) NOT NULL,
  seen_at    TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
  PRIMARY KEY (topic, source, message_id),
  KEY age (topic, source, seen_at)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- The latest snapshot of each captured table. after_key is the key of the last row that was written, NULL before the first.
-- last_key is the key of the table's last row when the snapshot began. Both are JSON arrays of texts. key_columns and capture
-- name the key and the capture that the snapshot is for: another key or capture begins a new snapshot. The topic's messages
-- from first_id on make a copy of the table.
CREATE TABLE IF NOT EXISTS mqnotify_snapshot (
  table_name  VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  topic       VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  capture     VARCHAR(100) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  key_columns TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  first_id    BIGINT UNSIGNED NOT NULL,
  after_key   TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
  last_key    TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  row_count   BIGINT UNSIGNED NOT NULL DEFAULT 0,
  started_at  TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
  finished_at DATETIME(6) NULL,
  PRIMARY KEY (table_name)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;
