// Answers that take longer than the pause between questions. Run with `npm test`.

import assert from 'node:assert/strict';
import { mock, test } from 'node:test';
import { Asker, LONGEST_ANSWER_MS, NoAnswer } from '../src/lib/asker';

/** A server whose answers come when the test lets them. */
function slow() {
  const asked: { about: string; signal: AbortSignal; answer: (text: string) => Promise<void> }[] = [];
  const got: string[] = [];
  const failed: unknown[] = [];
  const settled = () => new Promise<void>((then) => setImmediate(then));
  const question = (about: string, signal: AbortSignal) =>
    new Promise<string>((then, no) => {
      signal.addEventListener('abort', () => no(signal.reason));
      asked.push({ about, signal, answer: async (text) => (then(text), settled()) });
    });
  return { asked, got, failed, settled, asker: new Asker<string>(question, (answer) => got.push(answer), (error) => failed.push(error)) };
}

test('a timer does not ask again while the same is under way, so that a slow answer comes', async () => {
  const { asker, asked, got, failed } = slow();
  void asker.ask('stats');
  for (let tick = 0; tick < 5; tick += 1) asker.again('stats');
  assert.equal(asked.length, 1);
  assert.equal(asked[0]!.signal.aborted, false);
  await asked[0]!.answer('first');
  assert.deepEqual(got, ['first']);
  asker.again('stats');
  assert.equal(asked.length, 2);
  assert.deepEqual(failed, []);
  asker.stop();
});

test('another question drops the one before, whose late answer replaces nothing', async () => {
  const { asker, asked, got, failed } = slow();
  void asker.ask('stats of an hour');
  asker.again('stats of a day');
  assert.equal(asked[0]!.signal.aborted, true);
  await asked[1]!.answer('a day');
  await asked[0]!.answer('an hour');
  assert.deepEqual([got, failed], [['a day'], []]);
});

test('what changes while an answer is under way is asked once more behind it', async () => {
  const { asker, asked, got } = slow();
  void asker.ask('rules');
  asker.changed('rules');
  asker.changed('rules');
  assert.equal(asked.length, 1);
  await asked[0]!.answer('old');
  assert.equal(asked.length, 2);
  await asked[1]!.answer('new');
  assert.deepEqual([got, asked.length], [['old', 'new'], 2]);
});

test('a server that never answers is said, and asked anew', async () => {
  mock.timers.enable({ apis: ['setTimeout'] });
  const { asker, asked, failed, settled } = slow();
  void asker.ask('stats');
  mock.timers.tick(LONGEST_ANSWER_MS);
  await settled();
  assert.ok(failed[0] instanceof NoAnswer);
  assert.equal(asked[0]!.signal.aborted, true);
  asker.again('stats');
  assert.equal(asked.length, 2);
  asker.stop();
  mock.timers.reset();
});

test('once stopped, nothing is said any more', async () => {
  const { asker, asked, got, failed } = slow();
  void asker.ask('stats');
  asker.stop();
  await asked[0]!.answer('late');
  assert.deepEqual([got, failed], [[], []]);
});

test('only a timer says that nothing changed but the time', async () => {
  const asked: boolean[] = [];
  const asker = new Asker<string>(async (_, __, again) => (asked.push(again), 'told'), () => {}, () => {});
  await asker.ask('stats');
  asker.again('stats');
  await new Promise<void>((then) => setImmediate(then));
  asker.changed('stats');
  await new Promise<void>((then) => setImmediate(then));
  assert.deepEqual(asked, [false, true, false]);
});
