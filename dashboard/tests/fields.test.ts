// The editor offers every field of the schema of rules.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import fields from 'virtual:rule-fields';

/** Every name of a property in the text of the schema, read without the code that is tested. */
function propertiesOf(node: unknown): string[] {
  if (typeof node !== 'object' || node === null) return [];
  const own = !Array.isArray(node) && 'properties' in node && typeof node.properties === 'object' ? Object.keys(node.properties!) : [];
  return [...own, ...Object.values(node).flatMap(propertiesOf)];
}

test('every field of the schema is offered, once', () => {
  const schema = JSON.parse(readFileSync('../crates/tidegate-rules/src/rules.schema.json', 'utf8'));
  const wanted = [...new Set(propertiesOf(schema))].sort();
  assert.ok(wanted.length > 50);
  assert.deepEqual(fields.map(([name]) => name).sort(), wanted);
});

test('each says what it is for, and which values it takes', () => {
  const of = new Map(fields);
  assert.match(of.get('scope')!, /region/);
  assert.match(of.get('algorithm')!, /token_bucket \| .*concurrency|concurrency/);
  assert.match(of.get('on_store_failure')!, /open \| closed \| local/);
  const silent = fields.filter(([, text]) => !text).map(([name]) => name);
  // Its name says it, and its entries are what all the others are about.
  assert.deepEqual(silent, ['rules']);
});
