-- Sends a notification to those that listen to the name, inside the caller's transaction, and returns its id. The payload
-- has at most 8000 bytes.
CREATE PROCEDURE mqnotify_notify(name VARCHAR(255) CHARACTER SET utf8mb4, payload VARBINARY(8000))
SQL SECURITY INVOKER
MODIFIES SQL DATA
BEGIN
  IF name IS NULL OR CHAR_LENGTH(name) = 0 OR payload IS NULL THEN
    SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT = 'mqnotify_notify(name, payload): the name may not be empty, nor the payload NULL';
  END IF;
  INSERT INTO mqnotify_notification (name, payload) VALUES (name, payload);
  SELECT LAST_INSERT_ID() AS id;
END
