-- Inserts a message into the topic, inside the transaction of the caller, and returns its id. headers is a JSON object whose
-- values are strings, or NULL.
CREATE PROCEDURE mqnotify_publish(topic TEXT CHARACTER SET utf8mb4, headers JSON, payload LONGBLOB)
SQL SECURITY INVOKER
BEGIN
  IF topic IS NULL OR CHAR_LENGTH(topic) > 64 OR payload IS NULL THEN
    SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT = 'mqnotify_publish(topic, headers, payload): topic and payload may not be NULL, and the topic has 64 characters at most';
  END IF;
  SET @mqnotify_headers = headers, @mqnotify_payload = payload;
  SET @mqnotify_insert = CONCAT('INSERT INTO `', REPLACE(topic, '`', '``'), '` (headers, payload) VALUES (?, ?)');
  PREPARE mqnotify_insert FROM @mqnotify_insert;
  DO LAST_INSERT_ID(0);
  EXECUTE mqnotify_insert USING @mqnotify_headers, @mqnotify_payload;
  DEALLOCATE PREPARE mqnotify_insert;
  SET @mqnotify_payload = NULL;
  SELECT NULLIF(LAST_INSERT_ID(), 0) AS id;
END
