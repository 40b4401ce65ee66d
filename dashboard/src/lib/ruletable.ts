// The table of rules: which rows, in which order.

import { sum } from './format';
import type { Rule, Series, Version } from './types';

export interface Row {
  rule: Rule;
  series: Series | undefined;
  /** Checks in the range, and how many of them were refused, or would have been by a shadow rule. */
  checks: number;
  refused: number;
  /** Steps of the range of which something is known. */
  known: number;
  changed: Version | undefined;
}

export const COLUMNS = ['rule', 'checks', 'refused', 'changed'] as const;
export type SortBy = (typeof COLUMNS)[number];
export const STATES = ['refusing', 'shadow', 'idle', 'off'] as const;

export interface Wanted {
  words: string[];
  domain: string;
  owner: string;
  state: string;
}

export function rowOf(rule: Rule, series: Series | undefined, changed: Version | undefined): Row {
  const passed = sum(series?.allowed);
  const refused = rule.mode === 'shadow' ? sum(series?.shadow_refused) : sum(series?.refused);
  return { rule, series, checks: passed + refused, refused, known: (series?.allowed ?? []).filter((value) => value !== null).length, changed };
}

export const share = (row: Row) => (row.checks > 0 ? row.refused / row.checks : 0);

const IS: Record<string, (row: Row) => boolean> = {
  refusing: (row) => row.rule.mode !== 'shadow' && row.refused > 0,
  shadow: (row) => row.rule.mode === 'shadow',
  // Of a rule that nobody told of nothing is known; one without a series was not checked.
  idle: (row) => row.checks === 0 && (row.known > 0 || !row.series),
  off: (row) => row.rule.enabled === false,
};

export function filtered(rows: Row[], wanted: Wanted): Row[] {
  const text = ({ rule }: Row) => `${rule.domain}/${rule.name} ${rule.mode} ${rule.key.join(' ')} ${rule.owner ?? ''} ${rule.description ?? ''}`.toLowerCase();
  const is = IS[wanted.state] ?? (() => true);
  return rows.filter((row) => (!wanted.domain || row.rule.domain === wanted.domain) && (!wanted.owner || row.rule.owner === wanted.owner) && is(row) && wanted.words.every((word) => text(row).includes(word)));
}

/** Equal rows stay as they are written; without a column all do. */
export function sorted(rows: Row[], by: string, down: boolean): Row[] {
  const compare: Record<SortBy, (a: Row, b: Row) => number> = {
    rule: (a, b) => a.rule.name.localeCompare(b.rule.name) || a.rule.domain.localeCompare(b.rule.domain),
    checks: (a, b) => a.checks - b.checks,
    refused: (a, b) => share(a) - share(b),
    changed: (a, b) => (a.changed?.number ?? 0) - (b.changed?.number ?? 0),
  };
  const order = compare[by as SortBy];
  return order ? [...rows].sort((a, b) => (down ? -1 : 1) * order(a, b)) : rows;
}
