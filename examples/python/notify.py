# Sends a notification:
#   python3 notify.py reload v42
import os
import sys

import pymysql

db = pymysql.connect(
    host=os.environ["DB_HOST"], port=int(os.environ["DB_PORT"]), database=os.environ["DB_NAME"],
    user=os.environ["DB_USER"], password=os.environ["DB_PASSWORD"],
)
db.cursor().execute("CALL mqnotify_notify(%s, %s)", (sys.argv[1], sys.argv[2]))
db.commit()
