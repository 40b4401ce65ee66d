// What decisions tell about a caller.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { changesOf, likeItsNewest, refusedCallers, seenWith } from '../src/lib/callers';
import type { AuditEntry, Decision } from '../src/lib/types';

const decided = (attributes: Record<string, string>, n = 1) => ({ domain: 'api', attributes, n }) as unknown as Decision;

test('a caller is seen with its addresses and paths, who it is first, most asked first', () => {
  const decisions = [decided({ user: '42', path: '/a', ip: '192.0.2.1' }), decided({ user: '42', path: '/b', ip: '192.0.2.1' }, 5)];
  assert.deepEqual(seenWith(decisions, { user: '42' }), [
    { name: 'ip', values: [{ value: '192.0.2.1', requests: 6 }] },
    { name: 'path', values: [{ value: '/b', requests: 5 }, { value: '/a', requests: 1 }] },
  ]);
});

test('what its newest decision had is filled in, but no hash and nothing over what was asked', () => {
  assert.deepEqual(likeItsNewest({ user: '42' }, decided({ user: '43', path: '/a', ip: '#0123456789abcdef' })), { path: '/a', user: '42' });
  assert.deepEqual(likeItsNewest({ user: '42' }, undefined), { user: '42' });
});

test('the changes of a caller are those that named it in its domain, the newest first', () => {
  const entry = (id: number, target: string, detail: Record<string, unknown>) => ({ id, target, detail }) as unknown as AuditEntry;
  const entries = [
    entry(1, 'api ["user"]', { attributes: { user: '42' } }),
    entry(2, 'api', { domain: 'api', when: { user: '42' } }),
    entry(3, 'web', { domain: 'web', when: { user: '42' } }),
    entry(4, 'api', { domain: 'api', when: { user: '42', path: '/x' } }),
  ];
  assert.deepEqual(changesOf(entries, 'api', { user: '42' }).map((one) => one.id), [2, 1]);
});

test('what a failure policy refused is no refusal by a rule', () => {
  const refused = (rule: string, source: string) => ({ ...decided({ user: '42' }), verdict: 'refused', rule, source }) as unknown as Decision;
  const [one] = refusedCallers([refused('login', 'store'), refused('per-plan', 'fallback_closed'), refused('per-plan', 'overload_local')], () => ['user']);
  assert.deepEqual({ refused: one!.refused, rules: one!.rules, withoutStore: one!.withoutStore }, { refused: 3, rules: ['login'], withoutStore: true });
});
