// Ships orders: handles each message once, in the transaction that deletes it. Several may run. It ends after an error:
// let a supervisor start it again.
//   node consume.js
const mysql = require('mysql2/promise');

async function main() {
  const db = await mysql.createConnection({
    host: process.env.DB_HOST, port: process.env.DB_PORT, database: process.env.DB_NAME,
    user: process.env.DB_USER, password: process.env.DB_PASSWORD,
  });
  await db.query('SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED'); // the default would block INSERTs
  let after = 0;
  for (;;) {
    await db.beginTransaction();
    const [[message]] = await db.query('SELECT id, payload FROM order_events ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED');
    if (message) {
      await db.execute('INSERT INTO shipments (order_id) VALUES (?)', [message.payload.toString()]);
      await db.execute('DELETE FROM order_events WHERE id = ?', [message.id]);
      await db.commit();
      after = 0;
      continue;
    }
    await db.commit();
    const [[[{ head }]]] = await db.query("CALL mqnotify_wait('order_events', ?, 10)", [after]);
    after = head ?? 0; // rows that others have locked: wait for newer ones
  }
}

main();
