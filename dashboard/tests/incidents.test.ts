// Alerts of one cause are one incident. Run with `npm test`.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { alertPlace, alertPlaceName, marksOf } from '../src/lib/alerts';
import { FIRST, incidentsOf } from '../src/lib/incidents';
import type { Alert, Nodes, Rules } from '../src/lib/types';

const alert = (kind: string, subject: string, since_s: number, more: Partial<Alert> = {}): Alert => ({ fingerprint: `${kind} ${subject} ${since_s}`, kind, subject, incident: /^(store_|fallback|breaker|overload)/.test(kind) ? 'store' : kind === 'node_overload' ? 'load' : /spike/.test(kind) ? `traffic ${subject}` : 'rules', severity: 'warning', summary: `${kind} on ${subject}`, next: 'look', link: '', page: '', since_s, ended_s: null, silenced: false, ...more });
const nodes = { nodes: ['one', 'two', 'three'].map((name) => ({ name })) } as Nodes;
const rules = { rules: [{ name: 'login', on_store_failure: 'closed', coordination: 'exact', mode: 'enforce' }, { name: 'per-user', on_store_failure: 'local', coordination: 'exact', mode: 'enforce' }, { name: 'trial', on_store_failure: 'open', coordination: 'exact', mode: 'shadow' }] } as Rules;

test('a slow store on three nodes is one incident', () => {
  const [one, ...more] = incidentsOf([alert('store_slow', 'two', 12), alert('store_slow', 'one', 10), alert('store_slow', 'three', 14)], nodes, rules);
  assert.equal(more.length, 0);
  assert.equal(one!.title, 'The store is slow on 3 of 3 nodes');
  assert.equal(one!.since_s, 10);
  assert.deepEqual(one!.affected, []);
});

test('an outage says what each failure policy does, and what refuses nobody is left out', () => {
  const [one] = incidentsOf([alert('fallback', 'one', 12), alert('store_down', 'redis:6379', 10, { severity: 'critical' }), alert('breaker_open', 'redis:6379', 11)], nodes, rules);
  assert.equal(one!.title, 'The store does not answer on 1 of 3 nodes');
  assert.equal(one!.severity, 'critical');
  assert.deepEqual(one!.affected, ['1 rule closed, requests are refused: login', "1 rule on each node's share: per-user", 'The other rules and this console keep working.']);
});

test('two outages an hour apart are two incidents, the active one first', () => {
  const found = incidentsOf([alert('store_down', 'r', 0, { ended_s: 60 }), alert('store_down', 'r', 3600)], nodes, rules);
  assert.deepEqual(found.map((one) => [one.since_s, one.ended_s]), [[3600, null], [0, 60]]);
});

test('spikes of different rules are different incidents, and what is only worth knowing is no mark', () => {
  const found = incidentsOf([alert('refusal_spike', 'api/login', 5), alert('traffic_spike', 'api/login', 6), alert('refusal_spike', 'api/per-user', 5), alert('version_skew', '', 5, { severity: 'info' })], nodes, rules);
  assert.equal(found.length, 3);
  assert.equal(marksOf(undefined, found).length, 2);
});

test('while the other nodes are unknown, nobody says on how many an outage is', () => {
  const unknown = { nodes: nodes.nodes.map((node) => ({ ...node, unknown: node.name !== 'one' })) } as Nodes;
  const [one] = incidentsOf([alert('store_down', 'redis:6379', 10, { summary: 'the store redis:6379 does not answer one' })], unknown, rules);
  assert.equal(one!.title, 'The store does not answer');
});

test('nodes are counted by fields: one called like a word of a summary is not affected by it', () => {
  const named = { nodes: ['store', 'the', 'two'].map((name) => ({ name, health: name === 'two' ? 'redis:6379 does not answer' : 'healthy' })) } as Nodes;
  const [one] = incidentsOf([alert('store_down', 'redis:6379', 10, { summary: 'the store redis:6379 does not answer two' })], named, rules);
  assert.equal(one!.title, 'The store does not answer on 1 of 3 nodes');
  // Of a node that is lost nothing is known: not that it misses the store, either.
  const lost = { nodes: named.nodes.map((node) => ({ ...node, lost: node.name === 'the', health: node.name === 'the' ? 'not heard for 30 s' : node.health })) } as Nodes;
  assert.equal(incidentsOf([alert('store_down', 'redis:6379', 10)], lost, rules)[0]!.title, 'The store does not answer on 1 of 3 nodes');
  const [slow] = incidentsOf([alert('store_slow', 'the', 10, { summary: 'calls to the store take long on the' })], named, rules);
  assert.equal(slow!.title, 'The store is slow on 1 of 3 nodes');
});

test('busy nodes are one incident, however many they are', () => {
  const [one, ...more] = incidentsOf(['one', 'two', 'three'].map((node, at) => alert('node_overload', node, 10 + at)), nodes, rules);
  assert.equal(more.length, 0);
  assert.equal(one!.title, 'All cores are busy on 3 of 3 nodes');
});

test('every kind that nodes report has a place among the others', () => {
  const known = readFileSync('../crates/tidegate-telemetry/src/alerts/kinds.rs', 'utf8');
  const kinds = [...known.matchAll(/Kind::\w+ => "(\w+)"/g)].map((one) => one[1]!);
  assert.ok(kinds.length >= 20);
  assert.deepEqual(kinds.filter((kind) => !FIRST.includes(kind)), []);
});

test('an alert leads to its page; one of an earlier release has none, and its kind says where', () => {
  const to = (kind: string, subject: string, page = '') => [alertPlace(alert(kind, subject, 0, { page })), alertPlaceName(alert(kind, subject, 0, { page }))];
  assert.deepEqual(to('new_top_caller', 'api/per-user', '/keys?domain=api&key=user%3D%23b1f3c0de9a417d22'), ['#/keys?domain=api&key=user%3D%23b1f3c0de9a417d22', 'Open caller']);
  assert.deepEqual(to('store_down', 'redis:6379'), ['#/cluster', 'Open cluster']);
  assert.deepEqual(to('store_down', 'redis:6379', '/cluster'), ['#/cluster', 'Open cluster']);
  assert.deepEqual(to('refusal_spike', 'api/a b/c'), ['#/rules/api/a%20b%2Fc', 'Open rule']);
  assert.deepEqual(to('reload_failed', 'one'), ['#/rules', 'Open rules']);
  assert.deepEqual(to('certificate_ends', 'one/http'), ['#/cluster', 'Open cluster']);
});
