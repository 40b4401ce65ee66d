import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { after, before, test } from "node:test";
import { Client, ConfigError, InvalidRequest, LeaseEnded, RateLimited, Unauthorized, Unavailable } from "tidegate";
import { TOKEN, certificate, folder, nobody, silent, tidegate } from "./servers.js";

/** Milliseconds: long enough for a busy machine. */
const PATIENT = 20_000;
let server;
let count = 0;
const fresh = () => `caller-${(count += 1)}`;
const client = (settings = {}, url = server.url) => new Client(url, { domain: "clients", deadlineMs: PATIENT, ...settings });

before(async () => {
  server = await tidegate();
});
after(() => server.stop());

test("limit passes three and refuses the fourth, with headers", async () => {
  const user = { user: fresh() };
  const decisions = [];
  for (let number = 0; number < 4; number += 1) decisions.push(await client().check(user));
  assert.deepEqual(decisions.map(({ allowed }) => allowed), [true, true, true, false]);
  const [first, , , last] = decisions;
  assert.deepEqual([first.rule, first.limit, first.remaining, first.source], ["per-user", 3, 2, "store"]);
  assert.deepEqual([first.status, last.status], [200, 429]);
  assert.equal(first.headers["x-ratelimit-remaining"], "2");
  assert.equal(first.headers["content-type"], undefined);
  assert.ok(last.retryAfterMs > 3_000_000 && last.retryAfterMs <= 3_600_000, last.retryAfterMs);
  assert.match(last.headers["retry-after"], /^3[0-6]\d\d$/);
});

test("cost 0 looks without spending", async () => {
  const user = { user: fresh() };
  await client().check(user, { cost: 0 });
  assert.equal((await client().check(user, { cost: 0 })).remaining, 3);
});

test("no rule is allowed by none", async () => {
  const { allowed, source, headers } = await client().check({});
  assert.deepEqual([allowed, source, headers], [true, "none", {}]);
});

test("batch answers in order", async () => {
  const attributes = { user: fresh() };
  const decisions = await client().batch([{ attributes }, { attributes, cost: 3 }, { attributes, cost: 2 }]);
  assert.deepEqual(decisions.map(({ status }) => status), [200, 429, 200]);
});

test("refund returns hits to the window that was charged", async () => {
  const user = { user: fresh() };
  const { spent } = await client().check(user, { cost: 3 });
  await client().refund(user, 2, { spent });
  assert.equal((await client().check(user, { cost: 0 })).remaining, 2);
});

test("charge may leave a debt", async () => {
  const model = { model: fresh() };
  await client().charge(model, 500);
  assert.equal((await client().check(model)).allowed, false);
});

test("request id is charged once", async () => {
  const user = { user: fresh() };
  for (let number = 0; number < 3; number += 1) {
    assert.equal((await client().check(user, { requestId: "r-1" })).remaining, 2);
  }
});

test("lease holds the only slot and returns it, also after an error", async () => {
  const tenant = { tenant: fresh() };
  const inside = await client().withLease(tenant, async () => (await client().check(tenant)).allowed);
  assert.equal(inside, false);
  await assert.rejects(client().withLease(tenant, () => Promise.reject(new Error("work failed"))), /work failed/);
  assert.equal(await client().withLease(tenant, () => "free"), "free");
});

test("lease that is refused throws with its decision", async () => {
  const tenant = { tenant: fresh() };
  const { lease } = await client().check(tenant);
  await assert.rejects(
    client().withLease(tenant, () => {}),
    (error) => error instanceof RateLimited && error.decision.rule === "uploads",
  );
  await client().renew(lease);
  await client().release(lease);
  await assert.rejects(client().renew(lease), LeaseEnded);
});

test("acquire waits as the server says, and gives up at once if that takes too long", async () => {
  const caller = { refilled: fresh() };
  for (let number = 0; number < 3; number += 1) assert.ok((await client().acquire(caller, PATIENT)).allowed);
  const user = { user: fresh() };
  await client().check(user, { cost: 3 });
  await assert.rejects(client().acquire(user, 60_000), RateLimited);
});

test("usage shows what is left", async () => {
  const user = { user: fresh() };
  await client().check(user);
  assert.match(JSON.stringify(await client().usage(user)), /"remaining":2/);
});

test("mistake names its field whatever the policy", async () => {
  await assert.rejects(
    client({ onFailure: "open" }).check({}, { domain: "nowhere" }),
    (error) => error instanceof InvalidRequest && error.status === 422 && error.field === "domain" && /clients/.test(error.message),
  );
});

test("address or setting that is wrong is an error at once", () => {
  for (const url of ["127.0.0.1:8080", "ftp://x", "http://", "http://x:port", "http://user:secret@x"]) {
    assert.throws(() => client({}, url), ConfigError, url);
  }
  for (const wrong of [{ deadlineMs: 0 }, { retries: -1 }, { onFailure: "ajar" }, { token: "a\nb" }]) {
    assert.throws(() => client(wrong), ConfigError);
  }
});

/** That a check fails for one of these reasons. */
async function unavailable(asked, ...reasons) {
  await assert.rejects(asked.check({ user: "x" }), (error) => {
    assert.ok(error instanceof Unavailable, error);
    assert.ok(reasons.includes(error.reason), `${error.reason}: ${error.message}`);
    return true;
  });
}

/** The same within the deadline and half of it again. A machine that stands still for a moment may be late, but not three times. */
async function unavailableInTime(asked, deadlineMs, ...reasons) {
  const took = [];
  while (took.length < 3) {
    const begun = performance.now();
    await unavailable(asked, ...reasons);
    took.push(performance.now() - begun);
    if (took.at(-1) < deadlineMs * 1.5) return;
  }
  assert.fail(`${took} ms, three times in a row`);
}

test("host that does not exist is an error within the deadline", async () => {
  await unavailableInTime(client({ deadlineMs: 1000 }, "http://no-such-host.invalid:8080"), 1000, "unreachable", "timeout");
});

test("server that is down is an error", async () => {
  await unavailable(client({}, await nobody()), "unreachable");
});

test("server that never answers, or never ends, is an error within the deadline", async () => {
  for (const says of [undefined, "HTTP/1.1 200 OK\r\ncontent-length: 9000\r\n\r\n{"]) {
    const peer = await silent(says);
    await unavailableInTime(client({ deadlineMs: 300 }, peer.url), 300, "timeout");
    await peer.stop();
  }
});

test("something else that speaks is an error", async () => {
  for (const says of ["220 mail.example ready\r\n", "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"]) {
    const peer = await silent(says);
    await unavailable(client({}, peer.url), "protocol");
    await peer.stop();
  }
});

test("policy decides where no server answers", async () => {
  const url = await nobody();
  const errors = [];
  const onError = (error) => errors.push(error);
  const passed = await client({ onFailure: "open", onError }, url).check({ user: "x" });
  const refused = await client({ onFailure: "closed", onError }, url).check({ user: "x" });
  assert.deepEqual([passed.allowed, passed.source], [true, "client_open"]);
  assert.deepEqual([refused.allowed, refused.source, refused.status], [false, "client_closed", 503]);
  assert.equal(errors.length, 2);
});

test("retries carry one request id, and without retries there is one try", async () => {
  const peer = await silent();
  await assert.rejects(client({ deadlineMs: 1000, retries: 2 }, peer.url).check({ user: "x" }), Unavailable);
  const ids = peer.received.map((text) => /"request_id":"([^"]+)"/.exec(text)?.[1]);
  assert.equal(ids.length, 3);
  assert.ok(ids[0]);
  assert.equal(new Set(ids).size, 1);
  await assert.rejects(client({ deadlineMs: 300 }, peer.url).check({ user: "x" }), Unavailable);
  assert.equal(peer.received.length, 4);
  await peer.stop();
});

test("token is sent, and a wrong one is named", async () => {
  const locked = await tidegate(`access: { tokens: ['${TOKEN}'] }\n`);
  await client({ token: TOKEN }, locked.url).ping();
  await assert.rejects(client({}, locked.url).ping(), Unauthorized);
  await assert.rejects(client({ token: "another-token-of-the-tests" }, locked.url).ping(), /access\.tokens/);
  assert.ok((await client({ onFailure: "open", onError: () => {} }, locked.url).check({})).allowed);
  locked.stop();
});

test("certificate of another is an error, and an authority that is named is trusted", async () => {
  const { cert, key } = certificate(folder());
  const secure = await tidegate(`tls: { http: { certificate: '${cert}', key: '${key}' } }\n`, "https");
  await unavailable(client({}, secure.url), "tls");
  const script = `import { Client } from "tidegate";
    await new Client("${secure.url}", { domain: "clients", deadlineMs: ${PATIENT} }).ping();`;
  const cwd = new URL("..", import.meta.url);
  execFileSync(process.execPath, ["--input-type=module", "-e", script], { cwd, env: { ...process.env, NODE_EXTRA_CA_CERTS: cert } });
  secure.stop();
});
