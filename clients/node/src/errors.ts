// What can go wrong, split by what the caller does next. A refusal by a limit is a decision, not an error.

import type { Decision } from "./decision.js";

/** Base of every error of this package. */
export class TidegateError extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** A setting is wrong, such as the address. Thrown when the client is made. */
export class ConfigError extends TidegateError {}

export type Reason = "unreachable" | "timeout" | "tls" | "protocol" | "server";

/** No decision came in time. The failure policy applies. */
export class Unavailable extends TidegateError {
  constructor(message: string, readonly reason: Reason, options?: ErrorOptions) {
    super(message, options);
  }
}

/** The server refuses the token, or wants one. The failure policy applies. */
export class Unauthorized extends TidegateError {}

/** The server cannot read the request, or has no such domain. Never hidden by the failure policy. */
export class InvalidRequest extends TidegateError {
  constructor(message: string, readonly status: number, readonly field?: string, readonly hint?: string) {
    super(message);
  }
}

/** The lease is over: released, or older than its time to live. */
export class LeaseEnded extends TidegateError {}

/** Thrown by `withLease` and `acquire` where a limit refuses; `decision` says which and until when. */
export class RateLimited extends TidegateError {
  constructor(readonly decision: Decision) {
    const wait = decision.retryAfterMs === null ? "" : `, try again in ${decision.retryAfterMs} ms`;
    super(`refused by ${decision.rule ?? decision.source}${wait}`);
  }
}
