// Asks our server with Node's ioredis; ends with an error if an answer is wrong.
//
// Arguments: the folder of ioredis, host, port, password ("" for none).
"use strict";

const assert = require("node:assert/strict");

const [folder, host, port, password] = process.argv.slice(2);
const Redis = require(folder);
const options = { host, port: Number(port), connectTimeout: 10_000, maxRetriesPerRequest: 1 };
if (password) options.password = password;

async function main() {
  const client = new Redis({ ...options, connectionName: "node" });
  assert.equal(await client.ping(), "PONG");
  assert.equal(await client.client("GETNAME"), "node");
  assert.match(await client.info(), /redis_version:7\.0\.0/);

  const throttle = ["CL.THROTTLE", "node", 2, 1, 10];
  assert.deepEqual(await client.call(...throttle), [0, 3, 2, -1, 10]);
  // Replies to a pipeline come in its order.
  const replies = await client.pipeline([
    ["call", ...throttle],
    ["echo", "between"],
    ["call", ...throttle],
    ["call", ...throttle],
  ]).exec();
  const limited = [[0, 3, 1, -1, 20], "between", [0, 3, 0, -1, 30], [1, 3, 0, 10, 30]];
  assert.deepEqual(replies, limited.map((reply) => [null, reply]));

  // Many at once, over one connection.
  const flood = await Promise.all(
    Array.from({ length: 1000 }, () => client.call("CL.THROTTLE", "flood", 99, 1, 3600)),
  );
  assert.equal(flood.filter(([limited]) => limited === 0).length, 100);

  const allowed = await client.call("TG.CHECK", "api", "user", "node", "path", "/upload");
  assert.deepEqual(allowed.slice(0, 4), [1, 1, 0, null]);
  assert.equal((await client.call("TG.CHECK", "api", "user", "node", "path", "/upload"))[0], 0);
  assert.equal(await client.call("TG.RELEASE", allowed[7]), 1);

  await assert.rejects(client.call("CL.THROTTLE", "node", 1, 1, 1, -1), /quantity must not be negative/);
  await assert.rejects(client.get("node"), /unknown command 'get'/i);
  const binary = Buffer.from(Array.from({ length: 256 }, (_, byte) => byte));
  assert.deepEqual(await client.callBuffer("ECHO", binary), binary);
  await client.quit();

  if (password) {
    const stranger = new Redis({ ...options, password: "wrong", retryStrategy: null, lazyConnect: true });
    stranger.on("error", () => {});
    await assert.rejects(stranger.connect().then(() => stranger.ping()));
    stranger.disconnect();
  }
}

main().then(
  () => console.log("all answers are right"),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
