// What decisions have in common, to filter and to rank by.

import type { Decision } from './types';

export interface Facet {
  name: string;
  values: { value: string; requests: number; refused: number }[];
}

/** Facets that every decision has; the others are its attributes. */
const OWN: Record<string, (one: Decision) => string> = {
  verdict: (one) => one.verdict,
  rule: (one) => one.rule ?? 'none',
  node: (one) => one.node,
};

const valueOf = (one: Decision, name: string): string | undefined => OWN[name]?.(one) ?? one.attributes[name];

/** Every name that decisions can be ranked by. */
export const facetNames = (decisions: Decision[]) => [...Object.keys(OWN), ...new Set(decisions.flatMap((one) => Object.keys(one.attributes)))];

/** How many requests have each value of this facet, and how many of them were refused, most first. */
export function facetOf(decisions: Decision[], name: string): Facet {
  const found = new Map<string, { value: string; requests: number; refused: number }>();
  for (const one of decisions) {
    const value = valueOf(one, name);
    if (value === undefined) continue;
    const known = found.get(value) ?? { value, requests: 0, refused: 0 };
    known.requests += one.n;
    if (one.verdict === 'refused') known.refused += one.n;
    found.set(value, known);
  }
  return { name, values: [...found.values()].sort((a, b) => b.requests - a.requests || a.value.localeCompare(b.value)) };
}

/** Facets worth choosing from: those with more than one value, and not one for nearly every decision. */
export function facets(decisions: Decision[]): Facet[] {
  const all = facetNames(decisions).map((name) => facetOf(decisions, name));
  return all.filter(({ name, values }) => name in OWN || (values.length > 1 && values.length <= decisions.length / 2));
}
