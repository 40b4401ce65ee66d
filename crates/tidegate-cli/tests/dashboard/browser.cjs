// A real Chromium that looks at the dashboard of a real server. Each story is one that a person would live through.
//
//   node browser.cjs STORY    with what the test gives in the environment

'use strict';

const fs = require('node:fs');
const path = require('node:path');

const { ADMIN, HTTP, LINK, CHROMIUM, PLAYWRIGHT, AXE, SCREENSHOTS, REDIS_PID } = process.env;
const { chromium } = require(PLAYWRIGHT);
const axe = fs.readFileSync(path.join(AXE, 'axe.min.js'), 'utf8');

/** Generous: a busy machine with two cores. What is waited for comes much sooner. */
const PATIENCE = 30_000;

const DESKTOP = { width: 1440, height: 900 };
const PHONE = { width: 390, height: 844 };

function fail(message) {
  throw new Error(message);
}

/** Asks the server for a decision, as a client of the service would. */
async function ask(attributes, domain = 'api') {
  const answer = await fetch(`http://${HTTP}/v1/check`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ domain, attributes }),
  });
  return answer.status;
}

/** Asks until the answer is `status`: rules and bans take up to two seconds to reach every node. */
async function askUntil(attributes, status) {
  const end = Date.now() + PATIENCE;
  let told;
  while (Date.now() < end) {
    told = await ask(attributes);
    if (told === status) return;
    await new Promise((then) => setTimeout(then, 100));
  }
  fail(`${JSON.stringify(attributes)} is answered ${told}, not ${status}`);
}

/** A browser page that fails the story when the page itself has a mistake. */
async function open(browser, { viewport = DESKTOP, colorScheme = 'light' } = {}) {
  const context = await browser.newContext({ viewport, colorScheme });
  context.setDefaultTimeout(PATIENCE);
  const page = await context.newPage();
  const mistakes = [];
  page.on('pageerror', (error) => mistakes.push(`page error: ${error}`));
  page.on('console', (line) => {
    // A browser says of every answer that is no success that it could not load something.
    const expected = /Failed to load resource/.test(line.text());
    if (line.type() === 'error' && !expected) mistakes.push(`console: ${line.text()}`);
  });
  page.on('request', (request) => {
    const url = new URL(request.url());
    if (url.protocol.startsWith('http') && url.host !== ADMIN) mistakes.push(`asks another host: ${url.host}`);
  });
  page.noMistakes = () => mistakes.length === 0 || fail(mistakes.join('\n'));
  return page;
}

const to = (page, place) => page.goto(`http://${ADMIN}/#/${place}`);

async function logIn(page, link = LINK) {
  await page.goto(link);
  await page.getByRole('heading', { name: 'Overview' }).waitFor();
  if (page.url().includes('code=')) fail(`the log-in code stays in the address: ${page.url()}`);
}

async function screenshot(page, name) {
  await page.screenshot({ path: path.join(SCREENSHOTS, `${name}.png`), fullPage: true });
}

/** What axe finds serious or critical on the page as it is. Asked through the debugger: the page's policy allows no eval. */
async function accessible(page, where) {
  const session = await page.context().newCDPSession(page);
  const evaluate = (expression) =>
    session.send('Runtime.evaluate', { expression, awaitPromise: true, returnByValue: true });
  await evaluate(axe);
  const { result } = await evaluate('axe.run().then((found) => JSON.stringify(found.violations))');
  const serious = JSON.parse(result.value).filter((one) => ['serious', 'critical'].includes(one.impact));
  const told = serious.map((one) => `${where}: ${one.id}: ${one.help}: ${one.nodes[0].html}`);
  if (told.length) fail(told.join('\n'));
}

/** Replaces all that stands in the rule editor. */
async function write(page, text) {
  const editor = page.getByRole('textbox', { name: /^Rules of/ });
  await editor.click();
  await page.keyboard.press('ControlOrMeta+a');
  await page.keyboard.press('Delete');
  await page.keyboard.insertText(text);
}

async function publish(page, reason) {
  await page.getByRole('button', { name: 'Publish…' }).click();
  const dialog = page.getByRole('dialog');
  await dialog.getByLabel(/^Why/).fill(reason);
  await dialog.getByRole('button', { name: 'Publish', exact: true }).click();
  await dialog.waitFor({ state: 'detached' });
  await page.getByText(/1 of 1 nodes run it/).waitFor();
}

const rules = (lines) => `domain: api\nrules:\n  - name: tight # kept short on purpose\n${lines}`;
const TIGHT = rules('    key: [user]\n    limits: [2/minute]\n');
const SHADOW = rules('    shadow: true\n    key: [user]\n    limits: [2/minute]\n');

const stories = {
  /** Log in, write a mistake, mend it, publish, see a client refused, shadow it, see it pass, roll back. */
  async rules(browser) {
    const page = await open(browser);
    await logIn(page);
    await to(page, 'rules');
    await page.getByRole('link', { name: 'Edit rules' }).click();
    await write(page, TIGHT.replace('limits:', 'limitz:'));
    await page.getByText('does not compile').waitFor();
    await page.getByText(/did you mean .?limits/i).first().waitFor();
    if (await page.getByRole('button', { name: 'Publish…' }).isEnabled()) fail('a mistake can be published');
    await screenshot(page, 'editor-mistake');
    await accessible(page, 'editor with a mistake');
    await write(page, TIGHT);
    await page.getByText('1 rules compile').waitFor();
    await publish(page, 'two a minute, to see it');
    await askUntil({ user: 'first' }, 200);
    await askUntil({ user: 'first' }, 200);
    await askUntil({ user: 'first' }, 429);

    await write(page, SHADOW);
    await publish(page, 'only watch it');
    await askUntil({ user: 'first' }, 200);

    await to(page, 'rules/versions');
    await page.getByText('two a minute, to see it').click();
    await page.getByRole('button', { name: /^Roll back to v/ }).click();
    await page.getByRole('dialog').getByRole('button', { name: 'Roll back', exact: true }).click();
    await page.getByText(/has the rules of v/).waitFor();
    await askUntil({ user: 'first' }, 429);
    await screenshot(page, 'history');
    await to(page, 'audit');
    await page.getByText('only watch it').first().waitFor();
    page.noMistakes();
  },

  /** Ban a key and lift the ban; reset one that is spent. */
  async keys(browser) {
    const page = await open(browser);
    await logIn(page);
    await ask({ user: 'mallory' });
    await to(page, 'keys?domain=api&key=user%3Dmallory');
    await page.getByText(/1 of 100 used/).waitFor();
    await page.getByRole('button', { name: 'Reset…' }).click();
    await page.getByRole('dialog').getByLabel('Why').fill('asked nicely');
    await page.getByRole('dialog').getByRole('button', { name: 'Reset', exact: true }).click();
    await page.getByText(/0 of 100 used/).waitFor();

    await page.getByRole('button', { name: 'Ban…' }).click();
    await page.getByRole('dialog').getByLabel('Why').fill('<img src=x onerror=alert(1)>');
    await page.getByRole('dialog').getByRole('button', { name: 'Ban', exact: true }).click();
    await page.getByText('user=mallory is banned.').waitFor();
    await askUntil({ user: 'mallory' }, 429);
    await askUntil({ user: 'alice' }, 200);
    await page.getByText('Banned', { exact: true }).first().waitFor();
    await screenshot(page, 'keys-banned');
    await accessible(page, 'keys with a ban');
    await page.getByRole('button', { name: 'Lift…' }).first().click();
    await page.getByRole('dialog').getByLabel('Why').fill('a mistake');
    await page.getByRole('dialog').getByRole('button', { name: 'Lift', exact: true }).click();
    await page.getByText('No key is banned or overridden.').waitFor();
    await askUntil({ user: 'mallory' }, 200);
    page.noMistakes();
  },

  /** Charts move with traffic; Redis stops, a banner says so, and goes when it is back. */
  async outage(browser) {
    const page = await open(browser);
    await logIn(page);
    await page.getByText('No request in this range yet').waitFor();
    await screenshot(page, 'overview-empty');
    let busy = true;
    const traffic = (async () => {
      for (let i = 0; busy; i += 1) {
        await ask({ user: `u${i % 7}`, method: i % 3 ? 'GET' : 'POST', path: i % 5 ? '/v1/items' : '/login', ip: '203.0.113.9' });
        await new Promise((then) => setTimeout(then, 10));
      }
    })();
    try {
      await page.getByText('No request in this range yet').waitFor({ state: 'detached' });
      await page.getByRole('link', { name: 'login' }).first().waitFor();
      await page.waitForTimeout(3_000); // for a picture with a line in it; nothing depends on it
      await screenshot(page, 'overview');
      process.kill(Number(REDIS_PID), 'SIGSTOP');
      try {
        await page.locator('.banner', { hasText: 'unavailable' }).waitFor();
        await screenshot(page, 'overview-outage');
        await accessible(page, 'overview during an outage');
      } finally {
        process.kill(Number(REDIS_PID), 'SIGCONT');
      }
      await page.locator('.banner', { hasText: 'unavailable' }).waitFor({ state: 'detached' });
    } finally {
      busy = false;
      await traffic;
    }
    page.noMistakes();
  },

  /** Every page, on a desk and on a phone, in both themes: nothing serious for axe, nothing wider than a phone. */
  async pages(browser) {
    for (let i = 0; i < 130; i += 1) await ask({ user: `u${i % 4}`, method: 'POST', path: '/login', ip: '203.0.113.9' });
    const first = await open(browser);
    await logIn(first);
    const state = await first.context().storageState();
    const places = {
      overview: 'Overview',
      rules: 'Rules',
      'rules/api/login': 'Rules',
      'rules/edit': 'Rules',
      'rules/versions': 'History',
      'keys?domain=api&key=user%3Du1': 'Keys',
      'explain?domain=api&key=user%3Du1+path%3D%2Flogin': 'Explain',
      cluster: 'Cluster',
      audit: 'Audit',
      access: 'Access',
    };
    for (const [size, viewport] of Object.entries({ desktop: DESKTOP, phone: PHONE })) {
      for (const colorScheme of ['light', 'dark']) {
        const context = await browser.newContext({ viewport, colorScheme, storageState: state });
        context.setDefaultTimeout(PATIENCE);
        const page = await context.newPage();
        for (const [place, heading] of Object.entries(places)) {
          await to(page, place);
          await page.getByRole('heading', { name: heading }).first().waitFor();
          await page.waitForLoadState('load');
          await page.waitForTimeout(300); // charts draw in the next frame; a picture only
          const name = place.replace(/\?.*/, '').replaceAll('/', '-');
          await screenshot(page, `${name}-${size}-${colorScheme}`);
          await accessible(page, `${place} ${size} ${colorScheme}`);
          const wide = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
          if (wide > 1) fail(`${place} is ${wide} px wider than a ${size}`);
        }
        await context.close();
      }
    }
    first.noMistakes();
  },

  /** Without a token nothing is shown; a code works once; names that try to be markup stay text. */
  async strangers(browser) {
    const page = await open(browser);
    await to(page, 'overview');
    await page.getByRole('button', { name: 'Sign in' }).waitFor();
    await page.getByLabel('Token').fill('not-a-token');
    await page.getByRole('button', { name: 'Sign in' }).click();
    await page.getByText(/Not signed in/).waitFor();
    await screenshot(page, 'signed-out');
    await accessible(page, 'signed out');
    await logIn(page);
    const again = await open(browser);
    await again.goto(LINK);
    await again.getByText(/Not signed in/).waitFor();

    await page.evaluate(() => { window.alerted = false; window.alert = () => { window.alerted = true; }; });
    const script = '"><img src=x onerror=alert(1)>';
    await ask({ user: script });
    await to(page, `keys?domain=api&key=${encodeURIComponent(`user='${script}'`)}`);
    await page.getByRole('heading', { name: 'Keys', exact: true }).waitFor();
    await to(page, `rules/api/${encodeURIComponent(script)}`);
    await page.getByText(/cannot be read/).waitFor();
    if (await page.evaluate(() => window.alerted)) fail('a name was run as a script');
    await page.getByRole('button', { name: 'Sign out' }).click();
    await page.getByRole('button', { name: 'Sign in' }).waitFor();
    page.noMistakes();
  },
};

async function main() {
  const story = stories[process.argv[2]] ?? fail(`no story ${process.argv[2]}: ${Object.keys(stories).join(', ')}`);
  fs.mkdirSync(SCREENSHOTS, { recursive: true });
  // Nothing but loopback, whatever the browser would like to ask home.
  const args = ['--no-sandbox', '--disable-gpu', '--disable-background-networking', '--disable-component-update', '--disable-sync', '--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1'];
  const browser = await chromium.launch({ executablePath: CHROMIUM, args });
  try {
    await story(browser);
  } catch (error) {
    const pages = browser.contexts().flatMap((context) => context.pages());
    await Promise.all(pages.map((page, i) => screenshot(page, `failed-${process.argv[2]}-${i}`).catch(() => {})));
    throw error;
  } finally {
    await browser.close();
  }
}

main().then(
  () => process.stdout.write('the story went well\n'),
  (error) => {
    process.stderr.write(`${error.stack ?? error}\n`);
    process.exitCode = 1;
  },
);
