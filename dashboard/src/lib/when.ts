// A moment as a person types it.

const CLOCK = /^(\d{1,2}):(\d{2})(?::(\d{2}))?$/;
const DATE = /^(\d{4})-(\d{2})-(\d{2})(?:[T ](\d{1,2}:\d{2}(?::\d{2})?)(?:\.\d+)?(Z|[+-]\d{2}:\d{2})?)?$/;

/** How far ahead of this computer's clock a time may lie and still be meant as today's. */
const AHEAD_MS = 60_000;

/**
 * `14:03` is today's, or yesterday's where it is still to come; a date may stand before it, and a zone behind. None where there is no such moment: a
 * browser would take 25:61 for two in the morning of the next day, and 31 February for 3 March.
 */
export function momentOf(text: string, now = new Date()): Date | null {
  const typed = text.trim();
  const date = DATE.exec(typed);
  const time = timeOf(date ? (date[4] ?? '0:00') : typed);
  if (!time) return null;
  const moment = new Date(now);
  if (date) {
    const [year, month, day] = [Number(date[1]), Number(date[2]), Number(date[3])];
    moment.setFullYear(year, month - 1, day);
    if (moment.getMonth() !== month - 1 || moment.getDate() !== day) return null;
  }
  if (date?.[5]) {
    const elsewhere = new Date(typed.replace(' ', 'T'));
    return Number.isNaN(elsewhere.getTime()) ? null : elsewhere;
  }
  moment.setHours(...time, 0);
  if (!date && moment.getTime() > now.getTime() + AHEAD_MS) moment.setDate(moment.getDate() - 1);
  return moment;
}

function timeOf(text: string): [number, number, number] | null {
  const found = CLOCK.exec(text);
  if (!found) return null;
  const [hour, minute, second] = [Number(found[1]), Number(found[2]), Number(found[3] ?? 0)];
  return hour < 24 && minute < 60 && second < 60 ? [hour, minute, second] : null;
}
