-- Waits until the query in @mqnotify_read returns a number from committed rows, or until the given time (UTC). It leaves the
-- number, or NULL, in @mqnotify_found. If an uncommitted row would make the number smaller, it waits for the end of that
-- transaction first. These are user variables, because prepared statements can use no local variables. The other procedures
-- call this one.
--
-- It waits at the gate of mqnotify's processes, as a follower that never leads. The package internal/waiting of the source
-- explains the protocol. Without a leader or a wake trigger it polls, after some seconds once a second.
CREATE PROCEDURE mqnotify_wait_for(topic VARCHAR(64) CHARACTER SET utf8mb4, until DATETIME(6))
SQL SECURITY INVOKER
BEGIN
  DECLARE gate VARCHAR(64) CHARACTER SET ascii DEFAULT CONCAT('{prefix}:',
    IF(LOWER(topic) = 'mqnotify_notification', {gates}, CRC32(LOWER(CONVERT(topic USING ascii))) % {gates}), ':');
  DECLARE leader, leader_before BIGINT UNSIGNED;
  DECLARE triggers, phase, longest, passed INT;
  DECLARE wakeable, doubted, above BOOLEAN DEFAULT FALSE;
  DECLARE asked_at, known_at, began_at DATETIME(6);
  DECLARE remaining, elapsed DECIMAL(20, 6);
  DECLARE EXIT HANDLER FOR 1568
    SIGNAL SQLSTATE '25001' SET MESSAGE_TEXT = 'mqnotify: this session has an open transaction, which may not see later rows: COMMIT before you wait';
  IF ABS(TIMESTAMPDIFF(SECOND, NOW(), SYSDATE())) > 60 THEN
    SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT = 'mqnotify: SET timestamp has stopped the clock of this session: SET timestamp = DEFAULT before you wait';
  END IF;
  -- The next statement fails in an open transaction, with error 1568.
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  BEGIN
    DECLARE EXIT HANDLER FOR SQLEXCEPTION
    BEGIN
      -- The COMMIT restores the isolation level of the session.
      COMMIT AND NO CHAIN NO RELEASE;
      RESIGNAL;
    END;
    PREPARE mqnotify_read FROM @mqnotify_read;
    SET began_at = UTC_TIMESTAMP(6);
    waiting: LOOP
      -- First, find the phase to wait for. The wait below needs one that was seen within 200 ms, because a leader uses the name
      -- of a phase again after 255 other phases.
      SET leader = IF(triggers > 0, IS_USED_LOCK(CONCAT(gate, 'leader')), NULL);
      IF leader IS NULL THEN
        SET phase = NULL;
      ELSEIF phase IS NULL OR leader <> leader_before OR NOT above AND known_at < UTC_TIMESTAMP(6) - INTERVAL 100000 MICROSECOND THEN
        SET leader_before = leader, known_at = UTC_TIMESTAMP(6);
        SET phase = (SELECT MIN(n) FROM {every} WHERE IS_USED_LOCK(CONCAT(gate, leader, ':', n)) = leader);
        IF phase IS NOT NULL AND IS_USED_LOCK(CONCAT(gate, leader, ':', (phase + {phases} - 1) % {phases})) <=> leader THEN
          SET phase = (phase + {phases} - 1) % {phases};
        END IF;
      END IF;
      SET wakeable = phase IS NOT NULL AND IS_USED_LOCK(CONCAT(gate, 'wake')) <=> leader;
      -- Then read the committed rows, and after them those of open transactions. Without autocommit, every read begins a
      -- transaction, which the COMMIT ends.
      COMMIT AND NO CHAIN NO RELEASE;
      SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
      EXECUTE mqnotify_read;
      COMMIT AND NO CHAIN NO RELEASE;
      SET @mqnotify_found = @mqnotify_id;
      IF @mqnotify_found IS NOT NULL OR wakeable THEN
        SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED;
        EXECUTE mqnotify_read;
        COMMIT AND NO CHAIN NO RELEASE;
        IF @mqnotify_found <= @mqnotify_id THEN
          LEAVE waiting;
        END IF;
        SET above = @mqnotify_found IS NOT NULL OR @mqnotify_id IS NOT NULL, @mqnotify_found = NULL;
      END IF;
      -- A division would be rounded by div_precision_increment.
      SET remaining = TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), until) * 0.000001;
      IF remaining <= 0 THEN
        LEAVE waiting;
      END IF;
      IF triggers IS NULL OR doubted AND asked_at < UTC_TIMESTAMP(6) - INTERVAL 2 SECOND THEN
        SET triggers = 0, doubted = FALSE, asked_at = UTC_TIMESTAMP(6);
        BEGIN
          -- The procedure does not exist, or the account may not execute it.
          DECLARE CONTINUE HANDLER FOR 1305, 1370 BEGIN END;
          CALL mqnotify_count_triggers(topic, triggers);
        END;
        ITERATE waiting;
      END IF;
      -- Then wait. A hint without a row may mean that the trigger was removed, so the triggers are counted again after it.
      IF wakeable AND NOT above AND remaining >= 1 AND known_at > UTC_TIMESTAMP(6) - INTERVAL 200000 MICROSECOND THEN
        SET began_at = UTC_TIMESTAMP(6), longest = FLOOR(LEAST(remaining, IF(doubted, 2, {longest})));
        BEGIN
          -- The wait would cause a deadlock with locks of the caller.
          DECLARE CONTINUE HANDLER FOR 1213, 3058 SET passed = -1;
          -- This is one expression, so that no KILL comes between taking and releasing the lock.
          SET passed = CASE GET_LOCK(CONCAT(gate, leader, ':', phase), longest)
            WHEN 1 THEN RELEASE_LOCK(CONCAT(gate, leader, ':', phase)) WHEN 0 THEN 0 END;
        END;
        -- These values mean a KILL, or that the client is gone. MySQL raises an error for both. MariaDB returns NULL for a
        -- KILL, and returns 0 too early if the client is gone.
        IF passed IS NULL OR passed = 0 AND TIMESTAMPDIFF(SECOND, began_at, UTC_TIMESTAMP(6)) < longest - 1 OR passed = -1 AND SLEEP(0.1) <> 0 THEN
          SIGNAL SQLSTATE '70100' SET MYSQL_ERRNO = 1317, MESSAGE_TEXT = 'Query execution was interrupted';
        END IF;
        SET phase = IF(passed = 1, (phase + 1) % {phases}, NULL);
        SET known_at = UTC_TIMESTAMP(6), began_at = known_at;
        IF phase IS NOT NULL THEN
          SET doubted = TRUE, phase = IF(IS_USED_LOCK(CONCAT(gate, leader, ':', phase)) <=> leader, phase, NULL);
        END IF;
      ELSE
        SET elapsed = TIMESTAMPDIFF(MICROSECOND, began_at, UTC_TIMESTAMP(6)) * 0.000001;
        -- SLEEP in a DO statement would ignore a KILL.
        SET passed = SLEEP(LEAST(remaining, IF(phase IS NULL OR elapsed > 4, 1, 0.1), GREATEST(0.0002, elapsed / 4)));
      END IF;
    END LOOP;
    DEALLOCATE PREPARE mqnotify_read;
  END;
END
