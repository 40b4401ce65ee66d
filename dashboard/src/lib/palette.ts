// What the command palette offers for what was typed: pages, rules, versions, callers by a bare value, and what to do to them.

import { count } from './format';
import type { Rules, Version } from './types';

/** Something to go to. */
export interface Offer {
  kind: 'page' | 'rule' | 'version' | 'caller' | 'action';
  name: string;
  /** What tells it from others of its name. */
  detail: string;
  path: string[];
  parameters: Record<string, string>;
}

export interface Known {
  pages: readonly { path: string; name: string }[];
  rules: Rules | null;
  versions: Version[];
  /** Whether the reader may change anything. */
  editor: boolean;
}

const MOST = 12;
const VERBS = { ban: 'ban', override: 'limits', unlimit: 'unlimited', reset: 'reset' } as const;
const COMMAND = /^(ban|override|unlimit|reset)\s+(\S+?(?:\s+\S+=\S+)*)(?:\s+(?:for\s+)?(\d+[mhd]))?$/i;

/** How well `text` answers to `words`: none where a word is missing, less where one begins it. */
function fit(text: string, words: string[]): number | null {
  const lower = text.toLowerCase();
  const places = words.map((word) => lower.indexOf(word));
  return places.some((place) => place < 0) ? null : places.reduce((sum, place) => sum + Math.min(place, 40), 0);
}

function ranked<T>(all: T[], text: (one: T) => string, words: string[]): T[] {
  const fits = all.map((one) => ({ one, fit: fit(text(one), words) })).filter((found): found is { one: T; fit: number } => found.fit !== null);
  return fits.sort((a, b) => a.fit - b.fit).map(({ one }) => one);
}

/** A caller as typed: attributes name one, a bare value is looked for under every attribute. */
const callerOf = (text: string): Record<string, string> => (text.includes('=') ? { key: text } : { find: text });

/** The command in this text: `ban scraper-17 1h`. */
export function commandOf(text: string): { verb: keyof typeof VERBS; caller: string; until: string | null } | null {
  const found = COMMAND.exec(text.trim());
  return found ? { verb: found[1]!.toLowerCase() as keyof typeof VERBS, caller: found[2]!, until: found[3] ?? null } : null;
}

export function offers(text: string, known: Known): Offer[] {
  const typed = text.trim();
  const words = typed.toLowerCase().split(/\s+/).filter(Boolean);
  const command = known.editor ? commandOf(typed) : null;
  const actions: Offer[] = command
    ? [{ kind: 'action', name: `${command.verb} ${command.caller}${command.until ? ` for ${command.until}` : ''}`, detail: 'asks for a reason first', path: ['keys'], parameters: { ...callerOf(command.caller), do: VERBS[command.verb], ...(command.until ? { until: command.until } : {}) } }]
    : [];
  const pages = ranked([...known.pages], (page) => page.name, words).map((page): Offer => ({ kind: 'page', name: page.name, detail: '', path: [page.path], parameters: {} }));
  if (!typed) return pages;
  const rules = ranked(known.rules?.rules ?? [], (rule) => `${rule.name} ${rule.domain} ${rule.owner ?? ''} ${rule.description ?? ''}`, words).map((rule): Offer => ({ kind: 'rule', name: rule.name, detail: rule.domain, path: ['rules', rule.domain, rule.name], parameters: {} }));
  const versions = ranked(known.versions, (version) => `v${version.number} ${version.reason} ${version.author}`, words).map((version): Offer => ({ kind: 'version', name: `v${version.number}`, detail: version.reason || `by ${version.author}`, path: ['rules', 'versions'], parameters: { v: String(version.number) } }));
  const caller: Offer[] = command || (/\s/.test(typed) && !typed.includes('=')) ? [] : [{ kind: 'caller', name: typed, detail: typed.includes('=') ? 'open this caller' : 'look for this caller', path: ['keys'], parameters: callerOf(typed) }];
  const rest = [...pages.slice(0, 3), ...rules, ...versions.slice(0, 3)];
  // A caller may have any name: it is offered last, and always.
  return [...actions, ...rest.slice(0, MOST - actions.length - caller.length), ...caller];
}

/** `3 rules` and so on, for who cannot see the list. */
export const announced = (all: Offer[]) => (all.length ? `${count(all.length)} found` : 'Nothing found');
