// What the framework modules share.

import { isIP } from "node:net";
import type { Decision } from "./decision.js";
import { InvalidRequest } from "./errors.js";

/**
 * An address as tidegate's own front ends count it: of IPv6 the /64, of which one household has billions; IPv4 never as IPv6.
 */
export function clientIp(address: string | undefined): string {
  const plain = (address ?? "").split("%")[0] ?? "";
  if (isIP(plain) !== 6) return plain || "unknown";
  const groups = expanded(plain);
  if (groups.slice(0, 5).every((group) => group === 0) && groups[5] === 0xffff) {
    const [high = 0, low = 0] = groups.slice(6);
    return [high >> 8, high & 255, low >> 8, low & 255].join(".");
  }
  const network = groups.map((group, index) => (index < 4 ? group.toString(16) : "0")).join(":");
  return `${canonical(network)}/64`;
}

/** As URLs write it: RFC 5952. */
function canonical(address: string): string {
  return new URL(`http://[${address}]`).hostname.slice(1, -1);
}

function expanded(address: string): number[] {
  const [head = "", tail] = canonical(address).split("::");
  const read = (text: string): number[] => (text === "" ? [] : text.split(":").map((group) => parseInt(group, 16)));
  if (tail === undefined) return read(head);
  const [before, after] = [read(head), read(tail)];
  return [...before, ...new Array<number>(8 - before.length - after.length).fill(0), ...after];
}

export interface Answer {
  status: number;
  headers: Record<string, string>;
  body: string;
}

/** The answer to a caller who may not pass. */
export function refusal(decision: Decision): Answer {
  const closed = decision.status === 503;
  const body = {
    type: closed ? "urn:tidegate:problem:store-unavailable" : "https://iana.org/assignments/http-problem-types#quota-exceeded",
    title: closed ? "The limit cannot be checked now" : "The quota is exceeded",
    status: decision.status,
    error: closed ? "store_unavailable" : "rate_limit_exceeded",
    message: decision.message ?? "rate limit exceeded",
  };
  const headers: Record<string, string> = { "content-type": "application/problem+json", ...decision.headers };
  if (headers["retry-after"] === undefined && decision.retryAfterMs !== null) {
    headers["retry-after"] = String(Math.ceil(decision.retryAfterMs / 1000));
  }
  return { status: decision.status, headers, body: JSON.stringify(body) };
}

/**
 * The answer to a caller whose request has an attribute that cannot be checked, such as a path of 5 KB. Throws the error where
 * the mistake is the service's own.
 */
export function unreadable(error: unknown): Answer {
  if (!(error instanceof InvalidRequest) || !error.field?.startsWith("attributes")) throw error;
  const body = { title: "The request is not valid", status: 400, error: "malformed_request", message: error.message };
  return { status: 400, headers: { "content-type": "application/problem+json" }, body: JSON.stringify(body) };
}
