// A request as somebody pastes it: attributes, the body of a check, or a curl line. What of it was read is said, and what was
// not: an answer about half of a request looks like one about all of it.

import { parseKey } from './format';

export interface ReadRequest {
  /** What the body of a check named. */
  domain: string | null;
  attributes: Record<string, string>;
  /** What was read, and as what. */
  read: string[];
  /** What was not, and why. Values are left out: they may be secret. */
  ignored: string[];
}

/** Options of curl that take a value which says nothing about the request. */
const WITH_VALUE = /^(-o|-w|-m|-x|-e|-c|-T|-E|--(output|write-out|max-time|connect-timeout|proxy|referer|cookie-jar|retry|resolve|cacert|cert|key|interface|upload-file|limit-rate|config|unix-socket))$/;
const BODY = /^(-d|--data|--data-raw|--data-binary|--data-ascii|--data-urlencode|--json|-F|--form)$/;
const SECRET = /auth|cookie|credential|key|pass|secret|session|signature|token/i;

/** Whether a value of this name should not stand in an address that is shared. */
export const isSecret = (name: string) => SECRET.test(name);

export function readRequest(text: string): ReadRequest {
  if (/^\s*curl(\s|$)/.test(text)) return ofCurl(words(text).slice(1));
  const body = bodyOf(text);
  if (body) return { ...body, ignored: [], read: ['the body of a check'] };
  const attributes = parseKey(text);
  const rest = text.replace(/([^\s=]+)=(?:"([^"]*)"|(\S*))/g, ' ').split(/\s+/).filter(Boolean);
  return { domain: null, attributes, read: Object.keys(attributes), ignored: rest.map((word) => `${word} (not name=value)`) };
}

/** The words of a line as a shell splits them. */
function words(line: string): string[] {
  const found: string[] = [];
  let [word, quote, begun] = ['', '', false];
  for (let at = 0; at < line.length; at += 1) {
    const one = line[at]!;
    if (quote) {
      if (one === quote) quote = '';
      else if (one === '\\' && quote === '"' && /["\\$`]/.test(line[at + 1] ?? '')) word += line[(at += 1)];
      else word += one;
    } else if (one === "'" || one === '"') [quote, begun] = [one, true];
    else if (one === '\\') {
      at += 1;
      if (line[at] !== '\n') [word, begun] = [word + (line[at] ?? ''), true];
    } else if (/\s/.test(one)) {
      if (begun || word) found.push(word);
      [word, begun] = ['', false];
    } else word += one;
  }
  if (begun || word) found.push(word);
  return found;
}

/** `{"domain": …, "attributes": {…}}`, or only the attributes. */
function bodyOf(text: string): { domain: string | null; attributes: Record<string, string> } | null {
  let body: unknown;
  try {
    body = JSON.parse(text);
  } catch {
    return null;
  }
  const isMap = (one: unknown): one is Record<string, unknown> => typeof one === 'object' && one !== null && !Array.isArray(one);
  if (!isMap(body)) return null;
  const named = isMap(body.attributes) ? body.attributes : body.attributes === undefined && body.domain === undefined ? body : {};
  const pairs = Object.entries(named).filter(([, value]) => ['string', 'number', 'boolean'].includes(typeof value));
  return { domain: typeof body.domain === 'string' ? body.domain : null, attributes: Object.fromEntries(pairs.map(([name, value]) => [name, String(value)])) };
}

function ofCurl(given: string[]): ReadRequest {
  let [method, url, data]: [string | null, string | null, string | null] = [null, null, null];
  const [headers, options]: [string[], string[]] = [[], []];
  const queue = given.flatMap((word) => (/^--[\w-]+=/.test(word) ? [word.slice(0, word.indexOf('=')), word.slice(word.indexOf('=') + 1)] : /^-[XHdFu]./.test(word) ? [word.slice(0, 2), word.slice(2)] : [word]));
  while (queue.length) {
    const word = queue.shift()!;
    if (word === '-X' || word === '--request') method = queue.shift() ?? null;
    else if (word === '-H' || word === '--header') headers.push(queue.shift() ?? '');
    else if (BODY.test(word)) data = `${data ?? ''}${queue.shift() ?? ''}`;
    else if (word === '--url') url = queue.shift() ?? null;
    else if (word === '-I' || word === '--head') method ??= 'HEAD';
    else if (['-u', '--user', '-A', '--user-agent', '-b', '--cookie'].includes(word)) {
      queue.shift();
      options.push(word);
    } else if (WITH_VALUE.test(word)) {
      queue.shift();
      options.push(word);
    } else if (word.startsWith('-')) options.push(word);
    else url ??= word;
  }
  const at = url === null ? null : parsed(url);
  const ignored = options.map((option) => `${option} (says nothing that rules match)`);
  const names = headers.map((header) => header.slice(0, Math.max(0, header.indexOf(':'))).trim().toLowerCase()).filter(Boolean);
  const check = at?.pathname.endsWith('/v1/check') && data !== null ? bodyOf(data) : null;
  if (check) return { ...check, read: ['the body of the check'], ignored: [...ignored, ...names.map((name) => `header ${name} (a check is its body)`)] };
  const attributes: Record<string, string> = { method: method ?? (data === null ? 'GET' : 'POST') };
  if (at) attributes.path = at.pathname;
  if (at?.search) ignored.push('the query of the address (rules see the path)');
  if (data !== null) ignored.push('the body (only its size could count)');
  ignored.push(...names.map((name) => `header ${name} (the section identity says which attribute it is: add it as name=value)`));
  return { domain: null, attributes, read: Object.keys(attributes), ignored };
}

function parsed(url: string): URL | null {
  try {
    return new URL(/^[a-z]+:\/\//i.test(url) ? url : `http://${url}`);
  } catch {
    return null;
  }
}
