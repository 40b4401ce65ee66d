// Tables as files that other programs read.

import { save } from './api';
import { limitInWords } from './format';
import type { Cell } from './types';

type Value = string | number | null | undefined;

/** What a spreadsheet would take for a formula. Callers write some of these values, so none may be run by who opens the file. */
const FORMULA = /^[=+\-@\t\r]/;

function cell(value: Value): string {
  if (value === null || value === undefined) return '';
  if (typeof value === 'number') return String(value);
  const text = FORMULA.test(value) ? `'${value}` : value;
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export const csv = (rows: Value[][]) => rows.map((row) => row.map(cell).join(',') + '\r\n').join('');

/** What the limits of a caller hold, as a table. */
export const saveCells = (name: string, cells: Cell[]) =>
  saveCsv(name, [['rule', 'limit', 'key', 'used', 'of', 'left', 'refused', 'retry_after_ms', 'reset_after_ms'], ...cells.map((cell) => [cell.rule, limitInWords(cell), cell.key.join(' '), cell.used, cell.limit, cell.remaining, String(cell.refused), cell.retry_after_ms, cell.reset_after_ms])]);

/** Gives the reader these rows, the first with the names of the columns. */
export const saveCsv = (name: string, rows: Value[][]) => save(`tidegate-${name}.csv`, 'text/csv', csv(rows));

/** What a table shows, as a reader sees it, with plain spaces; without what can be done in its rows. */
export function rowsOf(table: HTMLTableElement): string[][] {
  const shown = [...(table.tHead?.rows[0]?.cells ?? [])].map((head) => !head.querySelector('.visually-hidden'));
  const text = (one: HTMLElement) => one.innerText.replace(/[\u00a0\u2009\u202f]/g, ' ').replace(/\s*\n\s*/g, ' ').trim();
  return [...table.rows].map((row) => [...row.cells].filter((_, column) => shown[column] !== false).map(text));
}
