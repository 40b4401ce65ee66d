// The answer to a check.

import type { TidegateError } from "./errors.js";

/** The headers of an answer that belong to the caller of the service. */
const PASSED_ON = [
  "x-ratelimit-limit",
  "x-ratelimit-remaining",
  "x-ratelimit-reset",
  "ratelimit-policy",
  "ratelimit",
  "retry-after",
];

/** Whether a request may pass, and how near its limit is. */
export interface Decision {
  readonly allowed: boolean;
  /** 200, 429, or 503 where a rule must not decide without its store. */
  readonly status: number;
  /** Who decided, such as `store`; `client_open` or `client_closed` where the failure policy did. */
  readonly source: string;
  readonly rule: string | null;
  readonly limit: number | null;
  readonly remaining: number | null;
  /** Until the full quota is back. */
  readonly resetAfterMs: number | null;
  /** Until the same request would pass; null if it passed, or never will. */
  readonly retryAfterMs: number | null;
  /** How long to wait before going on, where a leaky bucket says so. */
  readonly delayMs: number;
  readonly lease: string | null;
  /** When hits were spent: give it to `refund`. */
  readonly spent: string | null;
  /** Rate limit headers for the caller. A batch has none. */
  readonly headers: Readonly<Record<string, string>>;
  readonly message: string | null;
  /** Why the failure policy decided. */
  readonly error?: TidegateError;
}

type Json = Record<string, unknown>;

/** Whether an answer's body is a decision. */
export function isDecision(body: unknown): body is Json {
  return typeof body === "object" && body !== null && typeof (body as Json)["allowed"] === "boolean";
}

export function readDecision(body: Json, status: number, headers?: Headers): Decision {
  const text = (name: string): string | null => (typeof body[name] === "string" ? body[name] : null);
  const number = (name: string): number | null => (typeof body[name] === "number" ? body[name] : null);
  const passedOn: Record<string, string> = {};
  for (const name of PASSED_ON) {
    const value = headers?.get(name);
    if (value != null) passedOn[name] = value;
  }
  return {
    allowed: body["allowed"] === true,
    status,
    source: text("source") ?? "unknown",
    rule: text("rule"),
    limit: number("limit"),
    remaining: number("remaining"),
    resetAfterMs: number("reset_after_ms"),
    retryAfterMs: number("retry_after_ms"),
    delayMs: number("delay_ms") ?? 0,
    lease: text("lease"),
    spent: text("spent"),
    headers: passedOn,
    message: text("message"),
  };
}

/** What the failure policy says. */
export function ofFailure(allowed: boolean, error: TidegateError): Decision {
  return {
    allowed,
    status: allowed ? 200 : 503,
    source: allowed ? "client_open" : "client_closed",
    rule: null,
    limit: null,
    remaining: null,
    resetAfterMs: null,
    retryAfterMs: allowed ? null : 1000,
    delayMs: 0,
    lease: null,
    spent: null,
    headers: allowed ? {} : { "retry-after": "1" },
    message: allowed ? null : "the rate limiter cannot be asked now",
    error,
  };
}
