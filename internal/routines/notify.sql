-- Sends a notification to the listeners of the name, inside the transaction of the caller, and returns its id. The payload has
-- at most 8000 bytes.
CREATE PROCEDURE mqnotify_notify(name TEXT CHARACTER SET utf8mb4, payload LONGBLOB)
SQL SECURITY INVOKER
MODIFIES SQL DATA
BEGIN
  IF name IS NULL OR CHAR_LENGTH(name) = 0 OR CHAR_LENGTH(name) > 255 OR payload IS NULL OR LENGTH(payload) > 8000 THEN
    SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT = 'mqnotify_notify(name, payload): the name has 1 to 255 characters, and the payload 0 to 8000 bytes';
  END IF;
  INSERT INTO mqnotify_notification (name, payload) VALUES (name, payload);
  SELECT LAST_INSERT_ID() AS id;
END
