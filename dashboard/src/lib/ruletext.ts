// Changes of one field in the text of a rule, as a person would make them: what is not asked for stays as it was written. What
// cannot be changed in one place is left to the reader, who has the text in front of them.

import { withLimit } from './limits';

const escaped = (text: string) => text.replace(/[.*+?^${}()|[\]\\]/g, '\\$&');

/** The first and the last line (exclusive) of a rule, where `lines` says on which line each rule of the document begins. */
export function linesOf(text: string, rules: { name: string; line: number | null }[], name: string): [number, number] | null {
  const placed = rules.filter((rule) => rule.line !== null).sort((a, b) => a.line! - b.line!);
  const at = placed.findIndex((rule) => rule.name === name);
  return at < 0 ? null : [placed[at]!.line! - 1, (placed[at + 1]?.line ?? text.split('\n').length + 1) - 1];
}

/** `text` with the lines of one rule changed; none where the change could not be made. */
export function inRule(text: string, [from, to]: [number, number], change: (rule: string) => string | null): string | null {
  const lines = text.split('\n');
  const changed = change(lines.slice(from, to).join('\n'));
  return changed === null ? null : [...lines.slice(0, from), ...(changed === '' ? [] : changed.split('\n')), ...lines.slice(to)].join('\n');
}

const isFlow = (rule: string) => /^\s*(-\s+)?\{/.test(rule);

/** Where the flow mapping or list that opens at `from` closes. */
function closing(text: string, from: number): number {
  let depth = 0;
  let quote = '';
  for (let index = from; index < text.length; index += 1) {
    const letter = text[index]!;
    if (quote) quote = letter === quote ? '' : quote;
    else if (letter === '"' || letter === "'") quote = letter;
    else if (letter === '{' || letter === '[') depth += 1;
    else if ((letter === '}' || letter === ']') && (depth -= 1) === 0) return index;
  }
  return -1;
}

/** The end of a value that begins at `from` within a flow mapping: before the comma or bracket that ends it. */
function endOfValue(text: string, from: number): number {
  for (let index = from; index < text.length; index += 1) {
    const letter = text[index]!;
    if (letter === '{' || letter === '[') index = closing(text, index);
    else if (letter === ',' || letter === '}') return index;
    if (index < 0) return -1;
  }
  return -1;
}

/** A rule with `field` as `value`, or without it; none where it is written over several lines. */
export function withField(rule: string, field: string, value: string | null): string | null {
  return isFlow(rule) ? inFlow(rule, field, value) : inBlock(rule, field, value);
}

function inFlow(rule: string, field: string, value: string | null): string | null {
  const open = rule.indexOf('{');
  const close = closing(rule, open);
  if (close < 0) return null;
  // Only fields of the rule itself, not those of what is nested in it.
  for (let index = open + 1; index < close; index += 1) {
    const letter = rule[index]!;
    if (letter === '{' || letter === '[') {
      index = closing(rule, index);
      continue;
    }
    const found = /[{,]\s*$/.test(rule.slice(open, index)) && new RegExp(`^${escaped(field)}:\\s*`).exec(rule.slice(index));
    if (!found) continue;
    const end = endOfValue(rule, index + found[0].length);
    if (end < 0) return null;
    if (value !== null) return rule.slice(0, index) + `${field}: ${value}` + rule.slice(rule.slice(0, end).trimEnd().length);
    // Its comma goes with it.
    const comma = rule[end] === ',' ? end + 1 + /^\s*/.exec(rule.slice(end + 1))![0].length : end;
    return rule[end] === ',' ? rule.slice(0, index) + rule.slice(comma) : rule.slice(0, index).replace(/,\s*$/, ' ') + rule.slice(end).trimStart();
  }
  if (value === null) return rule;
  return rule.slice(0, close).trimEnd() + `, ${field}: ${value} ` + rule.slice(close);
}

function inBlock(rule: string, field: string, value: string | null): string | null {
  const lines = rule.split('\n');
  const first = /^(\s*)(-\s+)?/.exec(lines[0]!)!;
  const indent = first[0].length;
  const own = (line: string, index: number) => (index === 0 ? line.slice(indent) : line.startsWith(' '.repeat(indent)) && line[indent] !== ' ' ? line.slice(indent) : null);
  const at = lines.findIndex((line, index) => own(line, index)?.startsWith(`${field}:`));
  if (at >= 0) {
    const rest = lines[at]!.slice(lines[at]!.indexOf(`${field}:`) + field.length + 1);
    const next = lines.slice(at + 1).find((line) => line.trim() !== '');
    const nested = next !== undefined && next.length - next.trimStart().length > indent;
    if (rest.replace(/#.*/, '').trim() === '' || nested || [...rest].filter((letter) => letter === '[' || letter === '{').length !== [...rest].filter((letter) => letter === ']' || letter === '}').length) return null;
    if (value === null) return [...lines.slice(0, at), ...lines.slice(at + 1)].join('\n');
    const comment = /\s+#.*$/.exec(rest)?.[0] ?? '';
    return [...lines.slice(0, at), `${lines[at]!.slice(0, lines[at]!.indexOf(`${field}:`))}${field}: ${value}${comment}`, ...lines.slice(at + 1)].join('\n');
  }
  if (value === null) return rule;
  return [lines[0], `${' '.repeat(indent)}${field}: ${value}`, ...lines.slice(1)].join('\n');
}

/** What a field of the rule says, where it is on one line. */
export function fieldOf(rule: string, field: string): string | null {
  if (isFlow(rule)) {
    const found = new RegExp(`[{,]\\s*${escaped(field)}:\\s*`).exec(rule);
    if (!found) return null;
    const from = found.index + found[0].length;
    const end = endOfValue(rule, from);
    return end < 0 ? null : rule.slice(from, end).trim();
  }
  const found = new RegExp(`^\\s*(?:-\\s+)?${escaped(field)}:[ \\t]*(.*)$`, 'm').exec(rule);
  const value = found?.[1]!.replace(/\s+#.*$/, '').trim();
  return value || null;
}

/** A rule with the limit `from` of a tier as `to`; `of` is empty for its usual limits. */
export function withLimitOf(rule: string, of: string, from: number, to: number): string | null {
  const written = of === 'experiment' ? 'experiment' : of || 'limits';
  // The limits of an experiment or a single key are no others' limits.
  const depth = (at: number) => [...rule.slice(0, at)].reduce((sum, letter) => sum + (letter === '{' ? 1 : letter === '}' ? -1 : 0), 0);
  const deepest = of && of !== 'experiment' ? Infinity : isFlow(rule) ? 1 : 0;
  const found = [...rule.matchAll(new RegExp(`(^|[\\s{,])${escaped(written)}:\\s*(?=[[{])`, 'gm'))].find((one) => depth(one.index + one[1]!.length) <= deepest);
  if (!found) return withLimit(rule, from, to);
  const open = found.index + found[0].length;
  const end = closing(rule, open) + 1;
  if (end <= 0) return null;
  const changed = withLimit(rule.slice(open, end), from, to);
  return changed === null ? null : rule.slice(0, open) + changed + rule.slice(end);
}

/** The limits of a rule's experiment, as they are written: `[90/minute]`. */
export function experimentLimits(rule: string): string | null {
  const experiment = fieldOf(rule, 'experiment');
  const at = experiment?.search(/limits:\s*\[/) ?? -1;
  if (!experiment || at < 0) return null;
  const open = experiment.indexOf('[', at);
  const end = closing(experiment, open);
  return end < 0 ? null : experiment.slice(open, end + 1);
}
