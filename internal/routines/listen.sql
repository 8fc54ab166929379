-- Waits for a notification of the name with an id larger than after_id, or until the time (in seconds) is over. It returns one
-- row: the notification's id, payload and time. If the time is over, the payload is NULL. The caller passes the id to the next
-- call. If after_id is NULL, the procedure waits for notifications that are sent from now on. They come in the order of their
-- ids: a notification whose transaction is open holds up the later ones.
CREATE PROCEDURE mqnotify_listen(name TEXT CHARACTER SET utf8mb4, after_id DECIMAL(20), seconds DECIMAL(12, 3))
SQL SECURITY INVOKER
BEGIN
  IF name IS NULL OR CHAR_LENGTH(name) = 0 OR CHAR_LENGTH(name) > 255 OR after_id < 0 OR seconds IS NULL OR seconds < 0 THEN
    SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT = 'mqnotify_listen(name, after_id, seconds): the name has 1 to 255 characters, and none may be negative';
  END IF;
  IF after_id IS NULL THEN
    SET @mqnotify_read = 'SELECT MAX(id) INTO @mqnotify_id FROM mqnotify_notification';
    CALL mqnotify_wait_for('mqnotify_notification', UTC_TIMESTAMP(6));
    SET after_id = COALESCE(@mqnotify_found, 0);
  END IF;
  SET @mqnotify_name = name;
  SET @mqnotify_read = CONCAT('SELECT MIN(id) INTO @mqnotify_id FROM mqnotify_notification ',
    'WHERE name = CONVERT(@mqnotify_name USING utf8mb4) COLLATE utf8mb4_bin AND id > ', after_id);
  CALL mqnotify_wait_for('mqnotify_notification', UTC_TIMESTAMP(6) + INTERVAL seconds SECOND);
  BEGIN
    DECLARE data VARBINARY(8000);
    DECLARE sent TIMESTAMP(6);
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    SELECT n.payload, n.created_at INTO data, sent FROM mqnotify_notification n WHERE n.id = @mqnotify_found;
    -- Without autocommit, the read has begun a transaction, which this ends.
    COMMIT AND NO CHAIN NO RELEASE;
    SELECT COALESCE(@mqnotify_found, after_id) AS id, data AS payload, sent AS created_at;
  END;
END
