# Ships orders: handles each message once, in the transaction that deletes it. Several may run. It ends after an error:
# let a supervisor start it again.
#   python3 consume.py
import os

import pymysql

db = pymysql.connect(
    host=os.environ["DB_HOST"], port=int(os.environ["DB_PORT"]), database=os.environ["DB_NAME"],
    user=os.environ["DB_USER"], password=os.environ["DB_PASSWORD"],
    init_command="SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",  # another one locks INSERTs out
)
cursor = db.cursor()

after = 0
while True:
    cursor.execute("SELECT id, payload FROM order_events ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED")
    message = cursor.fetchone()
    if message:
        cursor.execute("INSERT INTO shipments (order_id) VALUES (%s)", (message[1],))
        cursor.execute("DELETE FROM order_events WHERE id = %s", (message[0],))
        db.commit()
        after = 0
        continue
    db.commit()  # mqnotify_wait refuses to wait inside a transaction
    cursor.execute("CALL mqnotify_wait('order_events', %s, 10)", (after,))
    after = cursor.fetchone()[0] or 0  # rows that others have locked: wait for newer ones
