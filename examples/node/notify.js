// Sends a notification:
//   node notify.js reload v42
const mysql = require('mysql2/promise');

async function main() {
  const db = await mysql.createConnection({
    host: process.env.DB_HOST, port: process.env.DB_PORT, database: process.env.DB_NAME,
    user: process.env.DB_USER, password: process.env.DB_PASSWORD,
  });
  await db.query('CALL mqnotify_notify(?, ?)', process.argv.slice(2));
  await db.end();
}

main();
