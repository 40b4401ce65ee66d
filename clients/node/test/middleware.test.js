// The middleware in real frameworks, asking the real tidegate.

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { serve } from "@hono/node-server";
import express from "express";
import Fastify from "fastify";
import { Hono } from "hono";
import { Readable } from "node:stream";
import { Client } from "tidegate";
import { rateLimit as expressLimit } from "tidegate/express";
import { rateLimit as fastifyLimit } from "tidegate/fastify";
import { rateLimit as honoLimit } from "tidegate/hono";
import { nobody, tidegate } from "./servers.js";

let limiter;
let count = 0;
const fresh = () => `web-${(count += 1)}`;
const stops = [];

before(async () => {
  limiter = await tidegate();
});
after(async () => {
  for (const stop of stops) await stop();
  limiter.stop();
});

const described = (header, path) =>
  Object.fromEntries(Object.entries({ user: header("x-user"), tenant: header("x-tenant"), path }).filter(([, value]) => value));

const listening = (server) =>
  new Promise((resolve) => {
    const ready = () => resolve(server.address().port);
    server.listening ? ready() : server.once("listening", ready);
  });

const stopped = (server) => {
  server.closeAllConnections?.();
  return new Promise((resolve) => server.close(resolve));
};

/** Each answers `hello` for every path, in two parts. */
const FRAMEWORKS = {
  async express(client, byDefault) {
    const app = express();
    app.use(expressLimit(client, byDefault ? {} : { attributes: (req) => described((name) => req.get(name), req.path) }));
    app.use((_, res) => {
      res.write("hel");
      res.end("lo");
    });
    const server = app.listen(0, "127.0.0.1");
    stops.push(() => stopped(server));
    return listening(server);
  },
  async fastify(client, byDefault) {
    const app = Fastify();
    const attributes = (request) => described((name) => request.headers[name], request.url);
    await app.register(fastifyLimit, byDefault ? { client } : { client, attributes });
    app.get("/*", (_, reply) => reply.send(Readable.from(["hel", "lo"])));
    await app.listen({ port: 0, host: "127.0.0.1" });
    stops.push(() => app.close());
    return app.server.address().port;
  },
  async hono(client, byDefault) {
    const app = new Hono();
    app.use(honoLimit(client, byDefault ? {} : { attributes: (c) => described((name) => c.req.header(name), c.req.path) }));
    app.get("/*", (c) => c.body(Readable.toWeb(Readable.from([Buffer.from("hel"), Buffer.from("lo")]))));
    const server = serve({ fetch: app.fetch, port: 0, hostname: "127.0.0.1" });
    stops.push(() => stopped(server));
    return listening(server);
  },
};

for (const [name, start] of Object.entries(FRAMEWORKS)) {
  describe(name, () => {
    const started = (settings = {}, byDefault = false, url = limiter.url) =>
      start(new Client(url, { domain: "clients", deadlineMs: 20_000, onError: () => {}, ...settings }), byDefault);
    const get = (port, path = "/", headers = {}) => fetch(`http://127.0.0.1:${port}${path}`, { headers });

    test("three pass with headers and the fourth is refused", async () => {
      const [port, user] = [await started(), fresh()];
      const answers = [];
      for (let number = 0; number < 4; number += 1) answers.push(await get(port, "/", { "x-user": user }));
      assert.deepEqual(answers.map(({ status }) => status), [200, 200, 200, 429]);
      assert.equal(await answers[0].text(), "hello");
      assert.equal(answers[0].headers.get("x-ratelimit-remaining"), "2");
      assert.match(answers[3].headers.get("retry-after"), /^3[0-6]\d\d$/);
      assert.match(answers[3].headers.get("content-type"), /^application\/problem\+json/);
      assert.equal((await answers[3].json()).error, "rate_limit_exceeded");
    });

    test("lease is returned after the response", async () => {
      const [port, tenant] = [await started(), fresh()];
      const client = new Client(limiter.url, { domain: "clients", deadlineMs: 20_000 });
      for (let number = 0; number < 2; number += 1) {
        assert.equal(await (await get(port, "/", { "x-tenant": tenant })).text(), "hello");
        let lease = null;
        for (let tries = 0; lease === null && tries < 2000; tries += 1) {
          ({ lease } = await client.check({ tenant }));
          if (lease === null) await new Promise((resolve) => setTimeout(resolve, 10));
        }
        assert.ok(lease, "the slot was never returned");
        await client.release(lease);
      }
    });

    test("failure policy decides", async () => {
      const url = await nobody();
      for (const [onFailure, status] of [["open", 200], ["closed", 503]]) {
        assert.equal((await get(await started({ onFailure }, false, url), "/", { "x-user": "x" })).status, status);
      }
    });

    test("path that cannot be checked is a bad request", async () => {
      assert.equal((await get(await started(), `/${"x".repeat(5000)}`, { "x-user": "x" })).status, 400);
    });

    test("method, path and address are sent by default", async () => {
      // A server of its own: every framework here calls from the same address.
      const own = await tidegate();
      const port = await started({}, true, own.url);
      const statuses = [];
      for (let number = 0; number < 3; number += 1) statuses.push((await get(port, "/by-ip/x?query")).status);
      own.stop();
      assert.deepEqual(statuses, [200, 200, 429]);
    });
  });
}
