// SPDX-License-Identifier: Apache-2.0
// A session of ioredis with a group whose leaders die meanwhile; see ../README.md.
//
// usage: node session.js IP:PORT,IP:PORT,... FAIL-OVERS
"use strict";

const readline = require("node:readline/promises");
const { setTimeout: sleep } = require("node:timers/promises");
const Redis = require("ioredis");
const { version } = require("ioredis/package.json");

// Rounds of each task before a leader dies, and again after it.
const ROUNDS = 50;
// Longest wait for those rounds, ms.
const LIMIT = 180_000;
// After each round, ms: other tests run beside this session.
const PAUSE = 2;
// Errors that say when to ask again, or that nothing is known of the last request.
const ASK_AGAIN = ["LOADING", "READONLY", "TRYAGAIN", "UNKNOWN"];
const SCRIPT = "local n = redis.call('INCR', KEYS[1]); redis.call('RPUSH', KEYS[2], n); return n";

// A promise that was not kept.
class Broken extends Error {}
// A task waited in vain, as it may during a fail-over.
class Silent extends Error {}

const sentinels = process.argv[2].split(",").map((address) => {
  const [host, port] = address.split(":");
  return { host, port: Number(port) };
});

function connect(more) {
  // By default the first attempt to connect again comes after 50 to 250 ms.
  const retryStrategy = (times) => Math.min(10 * times, 500);
  const client = new Redis({ sentinels, name: "redis", retryStrategy, ...more });
  // Without a listener ioredis prints each error. Commands that fail are seen where they were sent.
  client.on("error", () => {});
  return client;
}

const master = connect();
const replica = connect({ role: "slave" });
// What blocks, hears or watches has a connection of its own.
const mover = connect();
const subscriber = connect();
// A transaction that is sent again on another connection is not protected by its WATCH any more: nothing is.
const watchers = [0, 1].map(() => connect({ enableOfflineQueue: false, maxRetriesPerRequest: 0 }));
master.defineCommand("count", { numberOfKeys: 2, lua: SCRIPT });

const written = new Map();
const numbers = { counter: [], right: [], scripted: [] };
const pushed = [];
const rounds = {};
let errors = {};
let stopped = false;
let fault = null;
let reads = 0;
let messages = 0;
let greatest = 0;
let lastWrite = 0;
let gap = 0;

function acknowledge(counter, number, entries = []) {
  const now = performance.now();
  if (lastWrite) gap = Math.max(gap, now - lastWrite);
  lastWrite = now;
  for (const [key, value] of entries) written.set(key, String(value));
  if (counter) numbers[counter].push(Number(number));
  if (counter === "counter") greatest = Math.max(greatest, number);
}

// The replies of a pipeline or transaction.
function replies(all) {
  for (const [error] of all) if (error) throw error;
  return all.map(([, reply]) => reply);
}

async function write(name, number) {
  await master.set(`${name}:${number}`, number);
  acknowledge(null, 0, [[`${name}:${number}`, number]]);
  acknowledge("counter", await master.incr("counter"));
}

async function writeMany(name, number) {
  const entries = Array.from({ length: 10 }, (_, part) => [`${name}:${number}:${part}`, part]);
  const pipe = master.pipeline();
  entries.forEach(([key, value]) => pipe.set(key, value));
  pipe.incr("counter");
  const all = replies(await pipe.exec());
  acknowledge("counter", all[entries.length], entries);
}

// Both counters are read, and written if nobody else has written them meanwhile.
async function transact(name) {
  const client = watchers[Number(name.slice(-1))];
  const [, [left, right]] = replies(await client.pipeline().watch("left", "right").mget("left", "right").exec());
  if (left !== right) throw new Broken(`a transaction was applied in part: left is ${left}, right ${right}`);
  const done = await client.multi().set("left", Number(left) + 1).incr("right").exec();
  if (done) acknowledge("right", replies(done)[1]);
}

async function runScript() {
  acknowledge("scripted", await master.count("scripted", "log"));
}

async function push(_name, number) {
  await master.rpush("queue", `item${number}`);
  acknowledge(null, 0);
  pushed.push(`item${number}`);
}

async function move() {
  const moved = await mover.blmove("queue", "done", "LEFT", "RIGHT", 1);
  if (moved === null) throw new Silent("nothing to move within a second");
}

async function read() {
  const least = greatest;
  const found = Number(await replica.get("counter"));
  if (found < least) {
    throw new Broken(`a read at a replica missed an acknowledged write: counter ${found}, not at least ${least}`);
  }
  reads += 1;
}

async function publish(_name, number) {
  await master.publish("news", number);
}

async function hear() {
  const before = messages;
  for (let waited = 0; messages === before; waited += 5) {
    if (waited > 1000) throw new Silent("no message within a second");
    await sleep(5);
  }
}

function kindOf(error) {
  if (error instanceof Silent) return "Silent";
  const code = ASK_AGAIN.find((code) => error.message.startsWith(`${code} `));
  if (code) return code;
  // Those of the connection are no answers of a server.
  return error.name === "ReplyError" ? null : error.name;
}

async function run(name, task) {
  for (let number = 1; !stopped; number += 1) {
    try {
      await task(name, number);
      rounds[name] += 1;
      await sleep(PAUSE);
    } catch (error) {
      const kind = kindOf(error);
      if (error instanceof Broken) fault ??= error.message;
      else if (kind === null || error instanceof TypeError) fault ??= `${name}: unexpected answer: ${error}`;
      errors[kind] = (errors[kind] ?? 0) + 1;
      await sleep(10);
    }
  }
}

async function awaitRounds(what) {
  const base = { ...rounds };
  const until = performance.now() + LIMIT;
  while (Object.keys(base).some((name) => rounds[name] < base[name] + ROUNDS)) {
    if (fault) throw new Broken(fault);
    if (performance.now() > until) {
      const done = Object.keys(base).map((name) => `${name} ${rounds[name] - base[name]}`);
      throw new Broken(`not every task has had ${ROUNDS} rounds ${what}: ${done}; ${JSON.stringify(errors)}`);
    }
    await sleep(10);
  }
}

async function check(where, at) {
  const keys = [...written.keys()];
  for (let from = 0; from < keys.length; from += 500) {
    const part = keys.slice(from, from + 500);
    const found = await at.mget(part);
    const lost = part.find((key, place) => found[place] !== written.get(key));
    if (lost) throw new Broken(`the acknowledged write ${lost} is not at ${where}`);
  }
  for (const [name, all] of Object.entries(numbers)) {
    if (new Set(all).size !== all.length) {
      throw new Broken(`${name}: a number was given out twice, so an acknowledged write was lost`);
    }
    const found = Number(await at.get(name));
    if (!(found >= Math.max(...all))) throw new Broken(`${name} is ${found} at ${where}: less than was acknowledged`);
  }
  const [left, right, scripted] = await at.mget("left", "right", "scripted");
  if (left !== right) throw new Broken(`left is ${left} and right ${right} at ${where}`);
  const log = await at.lrange("log", 0, -1);
  if (log.length !== Number(scripted) || log.some((number, place) => Number(number) !== place + 1)) {
    throw new Broken(`the log of the script has gaps at ${where}`);
  }
  const kept = new Set([...(await at.lrange("queue", 0, -1)), ...(await at.lrange("done", 0, -1))]);
  const missing = pushed.find((item) => !kept.has(item));
  if (missing) throw new Broken(`the pushed item ${missing} is not at ${where}`);
}

async function assertRole(client, wanted) {
  const [role] = await client.role();
  if (role !== wanted) throw new Broken(`ROLE was ${role}, not ${wanted}`);
}

// Who leads, as the first server has it that answers.
async function leader() {
  for (const sentinel of sentinels) {
    const client = new Redis({ ...sentinel, lazyConnect: true, retryStrategy: null });
    client.on("error", () => {});
    try {
      return {
        ip: (await client.sentinel("get-master-addr-by-name", "redis"))[0],
        replicas: (await client.sentinel("replicas", "redis")).length,
      };
    } catch {
      // The next one.
    } finally {
      client.disconnect();
    }
  }
  throw new Broken("no server says who leads");
}

async function whole() {
  await assertRole(master, "master");
  await assertRole(replica, "slave");
  const before = await leader();
  const leaders = [before.ip];
  subscriber.on("message", () => (messages += 1));
  await subscriber.subscribe("news");
  const tasks = {
    writer0: write, writer1: write, writer2: write, pipeline: writeMany, script: runScript, push, move,
    transaction0: transact, transaction1: transact, reader: read, publisher: publish, subscriber: hear,
  };
  for (const name of Object.keys(tasks)) rounds[name] = 0;
  const running = Object.entries(tasks).map(([name, task]) => run(name, task));
  await awaitRounds("before a leader dies");
  const calm = errors;
  errors = {};
  const gaps = [];
  const input = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
  for (let left = Number(process.argv[3]); left > 0; left -= 1) {
    gap = 0;
    console.log("under way");
    const { value } = await input.next();
    if (value !== "killed") throw new Broken("the test did not say that it has killed the leader");
    await awaitRounds("after a leader has died");
    gaps.push(Math.round(gap * 10) / 10);
    const { ip } = await leader();
    if (ip === leaders.at(-1)) throw new Broken(`the master is ${ip} as before, though it was killed`);
    leaders.push(ip);
  }
  stopped = true;
  await Promise.all(running);
  if (fault) throw new Broken(fault);
  await check("the master", master);
  // One that was a replica before may lead now.
  const fresh = connect({ role: "slave" });
  await assertRole(fresh, "slave");
  await check("the replica", fresh);
  return {
    library: `ioredis ${version}`,
    resp: Number(/ resp=(\d)/.exec(await master.client("INFO"))?.[1]),
    leaders,
    replicas_before: before.replicas,
    writes: written.size,
    counted: numbers.counter.length,
    transactions: numbers.right.length,
    scripts: numbers.scripted.length,
    pushed: pushed.length,
    replica_reads: reads,
    messages,
    errors_before: calm,
    errors,
    gaps_ms: gaps,
  };
}

whole().then(
  (report) => {
    console.log(JSON.stringify(report));
    process.exit(0);
  },
  (error) => {
    console.error(error instanceof Broken ? `broken promise: ${error.message}` : error);
    process.exit(1);
  },
);
