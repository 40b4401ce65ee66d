// Changes of a number in the text of a rule, as a person would make them: the rest stays as it was written.

/** `text` with the limit `from` as `to`; none where it does not say `from` in one place. */
export function withLimit(text: string, from: number, to: number): string | null {
  const patterns = [new RegExp(`(^|[^\\w.])${from}(?=\\s*/\\s*[\\w])`, 'g'), new RegExp(`((?:limit|burst):\\s*)${from}(?![\\w./])`, 'g')];
  for (const pattern of patterns) {
    if ([...text.matchAll(pattern)].length === 1) return text.replace(pattern, (_, before: string) => `${before}${to}`);
  }
  return null;
}

/** Below this, too few callers were seen to suggest anything. */
const LEAST_CONFIDENCE = 90;

/**
 * A suggestion worth showing. None above a limit that refuses: those who asked for more were turned away for it, as a guesser
 * of passwords is, and a limit that lets them in protects nothing.
 */
export function worthy<S extends { limit: number; confidence_percent: number }>(suggestion: S | null, quota: number, refuses: boolean): S | null {
  if (!suggestion || suggestion.confidence_percent < LEAST_CONFIDENCE) return null;
  return refuses && suggestion.limit > quota ? null : suggestion;
}
