// Numbers, spans and moments as people read them.

/** Thin, and no line ends there: a number, or a number and its unit, stays whole. */
const THIN = '\u202f';
const NO_BREAK = '\u00a0';

export function count(value: number | null | undefined): string {
  if (value === null || value === undefined || Number.isNaN(value)) return '–';
  const rounded = Math.abs(value) >= 100 || Number.isInteger(value) ? Math.round(value) : Number(value.toPrecision(2));
  const [whole = '0', part] = String(rounded).split('.');
  return whole.replace(/\B(?=(\d{3})+(?!\d))/g, THIN) + (part ? '.' + part : '');
}

/** What is unknown has no unit. */
export const rate = (value: number | null | undefined) => (count(value) === '–' ? '–' : `${count(value)}/s`);

export function percent(part: number, whole: number): string {
  if (whole <= 0) return '–';
  const value = (100 * part) / whole;
  return `${value === 0 || value >= 10 ? Math.round(value) : value < 0.01 ? '<0.01' : Number(value.toPrecision(2))}${THIN}%`;
}

export function micros(value: number | null | undefined): string {
  if (value === null || value === undefined) return '–';
  if (value < 1000) return `${Math.round(value)}${THIN}µs`;
  if (value < 1_000_000) return `${Number((value / 1000).toPrecision(3))}${THIN}ms`;
  return `${Number((value / 1_000_000).toPrecision(3))}${THIN}s`;
}

const UNITS: [string, number][] = [
  ['d', 86_400_000],
  ['h', 3_600_000],
  ['m', 60_000],
  ['s', 1000],
  ['ms', 1],
];

/** A span in at most two units, as rules write it: `1h 30m`. */
export function span(ms: number | null | undefined): string {
  if (ms === null || ms === undefined) return '–';
  if (ms <= 0) return '0s';
  let left = Math.round(ms);
  const parts: string[] = [];
  for (const [unit, size] of UNITS) {
    if (left >= size && parts.length < 2) {
      parts.push(`${Math.floor(left / size)}${unit}`);
      left %= size;
      if (unit === 's') break;
    } else if (parts.length) break;
  }
  return parts.join(NO_BREAK) || '<1ms';
}

export function bytes(value: number | null | undefined): string {
  if (value === null || value === undefined) return '–';
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let power = 0;
  let left = value;
  while (left >= 1024 && power < units.length - 1) {
    left /= 1024;
    power += 1;
  }
  return `${power ? Number(left.toPrecision(3)) : left}${THIN}${units[power]}`;
}

export function ago(at: string | number | null | undefined, now = Date.now()): string {
  if (at === null || at === undefined) return 'never';
  const ms = now - new Date(at).getTime();
  if (Math.abs(ms) < 2000) return 'now';
  const text = span(Math.abs(ms)).split(NO_BREAK)[0]!;
  return ms >= 0 ? `${text} ago` : `in ${text}`;
}

/** `20:35`. */
export const clockTime = (at: string | number) => new Date(at).toLocaleTimeString([], { hour: '2-digit', minute: '2-digit', hour12: false });

/** `22:06`; with its date where that is not today. */
export function sinceTime(at: number, now = Date.now()): string {
  const [then, today] = [new Date(at), new Date(now)];
  const date = then.toDateString() === today.toDateString() ? '' : `${then.toLocaleDateString([], { day: 'numeric', month: 'short' })} `;
  return date + clockTime(at);
}

export function moment(at: string | number | null | undefined): string {
  if (at === null || at === undefined) return 'never';
  return new Date(at).toLocaleString(undefined, { dateStyle: 'medium', timeStyle: 'medium' });
}

/** What people call the stores of counters. */
const STORES: Record<string, string> = { memory: 'memory', redis: 'Redis', postgres: 'PostgreSQL', memcached: 'Memcached', dynamodb: 'DynamoDB' };

export const storeName = (kind: string) => STORES[kind] ?? kind;

const ALGORITHMS: Record<string, string> = {
  token_bucket: 'token bucket',
  fixed_window: 'fixed window',
  sliding_window: 'sliding window',
  sliding_log: 'sliding log',
  leaky_bucket: 'leaky bucket',
  concurrency: 'at once',
};

export const algorithm = (name: string) => ALGORITHMS[name] ?? name;

/** What a bucket gets back: in the shortest unit that makes a number of at least one. */
function refill(burst: number, emptyToFull: number): string {
  const [unit, length] = PER.find(([, length]) => (burst * length) / emptyToFull >= 0.995) ?? PER[3]!;
  return `${count((burst * length) / emptyToFull)}/${unit}`;
}

/** Units as people say them after a number of requests. */
const PER: [string, number][] = [
  ['s', 1_000],
  ['min', 60_000],
  ['h', 3_600_000],
  ['day', 86_400_000],
];

/** `/min`, `/h`; ` per 5 min` where the window is none of the usual. */
export function per(windowMs: number): string {
  const usual = PER.find(([, length]) => length === windowMs);
  if (usual) return `/${usual[0]}`;
  const [unit, length] = [...PER].reverse().find(([, length]) => windowMs % length === 0) ?? ['ms', 1];
  return ` per${NO_BREAK}${count(windowMs / length)}${NO_BREAK}${unit}${unit === 'day' ? 's' : ''}`;
}

/** `100/min`, `10 at once`, `1/s, burst 20`. */
export function limitInWords(limit: { algorithm: string; limit: number; window_ms?: number | null }): string {
  if (limit.algorithm === 'concurrency') return `${count(limit.limit)} at once`;
  if (limit.limit === 0) return 'banned';
  if (limit.algorithm.endsWith('_bucket') && limit.window_ms) return `${refill(limit.limit, limit.window_ms)}, ${limit.algorithm === 'leaky_bucket' ? 'queue' : 'burst'} ${count(limit.limit)}`;
  return limit.window_ms ? `${count(limit.limit)}${per(limit.window_ms)}` : `${count(limit.limit)} per calendar window`;
}

/** Limits by the tier that has them: `free: 60/min, 1 000/h`. */
export function byTier<L extends { of?: string; algorithm: string; limit: number; window_ms?: number | null }>(limits: L[]): { of: string; limits: L[]; text: string }[] {
  const tiers = new Map<string, L[]>();
  for (const limit of limits) tiers.set(limit.of ?? '', [...(tiers.get(limit.of ?? '') ?? []), limit]);
  return [...tiers].map(([of, limits]) => ({ of, limits, text: limits.map(limitInWords).join(', ') }));
}

export function sum(column: (number | null)[] | undefined): number {
  return (column ?? []).reduce<number>((total, value) => total + (value ?? 0), 0);
}

/** The mean of what is known; none where nothing is. */
export function mean(column: (number | null)[] | undefined): number | null {
  const known = (column ?? []).filter((value): value is number => value !== null);
  return known.length ? sum(known) / known.length : null;
}

export function highest(column: (number | null)[] | undefined): number | null {
  const known = (column ?? []).filter((value): value is number => value !== null);
  return known.length ? Math.max(...known) : null;
}

export function last(column: (number | null)[] | undefined): number | null {
  if (!column) return null;
  for (let index = column.length - 1; index >= 0; index -= 1) {
    if (column[index] !== null && column[index] !== undefined) return column[index]!;
  }
  return null;
}

/** A key as people write it: `user=42 path=/v1/items`. */
export const keyText = (pairs: Iterable<[string, string]>) => [...pairs].map(([name, value]) => `${name}=${/\s/.test(value) ? `"${value}"` : value}`).join(' ');

/** `user=42 path=/v1/items`; a value with spaces in quotes. */
export function parseKey(text: string): Record<string, string> {
  const found: Record<string, string> = {};
  for (const [, name, quoted, plain] of text.matchAll(/([^\s=]+)=(?:"([^"]*)"|(\S*))/g)) found[name!] = quoted ?? plain ?? '';
  return found;
}

/** `1 rule`, `2 rules`. */
export const plural = (number: number, word: string) => `${count(number)} ${word}${number === 1 ? '' : 's'}`;

/** `+12`, `−3`, `±0`. */
export function signed(value: number): string {
  return value > 0 ? `+${count(value)}` : value < 0 ? `−${count(-value)}` : '±0';
}
