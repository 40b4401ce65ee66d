// What a caller's next request would get, in one sentence.

import { count, limitInWords, span } from './format';
import type { Cell, RuleExplanation } from './types';

/** Whether an answer was made without the store: then what cells hold is unknown. */
export const withoutStore = (source: string) => /^(fallback|overload)_/.test(source);

export interface Verdict {
  state: 'admitted' | 'refused' | 'unknown';
  text: string;
}

/** A limit that is not the rule's usual one: its tier or override. */
const which = (cell: Cell) => (cell.from && cell.from !== 'limits' ? `, ${cell.from}` : '');

export function verdictOf(rules: RuleExplanation[], cells: Cell[] | null, source: string | null): Verdict {
  const banned = rules.find((one) => one.outcome === 'banned');
  if (banned) return { state: 'refused', text: `Refused: banned on ${banned.rule}` };
  const missing = rules.find((one) => one.outcome === 'key_missing' && one.then === 'refuse');
  if (missing) return { state: 'refused', text: `Refused by ${missing.rule}: the request has no ${missing.attribute ?? 'key'}` };
  const counting = rules.filter((one) => one.outcome === 'counts');
  if (!counting.length) return { state: 'admitted', text: 'Admitted: no rule counts it' };
  if (cells === null || source === null) return { state: 'unknown', text: `${count(counting.length)} ${counting.length === 1 ? 'rule counts' : 'rules count'} it; what is left is shown to editors` };
  if (withoutStore(source)) return { state: 'unknown', text: 'Unknown: the store did not answer' };
  const enforced = cells.filter((cell) => cell.mode !== 'shadow');
  // Of several that refuse, the one that lasts longest is the one to wait for.
  const refusing = enforced.filter((cell) => cell.refused).sort((a, b) => (b.retry_after_ms ?? Infinity) - (a.retry_after_ms ?? Infinity))[0];
  if (refusing) {
    const retry = refusing.retry_after_ms === null ? '' : `, retry in ${span(refusing.retry_after_ms)}`;
    return { state: 'refused', text: `Refused by ${refusing.rule}${which(refusing)}: ${limitInWords(refusing)}${retry}` };
  }
  const nearest = [...enforced].sort((a, b) => a.remaining / a.limit - b.remaining / b.limit)[0];
  if (!nearest) return { state: 'admitted', text: 'Admitted: only shadow rules count it' };
  return { state: 'admitted', text: `Admitted: ${count(nearest.remaining)} of ${count(nearest.limit)} left under ${nearest.rule}${which(nearest)}` };
}

/** One rule on the way of a request, and what it counts. */
export interface Stop {
  rule: RuleExplanation;
  cells: Cell[];
}

/**
 * The rules that a request meets, from what everybody shares to what is most its own: by how many attributes their counters have.
 * All of them are asked at once; the order is for reading.
 */
export function inOrder(rules: RuleExplanation[], cells: Cell[]): Stop[] {
  const stops = rules.map((rule) => ({ rule, cells: cells.filter((cell) => cell.rule === rule.rule) }));
  const width = ({ cells }: Stop) => cells[0]?.key.length ?? -1;
  return stops.map((stop, index) => ({ stop, index })).sort((a, b) => width(a.stop) - width(b.stop) || a.index - b.index).map(({ stop }) => stop);
}
