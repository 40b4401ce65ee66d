// Pacing, on a clock that the tests move.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Pacer, Throttle, clientIp } from "tidegate";

function paced(random = () => 0) {
  const time = { now: 1000 };
  const pacer = new Pacer({ clock: () => time.now, random });
  const heard = (remaining, status = 200, more = {}) =>
    pacer.heard(status, { "RateLimit-Policy": '"a";q=10;w=60', RateLimit: `"a";r=${remaining};t=9`, ...more });
  return { time, pacer, heard };
}

test("nothing waits while much is left", () => {
  const { pacer, heard } = paced();
  heard(6);
  assert.deepEqual([pacer.reserve(), pacer.reserve()], [0, 0]);
});

test("requests are spread once half is spent", () => {
  const { pacer, heard, time } = paced();
  heard(5);
  assert.deepEqual([pacer.reserve(), pacer.reserve()], [6000, 12000]);
  time.now += 12000;
  assert.equal(pacer.reserve(), 6000);
});

test("refusal waits as long as it says, and jitter only adds", () => {
  const { pacer, heard } = paced();
  heard(0, 429, { "Retry-After": "30" });
  assert.equal(pacer.reserve(), 30000);
  const jittered = paced(() => 0.5);
  jittered.pacer.heard(429, new Headers({ "retry-after": "30" }));
  assert.equal(jittered.pacer.reserve(), 30500);
});

test("slowest of several limits counts, and names may hold separators", () => {
  const { pacer } = paced();
  pacer.heard(200, { "ratelimit-policy": '"a,;q=1\\"";q=10;pk=:YSw7:;w=60, "b";q=2;w=60', ratelimit: '"a,;q=1\\"";r=1;t=9, "b";r=1;t=9' });
  assert.equal(pacer.reserve(), 30000);
});

test("service that accepts half is never throttled", () => {
  const throttle = new Throttle({ clock: () => 0, random: () => 0 });
  for (let number = 0; number < 100; number += 1) {
    assert.ok(throttle.allow());
    throttle.heard(number % 2 === 0);
  }
});

test("requests are dropped by the formula, and old times are forgotten", () => {
  let drawn = 1;
  let now = 0;
  const throttle = new Throttle({ windowMs: 60_000, clock: () => now, random: () => drawn });
  for (let number = 0; number < 99; number += 1) {
    throttle.allow();
    throttle.heard(number < 9);
  }
  // (99 - 2 * 9) / (99 + 1)
  drawn = 0.8;
  assert.equal(throttle.allow(), false);
  drawn = 0.82;
  assert.equal(throttle.allow(), true);
  now += 66_000;
  drawn = 0;
  assert.equal(throttle.allow(), true);
});

test("IPv6 is counted by network, and IPv4 never as IPv6", () => {
  const counted = {
    "203.0.113.7": "203.0.113.7",
    "::ffff:203.0.113.7": "203.0.113.7",
    "2001:db8:1:2:3::4": "2001:db8:1:2::/64",
    "fe80::1%eth0": "fe80::/64",
  };
  for (const [address, expected] of Object.entries(counted)) assert.equal(clientIp(address), expected);
});
