// The client. Requests may be made at once; connections are kept by the runtime's fetch.

import { type Decision, isDecision, ofFailure, readDecision } from "./decision.js";
import { ConfigError, InvalidRequest, LeaseEnded, RateLimited, type TidegateError, Unauthorized, Unavailable } from "./errors.js";

export type Attributes = Readonly<Record<string, string>>;

export interface Settings {
  /** Whose rules apply, unless a call names another. */
  domain: string;
  /** One of the server's `access.tokens`. */
  token?: string;
  /** Milliseconds that a call may take, retries included: 250 by default. */
  deadlineMs?: number;
  /** Without an answer in time, `open` lets pass, `closed` refuses, `throw` (the default) throws. */
  onFailure?: "open" | "closed" | "throw";
  /** How often to ask again, within the deadline. Checks then carry a request id, so none is charged twice. */
  retries?: number;
  /** Called with each error that the failure policy hides; by default one warning in ten seconds is printed. */
  onError?: (error: TidegateError) => void;
  /** Another fetch, such as undici's with an agent of your own (certificates, pool sizes). */
  fetch?: typeof globalThis.fetch;
}

export interface CheckOptions {
  /** Hits to spend: 1 by default; 0 looks without spending. */
  cost?: number;
  domain?: string;
  /** A retry within a minute with the same one gets the first answer. */
  requestId?: string;
}

export interface Check extends CheckOptions {
  attributes: Attributes;
}

export interface RefundOptions {
  /** `spent` of the decision: hits go back into the window that was charged. */
  spent?: string | null;
  domain?: string;
  requestId?: string;
}

/** A question to the server, and how its answer is read. */
interface Call<T> {
  path: string;
  /** Undefined is a GET. */
  payload?: unknown;
  read: (status: number, body: unknown, headers: Headers) => T;
  /** The answer of the failure policy; without one, errors are thrown. */
  fallback?: (allowed: boolean, error: TidegateError) => T;
  /** Whether asking twice does no harm. */
  repeatable: boolean;
}

/** Milliseconds between two warnings about failures. */
const QUIET = 10_000;

export class Client {
  readonly #base: string;
  readonly #domain: string;
  readonly #token: string | undefined;
  readonly #deadlineMs: number;
  readonly #onFailure: "open" | "closed" | "throw";
  readonly #retries: number;
  readonly #onError: (error: TidegateError) => void;
  readonly #fetch: typeof globalThis.fetch;
  #warnedAt = -Infinity;

  /** @param url such as `http://127.0.0.1:8080` */
  constructor(url: string, settings: Settings) {
    this.#base = readAddress(url);
    this.#domain = settings.domain;
    this.#token = settings.token;
    this.#deadlineMs = settings.deadlineMs ?? 250;
    this.#onFailure = settings.onFailure ?? "throw";
    this.#retries = settings.retries ?? 0;
    this.#onError = settings.onError ?? ((error) => this.#warn(error));
    this.#fetch = settings.fetch ?? globalThis.fetch;
    if (!(this.#deadlineMs > 0)) throw new ConfigError(`deadlineMs must be above 0, not ${this.#deadlineMs}`);
    if (!(this.#retries >= 0)) throw new ConfigError(`retries must not be negative, not ${this.#retries}`);
    if (!["open", "closed", "throw"].includes(this.#onFailure)) {
      throw new ConfigError(`onFailure must be open, closed or throw, not ${this.#onFailure}`);
    }
    if (this.#token !== undefined && !/^[\x21-\x7e]+$/.test(this.#token)) {
      throw new ConfigError("token has characters that a header cannot hold");
    }
  }

  /** Decides one request, and spends its cost if it passes. */
  check(attributes: Attributes, options: CheckOptions = {}): Promise<Decision> {
    const payload = this.#payload({ attributes, ...options });
    return this.#run({
      path: "/v1/check",
      payload,
      read: (status, body, headers) => {
        if (!isDecision(body)) throw strange("no decision");
        return readDecision(body, status, headers);
      },
      fallback: ofFailure,
      repeatable: "request_id" in payload,
    });
  }

  /** Decides several requests in one call, each on its own. */
  batch(checks: readonly Check[]): Promise<Decision[]> {
    const payloads = checks.map((check) => this.#payload(check));
    return this.#run({
      path: "/v1/check/batch",
      payload: { checks: payloads },
      read: (_, body) => {
        const decisions: unknown = (body as { decisions?: unknown }).decisions;
        if (!Array.isArray(decisions)) throw strange("no decisions");
        return decisions.map((one: unknown) => {
          if (!isDecision(one)) throw strange("no decision");
          const refused = one["error"] === "store_unavailable" ? 503 : 429;
          return readDecision(one, one["allowed"] ? 200 : refused);
        });
      },
      fallback: (allowed, error) => payloads.map(() => ofFailure(allowed, error)),
      repeatable: payloads.every((payload) => "request_id" in payload),
    });
  }

  /**
   * Spends an amount that is known only afterwards, such as tokens of an answer. Rules with `over: debt` spend it even where
   * less is left; others refuse, and spend nothing.
   */
  charge(attributes: Attributes, amount: number, options: Omit<CheckOptions, "cost"> = {}): Promise<Decision> {
    return this.check(attributes, { ...options, cost: amount });
  }

  /** Gives hits back. */
  refund(attributes: Attributes, amount = 1, options: RefundOptions = {}): Promise<void> {
    const requestId = this.#requestId(options.requestId);
    const payload = {
      domain: options.domain ?? this.#domain,
      attributes,
      amount,
      ...(options.spent == null ? {} : { spent: options.spent }),
      ...(requestId === undefined ? {} : { request_id: requestId }),
    };
    // Hits that are not given back stay spent, which is the safe side: neither policy needs to stop the caller.
    const repeatable = requestId !== undefined;
    return this.#run({ path: "/v1/refund", payload, read: () => undefined, fallback: () => undefined, repeatable });
  }

  /** What is left under every rule that matches; spends nothing. */
  usage(attributes: Attributes, options: { domain?: string } = {}): Promise<unknown> {
    const payload = { domain: options.domain ?? this.#domain, attributes };
    return this.#run({ path: "/v1/usage", payload, read: (_, body) => body, repeatable: true });
  }

  /** Ends a lease. Twice does no harm. */
  release(lease: string): Promise<void> {
    const read = (): undefined => undefined;
    return this.#run({ path: "/v1/release", payload: { lease }, read, fallback: read, repeatable: true });
  }

  /** Gives a lease another time to live; throws LeaseEnded where it is over. */
  renew(lease: string): Promise<void> {
    const read = (): undefined => undefined;
    return this.#run({ path: "/v1/renew", payload: { lease }, read, fallback: read, repeatable: true });
  }

  /** Throws unless the server can be reached, shows the right certificate and takes the token. */
  ping(): Promise<void> {
    // Not /healthz: that needs no token, so it would not find a wrong one.
    return this.#run({ path: "/openapi.json", read: () => undefined, repeatable: true });
  }

  /** Holds a concurrency slot while `work` runs; throws RateLimited where none is free. */
  async withLease<T>(attributes: Attributes, work: (decision: Decision) => Promise<T> | T, options: CheckOptions = {}): Promise<T> {
    const decision = await this.check(attributes, options);
    if (!decision.allowed) throw new RateLimited(decision);
    try {
      return await work(decision);
    } finally {
      await this.releaseQuietly(decision.lease);
    }
  }

  /** Ends a lease, if there is one. An error is reported, not thrown: the lease ends with its time to live. */
  async releaseQuietly(lease: string | null): Promise<void> {
    if (lease === null) return;
    try {
      await this.release(lease);
    } catch (error) {
      this.#onError(error as TidegateError);
    }
  }

  /**
   * Checks until allowed, waiting as the server says and a little longer, at most `waitMs` in all; throws RateLimited where
   * that would take longer.
   */
  async acquire(attributes: Attributes, waitMs: number, options: CheckOptions = {}): Promise<Decision> {
    const until = performance.now() + waitMs;
    for (;;) {
      const decision = await this.check(attributes, options);
      if (decision.allowed) {
        if (decision.delayMs > 0) await sleep(decision.delayMs);
        return decision;
      }
      const retry = decision.retryAfterMs;
      const pause = retry === null ? Infinity : retry * (1 + 0.1 * Math.random()) + 10 * Math.random();
      if (performance.now() + pause > until) throw new RateLimited(decision);
      await sleep(pause);
    }
  }

  #requestId(given: string | undefined): string | undefined {
    return given ?? (this.#retries > 0 ? crypto.randomUUID() : undefined);
  }

  #payload(check: Check): Record<string, unknown> {
    const requestId = this.#requestId(check.requestId);
    return {
      domain: check.domain ?? this.#domain,
      attributes: check.attributes,
      cost: check.cost ?? 1,
      ...(requestId === undefined ? {} : { request_id: requestId }),
    };
  }

  #warn(error: TidegateError): void {
    const now = performance.now();
    if (now - this.#warnedAt < QUIET) return;
    this.#warnedAt = now;
    console.warn(`tidegate: fails ${this.#onFailure}: ${error.message}`);
  }

  async #run<T>(call: Call<T>): Promise<T> {
    try {
      return await this.#ask(call);
    } catch (error) {
      const hidden = error instanceof Unavailable || error instanceof Unauthorized;
      if (!hidden || call.fallback === undefined || this.#onFailure === "throw") throw error;
      this.#onError(error);
      return call.fallback(this.#onFailure === "open", error);
    }
  }

  async #ask<T>(call: Call<T>): Promise<T> {
    const until = performance.now() + this.#deadlineMs;
    for (let tries = 1 + (call.repeatable ? this.#retries : 0); ; ) {
      // Each try gets an equal part of what is left, or the first would use it all.
      const part = (until - performance.now()) / tries;
      try {
        return await this.#exchange(call, Math.max(1, part));
      } catch (error) {
        tries -= 1;
        if (!(error instanceof Unavailable) || tries === 0 || performance.now() >= until) throw error;
        await sleep(Math.min(20 * Math.random(), Math.max(0, until - performance.now())));
      }
    }
  }

  async #exchange<T>(call: Call<T>, withinMs: number): Promise<T> {
    const headers: Record<string, string> = { accept: "application/json" };
    if (this.#token !== undefined) headers["authorization"] = `Bearer ${this.#token}`;
    const init: RequestInit = { headers, redirect: "manual", signal: AbortSignal.timeout(Math.ceil(withinMs)) };
    if (call.payload !== undefined) {
      init.method = "POST";
      init.body = JSON.stringify(call.payload);
      headers["content-type"] = "application/json";
    }
    let response: Response;
    let text: string;
    try {
      response = await this.#fetch(this.#base + call.path, init);
      text = await response.text();
    } catch (error) {
      throw explained(error, this.#base, this.#deadlineMs);
    }
    return call.read(response.status, readBody(response.status, text), response.headers);
  }
}

function readAddress(url: string): string {
  const hint = "expected a URL such as http://127.0.0.1:8080";
  let parsed: URL;
  try {
    parsed = new URL(url);
  } catch {
    throw new ConfigError(`${JSON.stringify(url)} is not an address; ${hint}`);
  }
  if (!["http:", "https:"].includes(parsed.protocol) || parsed.hostname === "") {
    throw new ConfigError(`${JSON.stringify(url)} is not an address; ${hint}`);
  }
  if (parsed.username !== "" || parsed.search !== "" || parsed.hash !== "") {
    throw new ConfigError(`${parsed.origin}: more than an address; ${hint}, and the token apart`);
  }
  return parsed.origin + parsed.pathname.replace(/\/+$/, "");
}

/** The body of an answer that is one; otherwise throws what it means. */
function readBody(status: number, text: string): unknown {
  if (status === 401 || status === 403) {
    throw new Unauthorized(`the server refuses the token (${status}): set token to one of access.tokens`);
  }
  let body: unknown;
  try {
    body = JSON.parse(text);
  } catch {
    throw strange(`status ${status} without JSON`);
  }
  if (typeof body !== "object" || body === null) throw strange(`status ${status} without JSON`);
  if (status === 200 || isDecision(body)) return body;
  const problem = body as { detail?: string; message?: string; field?: string; hint?: string };
  const detail = problem.detail ?? problem.message ?? `status ${status}`;
  if (status === 410) throw new LeaseEnded(detail);
  if (status >= 500 || status === 408 || status === 429) {
    throw new Unavailable(`the server answered ${status}: ${detail}`, "server");
  }
  const message = problem.hint === undefined ? detail : `${detail}; ${problem.hint}`;
  throw new InvalidRequest(message, status, problem.field, problem.hint);
}

function strange(what: string): Unavailable {
  return new Unavailable(`the server's answer has ${what}: is it tidegate's HTTP listener?`, "protocol");
}

/** What fetch throws, in words of ours. */
function explained(error: unknown, base: string, deadlineMs: number): Unavailable {
  const options = { cause: error };
  if (error instanceof Error && error.name === "TimeoutError") {
    return new Unavailable(`${base} did not answer within ${deadlineMs} ms`, "timeout", options);
  }
  const cause = error instanceof Error && error.cause instanceof Error ? error.cause : error;
  const message = cause instanceof Error ? cause.message || String((cause as { code?: unknown }).code ?? cause.name) : String(cause);
  const code = String((cause as { code?: unknown } | null)?.code ?? "");
  if (/CERT|TLS|SSL|SELF_SIGNED|VERIFY/.test(code)) {
    const hint = "NODE_EXTRA_CA_CERTS or a fetch of your own names the authority that signed its certificate";
    return new Unavailable(`cannot trust ${base}: ${message}; ${hint}`, "tls", options);
  }
  if (/^HPE_|UND_ERR_RES|UND_ERR_HEADERS_OVERFLOW/.test(code)) {
    return new Unavailable(`${base} sent something that is not HTTP: ${message}`, "protocol", options);
  }
  return new Unavailable(`cannot reach ${base}: ${message}`, "unreachable", options);
}

export function sleep(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
