// Changes of a number in the text of a rule, as a person would make them: the rest stays as it was written.

/** `text` with the limit `from` as `to`; none where it does not say `from` in one place. */
export function withLimit(text: string, from: number, to: number): string | null {
  const patterns = [new RegExp(`(^|[^\\w.])${from}(?=\\s*/\\s*[\\w])`, 'g'), new RegExp(`((?:limit|burst):\\s*)${from}(?![\\w./])`, 'g')];
  for (const pattern of patterns) {
    if ([...text.matchAll(pattern)].length === 1) return text.replace(pattern, (_, before: string) => `${before}${to}`);
  }
  return null;
}

/** From this share of a limit on, a caller is close to it. */
const CLOSE = 0.8;

/** How many callers came close to a limit at their busiest, and how many asked for more than it allows. */
export function headroom(limit: { quota: number; peaks: { value: number; count: number }[] }): { close: number; above: number } {
  const of = (is: (value: number) => boolean) => limit.peaks.reduce((sum, peak) => sum + (is(peak.value) ? peak.count : 0), 0);
  return { close: of((value) => value >= CLOSE * limit.quota && value <= limit.quota), above: of((value) => value > limit.quota) };
}

/** Shorter windows are over before anybody has read that they run out. */
const LEAST_WINDOW_MS = 3_600_000;

/** When a quota runs out at this rate, in milliseconds from now; none if it is full again before, or already empty. */
export function runsOut(cell: { window_ms?: number | null; algorithm: string; remaining: number; reset_after_ms: number }, perSecond: number): number | null {
  if (!cell.window_ms || cell.window_ms < LEAST_WINDOW_MS || cell.algorithm.endsWith('_bucket') || cell.remaining <= 0 || perSecond <= 0) return null;
  const ms = (1000 * cell.remaining) / perSecond;
  return ms < cell.reset_after_ms ? ms : null;
}

/** A change against the time before, in words: `12 % more`. */
export function against(now: number | null, before: number | null): string | null {
  if (now === null || before === null || before <= 0) return null;
  const percent = Math.round((100 * (now - before)) / before);
  return percent === 0 ? 'as much as' : percent > 900 ? `${Math.round(now / before)} times as much as` : `${Math.abs(percent)} % ${percent > 0 ? 'more' : 'less'} than`;
}

/** The tier of a limit as replays and suggestions call it: `sliding_window/1h of pro`. */
export const tierOf = (limit: { limit: string }) => / of (.+)$/.exec(limit.limit)?.[1] ?? '';

/**
 * Whether traffic of this length cannot show what a limit does: its window, or the time in which a bucket fills, is longer, and nobody has
 * asked for more than it allows yet.
 */
export const unjudged = (limit: { window_us: number | null; quota: number; peaks: { value: number }[] }, recordedMs: number) => limit.window_us !== null && limit.window_us / 1000 > recordedMs && !limit.peaks.some((peak) => peak.value > limit.quota);
