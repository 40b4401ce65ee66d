// One way to ask the admin API. A failure is an `ApiError` whose text says what failed and what to do.

import type { Diagnostic, Diff, Session } from './types';

const ROOT = 'admin/v1/';

export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly hint: string | null = null,
    readonly field: string | null = null,
    readonly diagnostics: Diagnostic[] = [],
    readonly conflict: { version: number; author: string; reason: string; diff: Diff } | null = null,
  ) {
    super(message);
  }
}

let csrf: string | null = null;
let onSignedOut: () => void = () => {};
/** Set while the session is over: what asks on with it would count as a guess, and be made to wait. */
let over = false;

export function whenSignedOut(then: () => void) {
  onSignedOut = then;
}

export function takeSession(session: Session | null) {
  csrf = session?.csrf ?? null;
  over = false;
}

/** From now on nothing is asked until somebody signs in. */
export function endSession() {
  over = true;
}

interface Call {
  method?: string;
  body?: unknown;
  version?: number;
  signal?: AbortSignal;
  /** How old the answer may be, in seconds: who asks as often shares it. */
  age?: number | undefined;
}

export async function call<T>(path: string, { method = 'GET', body, version, signal, age }: Call = {}): Promise<T> {
  if (over && path !== 'session') throw new ApiError(401, 'Your session has ended.', 'Sign in to go on.');
  const headers: Record<string, string> = {};
  if (body !== undefined) headers['content-type'] = 'application/json';
  if (method !== 'GET' && csrf) headers['x-csrf-token'] = csrf;
  if (age !== undefined) headers['cache-control'] = `max-age=${age}`;
  if (version !== undefined) headers['if-match'] = `"${version}"`;
  let response: Response;
  try {
    response = await fetch(ROOT + path, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      credentials: 'same-origin',
    });
  } catch (error) {
    if (error instanceof DOMException && error.name === 'AbortError') throw error;
    throw new ApiError(0, 'The server does not answer.', 'Is `tidegate serve` still running?');
  }
  if (response.status === 204) return undefined as T;
  const text = await response.text();
  let answer: any = null;
  try {
    answer = text ? JSON.parse(text) : null;
  } catch {
    // A proxy between us and the server may answer with a page of its own.
  }
  if (response.ok) return answer as T;
  if (response.status === 401 && path !== 'session') {
    over = true;
    onSignedOut();
  }
  const conflict = response.status === 412 ? answer : null;
  throw new ApiError(
    response.status,
    answer?.detail ?? answer?.title ?? `The server answered ${response.status}.`,
    answer?.hint ?? null,
    answer?.field ?? null,
    answer?.diagnostics ?? [],
    conflict,
  );
}

export const get = <T>(path: string, signal?: AbortSignal, age?: number) => call<T>(path, { signal, age });
export const post = <T>(path: string, body: unknown, version?: number, signal?: AbortSignal) =>
  call<T>(path, { method: 'POST', body, version, signal });
export const put = <T>(path: string, body: unknown, version?: number) =>
  call<T>(path, { method: 'PUT', body, version });
export const del = <T>(path: string, body?: unknown, version?: number) =>
  call<T>(path, { method: 'DELETE', body, version });

export function query(parameters: Record<string, string | number | null | undefined>): string {
  const pairs = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== '');
  const text = new URLSearchParams(pairs.map(([name, value]) => [name, String(value)])).toString();
  return text ? `?${text}` : '';
}

export const encode = encodeURIComponent;

/** Gives the reader a file. */
export function save(name: string, type: string, text: string) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  Object.assign(document.createElement('a'), { href: address, download: name }).click();
  URL.revokeObjectURL(address);
}
