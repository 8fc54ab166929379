# Prints the notifications of a name:
#   python3 listen.py reload
import os
import sys

import pymysql

db = pymysql.connect(
    host=os.environ["DB_HOST"], port=int(os.environ["DB_PORT"]), database=os.environ["DB_NAME"],
    user=os.environ["DB_USER"], password=os.environ["DB_PASSWORD"],
)
cursor = db.cursor()

last = None  # from now on
while True:
    cursor.execute("CALL mqnotify_listen(%s, %s, 30)", (sys.argv[1], last))
    last, payload, _ = cursor.fetchone()
    if payload is not None:  # else 30 s have passed
        print(payload.decode(), flush=True)
