// Middleware for Express, and whatever else calls `(req, res, next)`.

import type { IncomingMessage, ServerResponse } from "node:http";
import { type Attributes, type Client, sleep } from "./client.js";
import { clientIp, refusal, unreadable, type Answer } from "./middleware.js";

/** What is read of a request. */
export interface ExpressRequest extends IncomingMessage {
  /** Express: the address, from proxies' headers where `trust proxy` says so. */
  ip?: string;
  /** Express: also where a router is mounted. */
  originalUrl?: string;
}

export type Next = (error?: unknown) => void;
type Describe<R> = (req: R) => Attributes | null | undefined;

/** Method, path and address. */
export function requestAttributes(req: ExpressRequest): Attributes {
  const [path = "/"] = (req.originalUrl ?? req.url ?? "/").split("?");
  return { method: req.method ?? "", path, ip: clientIp(req.ip ?? req.socket.remoteAddress) };
}

/**
 * Asks before each request, sends the headers on, and holds leases until the response is sent. `attributes` describes a request to
 * the rules; null lets it pass unasked.
 */
export function rateLimit<R extends ExpressRequest = ExpressRequest>(
  client: Client,
  { attributes = requestAttributes }: { attributes?: Describe<R> } = {},
): (req: R, res: ServerResponse, next: Next) => Promise<void> {
  return async (req, res, next) => {
    try {
      const asked = attributes(req);
      if (asked == null) return next();
      const decision = await client.check(asked).catch(unreadable);
      if ("body" in decision) return send(res, decision);
      if (!decision.allowed) return send(res, refusal(decision));
      if (decision.lease !== null) res.once("close", () => void client.releaseQuietly(decision.lease));
      for (const [name, value] of Object.entries(decision.headers)) res.setHeader(name, value);
      if (decision.delayMs > 0) await sleep(decision.delayMs);
    } catch (error) {
      return next(error);
    }
    next();
  };
}

function send(res: ServerResponse, answer: Answer): void {
  res.writeHead(answer.status, answer.headers).end(answer.body);
}
