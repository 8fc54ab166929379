// Prints the notifications of a name:
//   node listen.js reload
const mysql = require('mysql2/promise');

async function main() {
  const db = await mysql.createConnection({
    host: process.env.DB_HOST, port: process.env.DB_PORT, database: process.env.DB_NAME,
    user: process.env.DB_USER, password: process.env.DB_PASSWORD,
  });
  let id = null; // only what is sent from now on
  for (;;) {
    const [[[notification]]] = await db.query('CALL mqnotify_listen(?, ?, 30)', [process.argv[2], id]);
    id = notification.id;
    if (notification.payload !== null) { // else 30 s have passed
      console.log(notification.payload.toString());
    }
  }
}

main();
