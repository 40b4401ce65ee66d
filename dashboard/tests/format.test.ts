// Formatting and state without a browser. Run with `npm test`.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { once, timeLabels } from '../src/lib/axis';
import { identity, refusedCallers } from '../src/lib/callers';
import { limitInWords, mean, per, rate, sinceTime } from '../src/lib/format';
import { isSecret, readRequest } from '../src/lib/request';
import type { Cell, Decision, RuleExplanation } from '../src/lib/types';
import { verdictOf } from '../src/lib/verdict';

const plain = (text: string) => text.replace(/[\u00a0\u202f]/g, ' ');

test('what is unknown has no unit', () => {
  assert.deepEqual([rate(null), rate(undefined), rate(0), rate(12)], ['–', '–', '0/s', '12/s']);
});

test('limits are said as people say them', () => {
  const said = (limit: number, window_ms: number | null, algorithm = 'fixed_window') => plain(limitInWords({ algorithm, limit, window_ms }));
  assert.equal(said(100, 60_000), '100/min');
  assert.equal(said(11, 3_600_000), '11/h');
  assert.equal(said(1000, 86_400_000), '1 000/day');
  assert.equal(said(5, 300_000), '5 per 5 min');
  assert.equal(said(2, 172_800_000), '2 per 2 days');
  assert.equal(said(20, 4_000, 'token_bucket'), '5/s, burst 20');
  assert.equal(said(10, 10_000, 'leaky_bucket'), '1/s, queue 10');
  assert.equal(said(3, null, 'concurrency'), '3 at once');
  assert.equal(said(0, 60_000), 'banned');
  assert.equal(plain(per(1_000)), '/s');
});

test('a mean leaves gaps out', () => {
  assert.equal(mean([null, 2, 4, null]), 3);
  assert.equal(mean([null]), null);
});

test('no label of an axis stands twice', () => {
  assert.deepEqual(once(['0', '1', '1', '2', '']), ['0', '1', '', '2', '']);
  const fine = timeLabels([0, 15, 30, 45, 60]);
  assert.equal(new Set(fine).size, 5);
});


test('the body of a check is read with its domain', () => {
  const { domain, attributes, ignored } = readRequest('{"domain":"shop","attributes":{"user":"42","n":7}}');
  assert.deepEqual({ domain, attributes, ignored }, { domain: 'shop', attributes: { user: '42', n: '7' }, ignored: [] });
});

test('a curl command is split as a shell does, and what is not read is listed by name', () => {
  const read = readRequest(`curl -XPUT --header="X-Key: s3cret" -H 'Cookie: a=b' \\\n  -d 'x y' "https://example.org/a b?q=1" -sS`);
  assert.deepEqual(read.attributes, { method: 'PUT', path: '/a%20b' });
  const names = read.ignored.map((one) => one.split(' (')[0]);
  assert.deepEqual(names, ['-sS', 'the query of the address', 'the body', 'header x-key', 'header cookie']);
  assert.ok(!JSON.stringify(read).includes('s3cret'));
});

test('a check by curl is its body, whatever else the command says', () => {
  const read = readRequest(`curl localhost:8080/v1/check -d '{"attributes":{"user":"it'\\''s"}}'`);
  assert.deepEqual(read.attributes, { user: "it's" });
});

test('words that are no attribute are not dropped in silence', () => {
  assert.deepEqual(readRequest('user=42 oops').ignored, ['oops (not name=value)']);
  assert.ok(isSecret('api_token') && isSecret('Authorization') && !isSecret('user'));
});

const cell = (more: Partial<Cell>): Cell => ({ rule: 'per-plan', limit_name: 'a', algorithm: 'fixed_window', mode: 'enforce', limit: 1000, window_ms: 3_600_000, used: 0, remaining: 1000, reset_after_ms: 0, retry_after_ms: null, refused: false, from: 'limits', key: [], ...more });
const counts: RuleExplanation[] = [{ rule: 'per-plan', says: '', outcome: 'counts' }];

test('the verdict names what refuses, and for how long', () => {
  const refusing = cell({ refused: true, remaining: 0, used: 1000, retry_after_ms: 38_000, from: 'tier free' });
  assert.deepEqual(verdictOf(counts, [cell({ rule: 'other' }), refusing], 'store'), { state: 'refused', text: 'Refused by per-plan, tier free: 1\u202f000/h, retry in 38s' });
  assert.equal(verdictOf(counts, [{ ...refusing, mode: 'shadow' }], 'store').state, 'admitted');
});

test('without the store nothing is known of cells', () => {
  const full = cell({ refused: true, remaining: 0 });
  for (const source of ['fallback_closed', 'fallback_open', 'overload_local']) assert.equal(verdictOf(counts, [full], source).state, 'unknown');
  assert.equal(verdictOf([{ rule: 'r', says: '', outcome: 'banned' }], null, null).state, 'refused');
  assert.equal(verdictOf([], [], 'none').state, 'admitted');
});

test('a person who is refused by several rules is one caller', () => {
  const one = (rule: string, attributes: Record<string, string>, n = 1) => ({ domain: 'api', rule, verdict: 'refused', attributes, n }) as Decision;
  const decisions = [one('per-user', { user: 'u1', ip: '192.0.2.1' }, 3), one('login', { user: 'u1', ip: '192.0.2.1' }), one('login', { ip: '192.0.2.2' }), { ...one('per-user', { user: 'u2' }), verdict: 'admitted' } as Decision];
  const found = refusedCallers(decisions, () => ['ip', 'user']);
  assert.deepEqual(found.map(({ name, value, refused, rules }) => [name, value, refused, rules.join()]), [['user', 'u1', 4, 'per-user,login'], ['ip', '192.0.2.2', 1, 'login']]);
  assert.deepEqual(identity({ path: '/x' }, ['user']), null);
});

test('what began today has its time, and before that its day', () => {
  const now = new Date(2026, 10, 19, 9, 0).getTime();
  assert.equal(sinceTime(new Date(2026, 10, 19, 8, 6).getTime(), now), '08:06');
  const yesterday = sinceTime(new Date(2026, 10, 18, 22, 6).getTime(), now);
  assert.ok(yesterday.includes('18') && yesterday.endsWith(' 22:06'), yesterday);
});
