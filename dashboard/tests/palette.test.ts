// What the command palette offers.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { commandOf, offers, type Known } from '../src/lib/palette';
import type { Rule, Version } from '../src/lib/types';

const rule = (name: string, owner?: string) => ({ domain: 'api', name, owner, key: [], limits: [] }) as unknown as Rule;
const known: Known = {
  pages: [{ path: 'rules', name: 'Rules' }, { path: 'keys', name: 'Keys' }],
  rules: { rules: [rule('per-user', 'payments'), rule('user-login'), rule('login')] } as unknown as Known['rules'],
  versions: [{ number: 7, reason: 'lower login', author: 'ann' } as Version],
  editor: true,
};
const names = (text: string, more: Partial<Known> = {}) => offers(text, { ...known, ...more }).map((one) => `${one.kind} ${one.name}`);

test('nothing typed offers the pages, a name what has it, and any text a caller', () => {
  assert.deepEqual(names(''), ['page Rules', 'page Keys']);
  assert.deepEqual(names('login'), ['rule login', 'rule user-login', 'version v7', 'caller login']);
  assert.deepEqual(names('PAYMENTS'), ['rule per-user', 'caller PAYMENTS']);
  assert.deepEqual(offers('user=42 path=/x', known).map((one) => one.parameters), [{ key: 'user=42 path=/x' }]);
});

test('a command says what, to whom and for how long, and is not offered to viewers', () => {
  assert.deepEqual(commandOf('ban scraper-17 1h'), { verb: 'ban', caller: 'scraper-17', until: '1h' });
  assert.deepEqual(commandOf('ban user=42 path=/x for 7d'), { verb: 'ban', caller: 'user=42 path=/x', until: '7d' });
  assert.deepEqual(commandOf('reset scraper-17'), { verb: 'reset', caller: 'scraper-17', until: null });
  assert.equal(commandOf('ban'), null);
  assert.equal(commandOf('ban two names'), null);
  assert.deepEqual(offers('ban scraper-17 1h', known).map((one) => one.parameters), [{ find: 'scraper-17', do: 'ban', until: '1h' }]);
  assert.deepEqual(names('ban scraper-17 1h', { editor: false }), []);
});

test('however many rules fit, the caller of that name is offered', () => {
  const rules = { rules: Array.from({ length: 1000 }, (_, index) => rule(`rule-${index}`)) } as unknown as Known['rules'];
  const all = names('rule', { rules });
  assert.equal(all.length, 12);
  assert.equal(all.at(-1), 'caller rule');
});
