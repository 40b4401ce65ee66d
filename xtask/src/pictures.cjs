// Takes the README's pictures of the dashboard: three nodes on one Redis, some minutes of traffic that is mostly admitted, a change
// on the way, and a browser that looks at it. `cargo xtask pictures` starts it and says where everything is.
//
// It takes a picture of nothing but a healthy fleet: it waits until all that the charts look back on is calm, looks again at what
// it took, and fails rather than leave a picture with an alert or a gap in it.

'use strict';

const { spawn, execFileSync } = require('node:child_process');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');

const { BINARY, REDIS, CHROMIUM, PLAYWRIGHT, TO, SECONDS = '2400' } = process.env;

/** The charts look back on so many seconds. */
const RANGE_S = 300;
/** Of that, so much is before the version that is published on the way. */
const BEFORE_VERSION_S = 160;
/** A longer p99 is not that of a quiet machine. */
const CALM_US = 100_000;

const TOKEN = 'a-token-of-the-nodes-without-a-database';
const NAMES = ['gate-1', 'gate-2', 'gate-3'];
const RULES = (everybody) => `domain: api
rules:
  # Each user, whatever the client does.
  - name: per-user
    key: [user]
    limits: [400/minute]

  # Writing costs more than reading.
  - name: writes
    match: { method: [POST, PUT, DELETE] }
    key: [user]
    limits:
      - { algorithm: token_bucket, rate: 3/s, burst: 20 }

  # Guessing passwords.
  - name: login
    match: { path: /login }
    key: [ip]
    limits:
      - { algorithm: sliding_log, limit: 10, window: 1m }

  # Everybody together, so that the database lives.
  - name: everybody
    limits: [${everybody}/s]
`;

const started = [];
const sleep = (ms) => new Promise((then) => setTimeout(then, ms));

function start(program, args, log) {
  const child = spawn(program, args, { stdio: ['ignore', 'pipe', log] });
  started.push(child);
  return child;
}

/** Waits for a line of its output and returns what the pattern found. */
function said(child, pattern) {
  return new Promise((then, fail) => {
    let text = '';
    child.stdout.on('data', (part) => {
      text += part;
      const found = pattern.exec(text);
      if (found) then(found);
    });
    child.on('exit', (code) => fail(new Error(`it ended with ${code}: ${text}`)));
  });
}

async function fleet(dir) {
  const log = fs.openSync(path.join(dir, 'log'), 'a');
  const port = 20_000 + Math.floor(Math.random() * 10_000);
  const redis = start(REDIS, ['--port', `${port}`, '--bind', '127.0.0.1', '--save', '', '--hz', '100', '--lazyfree-lazy-expire', 'yes', '--maxmemory', '256mb', '--dir', dir], log);
  await said(redis, /Ready to accept connections/);
  const nodes = [];
  for (const [number, name] of NAMES.entries()) {
    const data = path.join(dir, name);
    const own = number === 0 ? '' : `, database: none, tokens: [${TOKEN}]`;
    const config = path.join(dir, `${name}.yaml`);
    // A machine that also runs a browser is no machine to measure on: the pictures show what pages look like.
    fs.writeFileSync(config, `store: { url: 'redis://127.0.0.1:${port}', timeout: 250ms }\nadmin: { node: ${name}${own} }\ndecision_log: { admissions_one_in: 1, clear: ['*'] }\n`);
    const node = start(BINARY, ['serve', '--config', config, '--data', data, '--http', '127.0.0.1:0', '--grpc', 'off', '--resp', 'off', '--admin', '127.0.0.1:0'], log);
    const [, http, admin] = await said(node, /listening http (\S+)[\s\S]*listening admin (\S+)/);
    nodes.push({ http, admin, data });
  }
  return nodes;
}

/** A caller among many: the first ask most, none for more than they may. */
function somebody() {
  const rank = Math.floor(120 ** Math.random()) - 1 + Math.floor(Math.random() * 20);
  return { user: `customer-${1000 + rank * 7}`, ip: `198.51.100.${1 + (rank % 250)}` };
}

/** What arrives in the second after `at`: waves of people, a crawler now and then, and somebody who guesses passwords. */
function requests(at) {
  const list = [];
  const people = 55 + 25 * Math.sin(at / 14) + 10 * Math.sin(at / 5) + 8 * Math.random();
  for (let i = 0; i < people; i += 1) {
    const chance = Math.random();
    if (chance < 0.02) list.push({ ...somebody(), method: 'POST', path: '/login' });
    else if (chance < 0.2) list.push({ ...somebody(), method: 'POST', path: '/v1/orders' });
    else list.push({ ...somebody(), method: 'GET', path: chance < 0.6 ? '/v1/items' : '/v1/search' });
  }
  if (at % 75 > 40) for (let i = 0; i < 14; i += 1) list.push({ user: 'crawler', ip: '203.0.113.9', method: 'GET', path: '/v1/search' });
  if (at % 3 < 1) list.push({ user: 'nobody', ip: '203.0.113.66', method: 'POST', path: '/login' });
  return list;
}

async function traffic(nodes, is_over) {
  const began = Date.now();
  const counts = {};
  let next = 0;
  while (!is_over()) {
    const at = (Date.now() - began) / 1000;
    const list = requests(at);
    const pause = 1000 / list.length;
    for (const attributes of list) {
      next += 1;
      const body = JSON.stringify({ domain: 'api', attributes });
      fetch(`http://${nodes[next % nodes.length].http}/v1/check`, { method: 'POST', headers: { 'content-type': 'application/json' }, body })
        .then(async (answer) => {
          await answer.text();
          counts[answer.status] = (counts[answer.status] || 0) + 1;
        })
        .catch((error) => (counts[error.message] = (counts[error.message] || 0) + 1));
      await sleep(pause);
    }
  }
  return counts;
}

async function apply(node, rules, reason, dir) {
  const file = path.join(dir, 'api.yaml');
  fs.writeFileSync(file, rules);
  execFileSync(BINARY, ['rules', '--admin', `http://${node.admin}`, 'apply', file, '--reason', reason], { env: { ...process.env, HOME: dir } });
}

/**
 * When the dashboard would show something other than a healthy fleet, and what; `shown` is what is marked or said there. Before the
 * first second that is known there is a gap.
 */
function troubles({ stats, alerts, nodes }, now_s) {
  const began = Date.parse(stats.from) / 1000;
  const { allowed, fallback } = stats.total;
  const found = [{ at: began - 1, what: 'the time before' }];
  const shown = (at, what) => found.push({ at, what, shown: true });
  const newest = allowed.findLastIndex((value) => value !== null);
  if (newest < 0) shown(now_s, 'nothing is known');
  for (let step = 0; step <= newest; step += 1) {
    const at = began + step * stats.step_s;
    const slow = Math.max(stats.decision_p99_us[step] ?? 0, stats.store_p99_us[step] ?? 0);
    if (allowed[step] === null) shown(at, 'a gap');
    else if (stats.incomplete[step] || stats.partial[step]) shown(at, 'a node was not heard');
    else if (fallback[step] > 0) shown(at, 'requests without the store');
    else if (slow > CALM_US) found.push({ at, what: `a p99 of ${Math.round(slow / 1000)} ms` });
  }
  // What is only worth knowing is a card on the page while it is active, and no mark afterwards.
  for (const alert of alerts.resolved) if (alert.severity !== 'info') shown(alert.ended_s, `the alert: ${alert.summary}`);
  for (const alert of alerts.active) shown(now_s, `the alert: ${alert.summary}`);
  for (const warning of nodes.warnings ?? []) shown(now_s, warning);
  if (nodes.nodes.length !== NAMES.length) shown(now_s, `${nodes.nodes.length} nodes`);
  for (const node of nodes.nodes) if (node.lost || node.unknown || node.error || (node.health ?? 'healthy') !== 'healthy') shown(now_s, `${node.name} is not healthy`);
  return found.sort((one, other) => other.at - one.at);
}

async function troublesOf(node) {
  const ask = async (what) => {
    const answer = await fetch(`http://${node.admin}/admin/v1/${what}`, { headers: { authorization: `Bearer ${TOKEN}` } });
    if (!answer.ok) throw new Error(`${what}: ${answer.status}: ${await answer.text()}`);
    return answer.json();
  };
  const [stats, alerts, nodes] = await Promise.all([ask(`stats?from=${RANGE_S}s&step=1s&most=0`), ask('alerts'), ask('nodes')]);
  return troubles({ stats, alerts, nodes }, Date.now() / 1000);
}

/** Waits until all that the charts look back on is healthy, with a version published in the middle of it. */
async function calm(node, version, end) {
  let said = '';
  for (;;) {
    const [{ at, what }] = await troublesOf(node);
    const now = Date.now() / 1000;
    if (now - at > RANGE_S && version.at > at && now - version.at > RANGE_S - BEFORE_VERSION_S) return;
    if (now > end) throw new Error(`the fleet is not calm for ${RANGE_S} s: ${Math.round(now - at)} s ago: ${what}. Is the machine busy?`);
    if (said !== what) process.stdout.write(`calm for ${Math.round(now - at)} s; before: ${what}\n`);
    said = what;
    if (now - at > BEFORE_VERSION_S && version.at <= at) {
      await version.publish();
      version.at = now;
    }
    await sleep(1000);
  }
}

/** What is on the page, or in its charts, that a picture of a healthy fleet has not. */
async function blemishes(page, node) {
  const found = await page.locator('.banner, .notice.warning, .notice.failed, section[aria-label="Active incidents"]').allInnerTexts();
  if (await page.getByRole('button', { name: 'Who are you?' }).count()) found.push('it still asks for a name');
  const since = Date.now() / 1000 - RANGE_S;
  const charted = (await troublesOf(node)).filter((trouble) => trouble.shown && trouble.at > since);
  return [...new Set([...found, ...charted.map(({ what }) => what)])];
}

async function take(browser, nodes) {
  const [first] = nodes;
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, colorScheme: 'light' });
  context.setDefaultTimeout(60_000);
  const page = await context.newPage();
  const link = execFileSync(BINARY, ['login', '--admin', `http://${first.admin}`, '--data', first.data]).toString().trim();
  await page.goto(link);
  await page.getByRole('heading', { name: 'Overview' }).waitFor();
  const who = page.getByRole('dialog', { name: 'Who are you?' });
  await who.getByLabel('Name').fill('ada');
  await who.getByRole('button', { name: 'Save' }).click();
  await who.waitFor({ state: 'detached' });
  const hide = page.getByRole('button', { name: 'Hide' });
  if (await hide.count()) await hide.first().click();
  await page.getByRole('figure', { name: 'Requests per second' }).waitFor();
  const range = page.getByRole('button', { name: '5m', exact: true }).or(page.getByRole('radio', { name: '5m', exact: true }));
  if (await range.count()) await range.first().click({ force: true });
  await page.getByText(new RegExp(`${NAMES.length} nodes · v\\d+ · healthy`)).waitFor();
  await page.getByRole('cell', { name: NAMES.at(-1) }).waitFor();
  await page.waitForTimeout(3_000);
  await shoot(page, nodes, 'overview');
  await page.goto(`http://${first.admin}/#/rules/edit?domain=api&rule=per-user`);
  await page.getByLabel('Limit', { exact: true }).fill('300');
  await page.getByLabel('Limit', { exact: true }).press('Enter');
  await page.getByRole('button', { name: 'Put it into the text' }).click();
  await page.getByText(/Would have refused/).first().waitFor();
  await page.waitForTimeout(3_000);
  await shoot(page, nodes, 'editor');
}

/**
 * The whole page in a window as high as it is: what stays at the top while one scrolls would be in the middle of it. The picture
 * counts only if nothing was wrong after it either.
 */
async function shoot(page, nodes, name) {
  const height = await page.evaluate(() => document.documentElement.scrollHeight);
  await page.setViewportSize({ width: 1440, height });
  const picture = await page.screenshot();
  const found = await blemishes(page, nodes[1]);
  if (found.length) throw new Blemished(`${name} shows no healthy fleet: ${found.join('; ')}`);
  fs.writeFileSync(path.join(TO, `${name}.png`), picture);
  await page.setViewportSize({ width: 1440, height: 900 });
}

class Blemished extends Error {}

async function main() {
  const { chromium } = require(PLAYWRIGHT);
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'pictures-'));
  try {
    const nodes = await fleet(dir);
    execFileSync(BINARY, ['login', '--keep', '--admin', `http://${nodes[0].admin}`, '--data', nodes[0].data], { env: { ...process.env, HOME: dir } });
    await apply(nodes[0], RULES(2000), 'what we promise', dir);
    let over = false;
    const going = traffic(nodes, () => over);
    const end = Date.now() / 1000 + Number(SECONDS);
    let everybody = 2000;
    const version = { at: 0, publish: () => apply(nodes[0], RULES((everybody += 1000)), 'a larger database', dir) };
    // Nothing but loopback, whatever the browser would like to ask home.
    const args = ['--no-sandbox', '--disable-gpu', '--disable-background-networking', '--disable-component-update', '--disable-sync', '--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1'];
    for (let taken = false; !taken; ) {
      await calm(nodes[1], version, end);
      const browser = await chromium.launch({ executablePath: CHROMIUM, args });
      try {
        await take(browser, nodes);
        taken = true;
      } catch (error) {
        // A browser that starts beside the fleet is a load of its own.
        if (!(error instanceof Blemished) || Date.now() / 1000 > end) throw error;
        process.stdout.write(`${error.message}; once more\n`);
      } finally {
        await browser.close();
      }
    }
    over = true;
    process.stdout.write(`answers: ${JSON.stringify(await going)}\n`);
  } catch (error) {
    process.stderr.write(fs.readFileSync(path.join(dir, 'log'), 'utf8'));
    throw error;
  } finally {
    started.reverse().forEach((child) => child.kill());
    fs.rmSync(dir, { recursive: true, force: true });
  }
}

module.exports = { troubles };

if (require.main === module) {
  main().then(
    () => process.exit(0),
    (error) => {
      process.stderr.write(`${error.stack ?? error}\n`);
      process.exit(1);
    },
  );
}
