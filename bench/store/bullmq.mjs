// bullmq.mjs - BullMQ doing what redis.py lets lapse do: JSON lines on standard output.
//
//     node bullmq.mjs FOLDER PORT NAME ORDERS CALL PAYLOAD CONCURRENCY
//
// FOLDER holds node_modules. Its documentation's own ways: addBulk for many jobs at a time, one
// Worker with `concurrency`, jobs removed when they are done. Jobs have ids of ours, which is what
// lets a shop cancel one.
import { createRequire } from 'node:module';
import path from 'node:path';

const [folder, port, name, ...numbers] = process.argv.slice(2);
const [orders, call, payload, concurrency] = numbers.map(Number);
const { Queue, Worker } = createRequire(path.join(folder, 'package.json'))('bullmq');
const connection = { host: '127.0.0.1', port: Number(port), maxRetriesPerRequest: null };
const data = 'x'.repeat(payload);

async function schedule(queue, delay) {
  for (let first = 0; first < orders; first += call) {
    const jobs = [];
    for (let n = first; n < Math.min(first + call, orders); n++)
      jobs.push({ name: 'close', data, opts: { delay, jobId: `OID${String(n).padStart(8, '0')}` } });
    await queue.addBulk(jobs);
  }
}

function finish(queue) {
  let left = orders;
  return new Promise((resolve, reject) => {
    const worker = new Worker(queue.name, async () => {}, { connection, concurrency });
    worker.on('completed', () => { if (--left === 0) resolve(worker); });
    worker.on('failed', (_, error) => reject(error));
    worker.on('error', reject);
  });
}

async function measure(what, work) {
  const began = process.hrtime.bigint();
  await work();
  const seconds = Number(process.hrtime.bigint() - began) / 1e9;
  console.log(JSON.stringify({ [what]: orders / seconds }));
}

const defaults = { connection, defaultJobOptions: { removeOnComplete: true } };
const far = new Queue(`${name}-far`, defaults), near = new Queue(`${name}-near`, defaults);
await Promise.all([far.waitUntilReady(), near.waitUntilReady()]);
await measure('schedule', () => schedule(far, 3600000));
let worker;
await measure('done', async () => {
  const over = finish(near);
  await schedule(near, 1);
  worker = await over;
});
await Promise.all([worker.close(), far.close(), near.close()]);
