// Stores an order, and a message about it, in one transaction. Each line of the input is an order:
//   echo 'two books' | node publish.js
const mysql = require('mysql2/promise');
const readline = require('readline');

async function main() {
  const db = await mysql.createConnection({
    host: process.env.DB_HOST, port: process.env.DB_PORT, database: process.env.DB_NAME,
    user: process.env.DB_USER, password: process.env.DB_PASSWORD,
  });
  for await (const item of readline.createInterface({ input: process.stdin })) {
    await db.beginTransaction();
    const [order] = await db.execute('INSERT INTO customer_orders (item) VALUES (?)', [item.trim()]);
    await db.execute('INSERT INTO order_events (payload) VALUES (?)', [String(order.insertId)]);
    await db.commit(); // this makes the message visible, and wakes the consumers
  }
  await db.end();
}

main();
