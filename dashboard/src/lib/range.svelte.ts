// The time range of charts, kept in the address: a span back from now, or two moments after a drag.

import { query } from './api';
import { place, set } from './router.svelte';

export const RANGES = ['5m', '15m', '1h', '6h', '24h'] as const;
const SECONDS: Record<string, number> = { '5m': 300, '15m': 900, '1h': 3600, '6h': 21_600, '24h': 86_400 };

export const range = () => place().parameters.get('range') ?? '15m';
export const zoomed = () => place().parameters.has('from');

export function setRange(value: string) {
  set({ range: value === '15m' ? null : value, from: null, to: null });
}

export function zoom(from: Date, to: Date) {
  if (Number.isNaN(from.getTime())) set({ from: null, to: null });
  else set({ from: from.toISOString(), to: to.toISOString() });
}

/** The query of `stats` for this range; `more` narrows it. */
export function statsQuery(more: Record<string, string> = {}): string {
  const { parameters } = place();
  const from = parameters.get('from');
  const to = parameters.get('to');
  if (from && to) return 'stats' + query({ from, to, ...more });
  const seconds = SECONDS[range()] ?? 900;
  return 'stats' + query({ from: range(), step: seconds <= 900 ? (seconds <= 300 ? '1s' : '5s') : '1m', ...more });
}

/** The moments of this range, for what is not charted. */
export function between(): { from: string; to?: string } {
  const { parameters } = place();
  const [from, to] = [parameters.get('from'), parameters.get('to')];
  return from && to ? { from, to } : { from: range() };
}

/** The query of `stats` for the time of the same length before this range. Steps of minutes: finer ones are gone by then. */
export function statsBefore(more: Record<string, string> = {}): string {
  const { parameters } = place();
  const [from, to] = [parameters.get('from'), parameters.get('to')];
  if (from && to) {
    const length = Date.parse(to) - Date.parse(from);
    return 'stats' + query({ from: new Date(Date.parse(from) - length).toISOString(), to: from, step: '1m', ...more });
  }
  const seconds = SECONDS[range()] ?? 900;
  return 'stats' + query({ from: `${2 * seconds}s`, to: `${seconds}s`, step: '1m', ...more });
}
