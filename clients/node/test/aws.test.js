// The functions of examples/gateways/aws, called with event documents of the shapes that AWS documents, asking the real tidegate.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { authorizer, limited } from "../../../examples/gateways/aws/index.mjs";
import { nobody, tidegate } from "./servers.js";

const event = (name) => JSON.parse(readFileSync(new URL(`../../../examples/gateways/aws/${name}.json`, import.meta.url), "utf8"));
const rules = new URL("../../../examples/gateways/rules.yaml", import.meta.url).pathname;
let server;

before(async () => {
  server = await tidegate("", "http", rules);
  Object.assign(process.env, { TIDEGATE_URL: server.url, TIDEGATE_DOMAIN: "gateway", TIDEGATE_DEADLINE_MS: "20000" });
});
after(() => server.stop());

/** The next request of the same caller. */
const next = (name, number, id) => {
  const request = event(name);
  id(request, `${number}`);
  return request;
};

test("authorizer lets three requests of a key pass, and a repeated one is one", async () => {
  const request = (number) => next("authorizer-event", number, (it, id) => (it.requestContext.requestId = id));
  const answers = [];
  for (const number of [1, 2, 2, 3, 4]) answers.push(await authorizer(request(number)));
  assert.deepEqual(answers.map(({ isAuthorized }) => isAuthorized), [true, true, true, true, false]);
  assert.equal(answers[0].context.remaining, "2");
  assert.match(answers[4].context.retryAfter, /^\d+$/);
});

test("function behind a load balancer answers 429 by the address that the balancer saw", async () => {
  const handler = limited(async () => ({ statusCode: 200, headers: { "content-type": "text/plain" }, body: "hello" }));
  const request = (number, forged) =>
    next("alb-event", number, (it, id) => {
      it.headers["x-amzn-trace-id"] = id;
      it.headers["x-forwarded-for"] = `${forged}, 203.0.113.7`;
    });
  const answers = [];
  for (const number of [1, 2, 3]) answers.push(await handler(request(number, `192.0.2.${number}`)));
  assert.deepEqual(answers.map(({ statusCode }) => statusCode), [200, 200, 429]);
  assert.equal(answers[0].headers["x-ratelimit-remaining"], "1");
  assert.equal(answers[0].body, "hello");
  assert.match(answers[2].headers["retry-after"], /^\d+$/);
  assert.equal(JSON.parse(answers[2].body).error, "rate_limit_exceeded");
});

test("requests pass while tidegate is down", async () => {
  process.env.TIDEGATE_URL = await nobody();
  assert.equal((await authorizer(event("authorizer-event"))).isAuthorized, true);
  process.env.TIDEGATE_URL = server.url;
});
