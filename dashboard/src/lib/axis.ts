// Labels of axes: none stands twice.

/** Labels of moments in seconds, as fine as the ticks are apart. */
export function timeLabels(ticks: number[]): string[] {
  const apart = ticks.length > 1 ? ticks[1]! - ticks[0]! : 3600;
  const clock: Intl.DateTimeFormatOptions = { hour: '2-digit', minute: '2-digit', second: apart < 60 ? '2-digit' : undefined, hour12: false };
  const day: Intl.DateTimeFormatOptions = { day: 'numeric', month: 'short' };
  return once(ticks.map((tick) => new Date(tick * 1000).toLocaleString([], apart >= 86_400 ? day : clock)));
}

/** A label that repeats the one before it says that two places of an axis are one: it is left out. */
export function once(labels: string[]): string[] {
  return labels.map((label, index) => (index > 0 && label !== '' && labels.indexOf(label) < index ? '' : label));
}
