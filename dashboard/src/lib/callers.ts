// Who was refused, each person once: from decisions, which have all attributes of a request.

import type { AuditEntry, Decision } from './types';
import { withoutStore } from './verdict';

export interface RefusedCaller {
  domain: string;
  name: string;
  value: string;
  refused: number;
  rules: string[];
  /** Whether a failure policy refused some: that is the store's doing, not a limit's. */
  withoutStore: boolean;
}

/** Attributes that say who somebody is, before those that say where from. */
const WHO = [/^(user|account|customer|tenant|client|subject|sub|org)/i, /key|token/i, /^(ip|addr|peer)/i];

/** Its place in `WHO`, or behind all of them. */
const rankOf = (name: string) => (WHO.findIndex((pattern) => pattern.test(name)) + WHO.length + 1) % (WHO.length + 1);

/** The attributes of a request that rules count by, the most personal first. */
export function identity(attributes: Record<string, string>, keys: string[]): [string, string] | null {
  const known = keys.filter((name) => attributes[name]);
  const name = [...known].sort((a, b) => rankOf(a) - rankOf(b))[0];
  return name === undefined ? null : [name, attributes[name]!];
}

/** Refused requests by caller, most first. `keys` are the attributes that rules of a domain count by. */
export function refusedCallers(decisions: Decision[], keys: (domain: string) => string[]): RefusedCaller[] {
  const found = new Map<string, RefusedCaller>();
  for (const one of decisions) {
    const who = identity(one.attributes, keys(one.domain));
    if (one.verdict !== 'refused' || !who) continue;
    const [name, value] = who;
    const caller = found.get(`${one.domain} ${name}=${value}`) ?? { domain: one.domain, name, value, refused: 0, rules: [], withoutStore: false };
    caller.refused += one.n;
    if (withoutStore(one.source)) caller.withoutStore = true;
    else if (one.rule && !caller.rules.includes(one.rule)) caller.rules.push(one.rule);
    found.set(`${one.domain} ${name}=${value}`, caller);
  }
  return [...found.values()].sort((a, b) => b.refused - a.refused);
}

/** What was seen together with a caller, most first: its addresses, its keys, the paths it asks for. */
export interface SeenWith {
  name: string;
  values: { value: string; requests: number }[];
}

/** The other attributes of a caller's requests, those that say who it is first. */
export function seenWith(decisions: Decision[], attributes: Record<string, string>): SeenWith[] {
  const found = new Map<string, Map<string, number>>();
  for (const one of decisions) {
    for (const [name, value] of Object.entries(one.attributes)) {
      if (name in attributes) continue;
      const values = found.get(name) ?? new Map<string, number>();
      found.set(name, values.set(value, (values.get(value) ?? 0) + one.n));
    }
  }
  const most = (values: Map<string, number>) => [...values].map(([value, requests]) => ({ value, requests })).sort((a, b) => b.requests - a.requests);
  return [...found].map(([name, values]) => ({ name, values: most(values) })).sort((a, b) => rankOf(a.name) - rankOf(b.name) || a.name.localeCompare(b.name));
}

/**
 * The attributes that a caller's next request will most likely have: its own, and the others of its newest decision. Without them
 * a rule that counts by `user` and `path` would say that it does not count this caller. A hash names nobody, so none is taken.
 */
export function likeItsNewest(attributes: Record<string, string>, newest: Decision | undefined): Record<string, string> {
  const others = Object.entries(newest?.attributes ?? {}).filter(([, value]) => !isHash(value));
  return { ...Object.fromEntries(others), ...attributes };
}

/** Whether the decision log shows this value as a hash. */
export const isHash = (value: string) => /^#[0-9a-f]{16}$/.test(value);

/** The caller that a change was of; none where it was of no caller. */
export function callerOf(entry: AuditEntry): { domain: string; attributes: Record<string, string> } | null {
  const attributes = (entry.detail.attributes ?? entry.detail.when ?? {}) as Record<string, string>;
  const domain = (entry.detail.domain as string | undefined) ?? entry.target.split(/[ /]/)[0]!;
  return Object.keys(attributes).length ? { domain, attributes } : null;
}

/** Changes to this caller: every attribute that was named is one of its. */
export function changesOf(entries: AuditEntry[], domain: string, attributes: Record<string, string>): AuditEntry[] {
  const of = (entry: AuditEntry) => {
    const caller = callerOf(entry);
    return caller?.domain === domain && Object.entries(caller.attributes).every(([name, value]) => attributes[name] === value);
  };
  return entries.filter(of).sort((a, b) => b.id - a.id);
}
