-- The queues, by name. An ordered one gives out one task at a time, in the order
-- of their ids.
CREATE TABLE IF NOT EXISTS mqnotify_queue (
  name       VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  ordered    BOOLEAN NOT NULL DEFAULT FALSE,
  created_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
  PRIMARY KEY (name)
) ENGINE=InnoDB;

-- The tasks of all queues. INSERT INTO it (queue, payload) VALUES (...) by any
-- program is a task. One index finds what is to be claimed, what falls due and what
-- is to be pruned: each is the beginning of a range of it.
CREATE TABLE IF NOT EXISTS mqnotify_task (
  id         BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
  queue      VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  state      ENUM('scheduled', 'ready', 'in progress', 'failed', 'done', 'dead') NOT NULL DEFAULT 'ready',
-- Ready: the priority. In progress: 1 if the task was cancelled, and is dead when its worker gives it up; 2 if it was
-- cancelled, and is ready then. Else 0.
  turn       SMALLINT NOT NULL DEFAULT 0,
-- UTC. Scheduled, failed: when it becomes ready. In progress: when the claim lapses.
-- Done, dead: since when. This and the owner keep a row's length, which makes claims cheap.
  state_at   DATETIME(6) NOT NULL DEFAULT '1970-01-01 00:00:00',
  priority   SMALLINT NOT NULL DEFAULT 0,
-- The claims so far: with the id it tells one claim from all others.
  attempts   INT UNSIGNED NOT NULL DEFAULT 0,
  retries    INT UNSIGNED NOT NULL DEFAULT 5,
-- How many of its claims have lapsed because their workers vanished.
  lapses     INT UNSIGNED NOT NULL DEFAULT 0,
-- Its row in mqnotify_task_key says whether it has it still.
  unique_key VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
-- The worker that has it, or had it last. Ready: ~ and until when (UTC) a busy worker has reserved it.
  owner      CHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
  created_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
  last_error TEXT CHARACTER SET utf8mb4 NULL,
  payload    LONGBLOB NOT NULL,
  PRIMARY KEY (id),
  KEY claim (queue, state, turn, state_at)
) ENGINE=InnoDB;

-- The unique keys of tasks. One that is there and neither done nor dead has the key;
-- of any other it is free.
CREATE TABLE IF NOT EXISTS mqnotify_task_key (
  queue      VARCHAR(64)  CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  unique_key VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  task       BIGINT UNSIGNED NOT NULL,
  PRIMARY KEY (queue, unique_key)
) ENGINE=InnoDB;

-- Recurring tasks: what is to be entered next, and when (UTC).
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
) ENGINE=InnoDB;

-- Ring buffers, and how many entries each has had.
CREATE TABLE IF NOT EXISTS mqnotify_ring (
  name       VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  size       INT UNSIGNED NOT NULL,
  head       BIGINT UNSIGNED NOT NULL DEFAULT 0,
  created_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
  PRIMARY KEY (name)
) ENGINE=InnoDB;

-- A ring's rows, as many as its size: entry n is in slot n modulo the size.
CREATE TABLE IF NOT EXISTS mqnotify_ring_slot (
  ring       VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  slot       INT UNSIGNED NOT NULL,
  entry      BIGINT UNSIGNED NOT NULL,
  written_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
  payload    LONGBLOB NOT NULL,
  PRIMARY KEY (ring, slot),
  KEY entry (ring, entry)
) ENGINE=InnoDB;
