import assert from 'node:assert/strict';
import { test } from 'node:test';
import { experimentLimits, fieldOf, inRule, linesOf, withField, withLimitOf } from '../src/lib/ruletext';

const BLOCK = `  - name: search # kept short
    key: [user]
    limits: [60/minute]   # a minute
    experiment: { split: 50%, limits: [90/minute] }`;
const FLOW = '  - { name: plan, key: [api_key], tiers: { on: plan, default: free, free: [100/minute, 1000/hour], pro: [1000/minute] } }';

test('a field is put into a rule of several lines, changed and taken out again, and the rest stays', () => {
  const shadow = withField(BLOCK, 'shadow', 'true')!;
  assert.equal(shadow, BLOCK.replace('    key', '    shadow: true\n    key'));
  assert.equal(withField(shadow, 'shadow', null), BLOCK);
  assert.equal(withField(BLOCK, 'limits', '[90/minute]'), BLOCK.replace('[60/minute]   # a minute', '[90/minute]   # a minute'));
});

test('a field is put into a rule in brackets, changed and taken out again', () => {
  const shadow = withField(FLOW, 'shadow', 'true')!;
  assert.equal(shadow, FLOW.replace('} }', '}, shadow: true }'));
  assert.equal(withField(shadow, 'shadow', 'false'), shadow.replace('true', 'false'));
  assert.equal(withField(shadow, 'shadow', null), FLOW);
  assert.equal(withField(FLOW, 'key', null), FLOW.replace('key: [api_key], ', ''));
});

test('a field of what is nested in a rule is not one of the rule', () => {
  const nested = '- { name: a, match: { shadow: x }, key: [user] }';
  assert.equal(withField(nested, 'shadow', null), nested);
});

test('a field over several lines is left to the reader', () => {
  assert.equal(withField('- name: a\n  limits:\n    - 1/s\n    - 2/m', 'limits', '[3/s]'), null);
});

test('a limit is changed in its own tier alone', () => {
  assert.equal(withLimitOf(FLOW, 'pro', 1000, 2000), FLOW.replace('pro: [1000/', 'pro: [2000/'));
  assert.equal(withLimitOf(FLOW, 'free', 1000, 2000), FLOW.replace('1000/hour', '2000/hour'));
  assert.equal(withLimitOf(BLOCK, '', 60, 80), BLOCK.replace('60/', '80/'));
  const same = '- { name: a, experiment: { split: 1%, limits: [9/s] }, limits: [9/s] }';
  assert.equal(withLimitOf(same, '', 9, 8), same.replace(/9\/s(?!.*9)/, '8/s'));
  assert.equal(withLimitOf(same, 'experiment', 9, 8), same.replace('9/s', '8/s'));
});

test('an experiment is read as it is written', () => {
  assert.equal(experimentLimits(BLOCK), '[90/minute]');
  assert.equal(fieldOf(BLOCK, 'limits'), '[60/minute]');
  assert.equal(experimentLimits(FLOW), null);
});

test('one rule of a document is changed', () => {
  const text = `domain: api\nrules:\n${BLOCK}\n${FLOW}\n`;
  const rules = [{ name: 'plan', line: 7 }, { name: 'search', line: 3 }];
  assert.deepEqual(linesOf(text, rules, 'search'), [2, 6]);
  assert.equal(inRule(text, linesOf(text, rules, 'plan')!, (rule) => withField(rule.trimEnd(), 'shadow', 'true')), text.replace('} }\n', '}, shadow: true }\n').trimEnd());
});
