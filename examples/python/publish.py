# Stores an order, and a message about it, in one transaction. Each line of the input is an order:
#   echo 'two books' | python3 publish.py
import os
import sys

import pymysql

db = pymysql.connect(
    host=os.environ["DB_HOST"], port=int(os.environ["DB_PORT"]), database=os.environ["DB_NAME"],
    user=os.environ["DB_USER"], password=os.environ["DB_PASSWORD"],
)
cursor = db.cursor()

for item in sys.stdin:
    cursor.execute("INSERT INTO customer_orders (item) VALUES (%s)", (item.strip(),))
    cursor.execute("INSERT INTO order_events (payload) VALUES (%s)", (str(cursor.lastrowid),))
    db.commit()  # from here on the message is there, and those who wait for it wake
