import assert from 'node:assert/strict';
import { test } from 'node:test';
import { compare } from '../src/lib/experiment';

const side = (variant: string, allowed: number, refused: number) => ({ variant, allowed, refused, shadow_refused: 0 });

test('two shares differ by their difference, within the interval of a textbook', () => {
  // Agresti and Franklin: 60 of 100 against 40 of 100, 20 points, give or take 13.6.
  const found = compare([side('control', 60, 40), side('experiment', 40, 60)])!;
  assert.equal(Math.round(found.difference), 20);
  assert.equal(found.margin.toFixed(1), '13.6');
});

test('a side with too few requests is compared with nothing', () => {
  assert.equal(compare([side('control', 20, 5), side('experiment', 400, 60)]), null);
});
