// Changes of a number in the text of a rule, as a person would make them: the rest stays as it was written.

/** `text` with the limit `from` as `to`; none where it does not say `from` in one place. */
export function withLimit(text: string, from: number, to: number): string | null {
  const patterns = [new RegExp(`(^|[^\\w.])${from}(?=\\s*/\\s*[\\w])`, 'g'), new RegExp(`((?:limit|burst):\\s*)${from}(?![\\w./])`, 'g')];
  for (const pattern of patterns) {
    if ([...text.matchAll(pattern)].length === 1) return text.replace(pattern, (_, before: string) => `${before}${to}`);
  }
  return null;
}
