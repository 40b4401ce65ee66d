// Headroom, and comparisons with the time before.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { against, headroom, runsOut, unjudged } from '../src/lib/limits';

test('close to a limit is from 80 % of it up to all of it', () => {
  const peaks = [{ value: 79, count: 50 }, { value: 80, count: 4 }, { value: 100, count: 1 }, { value: 101, count: 2 }];
  assert.deepEqual(headroom({ quota: 100, peaks }), { close: 5, above: 2 });
});

test('a quota runs out at a rate, unless it is full again first, or is one of minutes', () => {
  const cell = { algorithm: 'fixed_window', window_ms: 3_600_000, remaining: 600, reset_after_ms: 1_200_000 };
  assert.equal(runsOut(cell, 1), 600_000);
  assert.equal(runsOut(cell, 0.4), null);
  assert.equal(runsOut(cell, 0), null);
  assert.equal(runsOut({ ...cell, remaining: 0 }, 1), null);
  assert.equal(runsOut({ ...cell, window_ms: 60_000 }, 1), null);
  assert.equal(runsOut({ ...cell, algorithm: 'token_bucket' }, 1), null);
});

test('what was before is compared only where it is known', () => {
  assert.equal(against(112, 100), '12 % more than');
  assert.equal(against(50, 100), '50 % less than');
  assert.equal(against(100, 100), 'as much as');
  assert.equal(against(1200, 100), '12 times as much as');
  assert.equal(against(5, 0), null);
  assert.equal(against(5, null), null);
});

test('a sample of 91 s does not judge a limit per hour, of a window or a bucket, unless somebody asked for more', () => {
  const hour = { window_us: 3_600_000_000, quota: 100, peaks: [{ value: 60 }] };
  assert.ok(unjudged(hour, 91_000));
  assert.ok(!unjudged({ ...hour, peaks: [{ value: 60 }, { value: 101 }] }, 91_000), 'what it refused, it refused');
  assert.ok(!unjudged({ ...hour, window_us: 60_000_000 }, 91_000));
  assert.ok(!unjudged({ ...hour, window_us: null }, 91_000), 'of a calendar window the length is not known');
});
