// Who was refused, each person once: from decisions, which have all attributes of a request.

import type { Decision } from './types';

export interface RefusedCaller {
  domain: string;
  name: string;
  value: string;
  refused: number;
  rules: string[];
}

/** Attributes that say who somebody is, before those that say where from. */
const WHO = [/^(user|account|customer|tenant|client|subject|sub|org)/i, /key|token/i, /^(ip|addr|peer)/i];

/** The attributes of a request that rules count by, the most personal first. */
export function identity(attributes: Record<string, string>, keys: string[]): [string, string] | null {
  const known = keys.filter((name) => attributes[name]);
  const rank = (name: string) => (WHO.findIndex((pattern) => pattern.test(name)) + WHO.length + 1) % (WHO.length + 1);
  const name = [...known].sort((a, b) => rank(a) - rank(b))[0];
  return name === undefined ? null : [name, attributes[name]!];
}

/** Refused requests by caller, most first. `keys` are the attributes that rules of a domain count by. */
export function refusedCallers(decisions: Decision[], keys: (domain: string) => string[]): RefusedCaller[] {
  const found = new Map<string, RefusedCaller>();
  for (const one of decisions) {
    const who = identity(one.attributes, keys(one.domain));
    if (one.verdict !== 'refused' || !who) continue;
    const [name, value] = who;
    const caller = found.get(`${one.domain} ${name}=${value}`) ?? { domain: one.domain, name, value, refused: 0, rules: [] };
    caller.refused += one.n;
    if (one.rule && !caller.rules.includes(one.rule)) caller.rules.push(one.rule);
    found.set(`${one.domain} ${name}=${value}`, caller);
  }
  return [...found.values()].sort((a, b) => b.refused - a.refused);
}
