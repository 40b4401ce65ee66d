// For callers of a service that is limited: when to send the next request, and whether to send it at all. Neither class knows an
// HTTP library: give them the status and headers of each answer.

import { sleep } from "./client.js";

export interface Injected {
  /** Milliseconds, never going back. */
  clock?: () => number;
  /** From 0 up to, not including, 1. */
  random?: () => number;
}

type HeaderSource = Headers | Record<string, string | string[] | undefined>;

const ITEM = /"((?:[^"\\]|\\.)*)"((?:\s*;\s*[a-z*][a-z0-9_.*-]*(?:=(?:"(?:[^"\\]|\\.)*"|:[^:]*:|[^;,"]*))?)*)/g;

/** The named items of a `RateLimit` or `RateLimit-Policy` header, with their integers. */
export function parseList(value: string): Map<string, Record<string, number>> {
  const items = new Map<string, Record<string, number>>();
  for (const [, name, text] of value.matchAll(ITEM)) {
    const numbers: Record<string, number> = {};
    for (const part of (text ?? "").split(";")) {
      const [key, number] = part.trim().split("=");
      if (key && number && /^\d+$/.test(number)) numbers[key] = Number(number);
    }
    items.set(name ?? "", numbers);
  }
  return items;
}

/**
 * Spreads requests so that few are refused; one service and caller each.
 *
 * While more than half of a quota is left nothing waits. Below that, requests are as far apart as the quota allows in the long
 * run. A refusal is followed by a pause as `Retry-After` says, and a little longer at random: clients refused together do not
 * come back together.
 */
export class Pacer {
  readonly #clock: () => number;
  readonly #random: () => number;
  /** When the next request may be sent, and how far apart those after it are. */
  #next = -Infinity;
  #interval = 0;

  constructor({ clock = () => performance.now(), random = Math.random }: Injected = {}) {
    this.#clock = clock;
    this.#random = random;
  }

  /** Takes the next place in time, and says in how many milliseconds it is. */
  reserve(): number {
    const now = this.#clock();
    const start = Math.max(now, this.#next);
    this.#next = start + this.#interval * (1 + 0.1 * this.#random());
    return start - now;
  }

  /** Waits until the next request may be sent. */
  async wait(): Promise<void> {
    const ms = this.reserve();
    if (ms > 0) await sleep(ms);
  }

  /** Takes in an answer. */
  heard(status: number, headers: HeaderSource): void {
    const interval = intervalOf(headers);
    if (interval !== undefined) this.#interval = interval;
    const now = this.#clock();
    const retryAfter = status === 429 || status === 503 ? readRetryAfter(header(headers, "retry-after")) : undefined;
    if (retryAfter !== undefined) {
      this.#next = Math.max(this.#next, now + retryAfter + (this.#interval || 1000) * this.#random());
    } else if (interval) {
      this.#next = Math.max(this.#next, now + interval);
    }
  }
}

function header(headers: HeaderSource, name: string): string | undefined {
  if (headers instanceof Headers) return headers.get(name) ?? undefined;
  const found = Object.entries(headers).find(([known]) => known.toLowerCase() === name)?.[1];
  return Array.isArray(found) ? found.join(", ") : found;
}

/** Milliseconds between requests that every reported limit bears; undefined where none is reported. */
function intervalOf(headers: HeaderSource): number | undefined {
  const left = parseList(header(headers, "ratelimit") ?? "");
  let slowest: number | undefined;
  for (const [name, policy] of parseList(header(headers, "ratelimit-policy") ?? "")) {
    const remaining = left.get(name)?.["r"];
    const quota = policy["q"];
    const span = policy["w"] ?? left.get(name)?.["t"];
    if (remaining === undefined || !quota || span === undefined) continue;
    const wanted = remaining * 2 > quota ? 0 : (span * 1000) / quota;
    slowest = Math.max(slowest ?? 0, wanted);
  }
  return slowest;
}

function readRetryAfter(value: string | undefined): number | undefined {
  if (value === undefined) return undefined;
  if (/^\d+$/.test(value)) return Number(value) * 1000;
  const date = Date.parse(value);
  return Number.isNaN(date) ? undefined : Math.max(0, date - Date.now());
}

const SLOTS = 12;

/**
 * Drops requests here that the service would most likely refuse ("Handling Overload" in Google's SRE book).
 *
 * A request is dropped with probability `max(0, (requests - k * accepts) / (requests + 1))`, both counted over the last
 * `windowMs`. With `k` 2, a service that accepts at least half is never throttled.
 */
export class Throttle {
  readonly #k: number;
  readonly #slotMs: number;
  readonly #clock: () => number;
  readonly #random: () => number;
  /** Requests and accepts of each slot of time, the newest last. */
  #slots: [number, number][] = Array.from({ length: SLOTS }, () => [0, 0]);
  #newest = 0;

  constructor({ k = 2, windowMs = 120_000, clock = () => performance.now(), random = Math.random }: Injected & { k?: number; windowMs?: number } = {}) {
    this.#k = k;
    this.#slotMs = windowMs / SLOTS;
    this.#clock = clock;
    this.#random = random;
  }

  /** Whether to send a request now. It counts as one either way. */
  allow(): boolean {
    const slot = this.#current();
    const requests = this.#slots.reduce((sum, [count]) => sum + count, 0);
    const accepts = this.#slots.reduce((sum, [, count]) => sum + count, 0);
    slot[0] += 1;
    return this.#random() >= Math.max(0, (requests - this.#k * accepts) / (requests + 1));
  }

  /** Takes in whether the service took a request that was sent. */
  heard(accepted: boolean): void {
    if (accepted) this.#current()[1] += 1;
  }

  #current(): [number, number] {
    const now = Math.floor(this.#clock() / this.#slotMs);
    for (let late = Math.min(now - this.#newest, SLOTS); late > 0; late -= 1) {
      this.#slots.shift();
      this.#slots.push([0, 0]);
    }
    this.#newest = Math.max(this.#newest, now);
    return this.#slots[SLOTS - 1]!;
  }
}
