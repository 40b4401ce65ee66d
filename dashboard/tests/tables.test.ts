// Tables: which rows in which order, what they have in common, and what is saved of them.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { csv } from '../src/lib/csv';
import { facetOf, facets } from '../src/lib/facets';
import { filtered, rowOf, sorted } from '../src/lib/ruletable';
import type { Decision, Rule, Series, Version } from '../src/lib/types';

const rule = (name: string, more: Partial<Rule> = {}) => ({ domain: 'api', name, mode: 'enforce', key: ['user'], limits: [], ...more }) as unknown as Rule;
const series = (allowed: number[], refused: number[], shadow_refused: number[] = []) => ({ allowed, refused, shadow_refused }) as unknown as Series;
const rows = [
  rowOf(rule('login', { owner: 'identity' }), series([5], [5]), { number: 3 } as Version),
  rowOf(rule('bulk', { domain: 'web' }), series([98, null as unknown as number], [2]), undefined),
  rowOf(rule('trial', { mode: 'shadow' }), series([1], [0], [3]), { number: 9 } as Version),
  rowOf(rule('quiet'), undefined, undefined),
];
const names = (found: typeof rows) => found.map((row) => row.rule.name).join();
const all = { words: [], domain: '', owner: '', state: '' };

test('rules are found by what they do, where they are and whose they are', () => {
  assert.equal(names(filtered(rows, { ...all, state: 'refusing' })), 'login,bulk');
  assert.equal(names(filtered(rows, { ...all, state: 'shadow' })), 'trial');
  assert.equal(names(filtered(rows, { ...all, state: 'idle' })), 'quiet');
  assert.equal(names(filtered(rows, { ...all, domain: 'web' })), 'bulk');
  assert.equal(names(filtered(rows, { ...all, owner: 'identity', words: ['user'] })), 'login');
});

test('rules are sorted by the share that is refused, not by how many, and stay as written without a column', () => {
  assert.equal(names(sorted(rows, 'refused', true)), 'trial,login,bulk,quiet');
  assert.equal(names(sorted(rows, 'checks', true)), 'bulk,login,trial,quiet');
  assert.equal(names(sorted(rows, 'changed', true)), 'trial,login,bulk,quiet');
  assert.equal(names(sorted(rows, 'rule', false)), 'bulk,login,quiet,trial');
  assert.equal(names(sorted(rows, 'nonsense', true)), 'login,bulk,trial,quiet');
});

const decided = (verdict: string, path: string, n = 1) => ({ verdict, rule: 'login', node: 'one', attributes: { path, id: `${path}${n}` }, n }) as unknown as Decision;

test('a facet counts the requests that its decisions stand for', () => {
  const decisions = [decided('admitted', '/a', 10), decided('refused', '/a'), decided('refused', '/b', 2), decided('refused', '/b', 3)];
  assert.deepEqual(facetOf(decisions, 'path').values, [{ value: '/a', requests: 11, refused: 1 }, { value: '/b', requests: 5, refused: 5 }]);
  // One with a value of its own for each decision is nothing to choose from.
  assert.deepEqual(facets(decisions).map((one) => one.name), ['verdict', 'rule', 'node', 'path']);
});

test('what callers wrote is no formula in a spreadsheet, and quotes, commas and gaps stay', () => {
  assert.equal(csv([['a', 'b'], ['say "hi", you', null], ['=cmd()', -3.5]]), "a,b\r\n\"say \"\"hi\"\", you\",\r\n'=cmd(),-3.5\r\n");
});
