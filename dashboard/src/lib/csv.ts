// Tables as files that other programs read.

import { save } from './api';

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

/** Gives the reader these rows, the first with the names of the columns. */
export const saveCsv = (name: string, rows: Value[][]) => save(`tidegate-${name}.csv`, 'text/csv', csv(rows));

/** What a table shows, as a reader sees it, with plain spaces. */
export function rowsOf(table: HTMLTableElement): string[][] {
  const text = (one: HTMLElement) => one.innerText.replace(/[\u00a0\u2009\u202f]/g, ' ').replace(/\s*\n\s*/g, ' ').trim();
  return [...table.rows].map((row) => [...row.cells].map(text));
}
