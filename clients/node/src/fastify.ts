// A plugin for Fastify.

import type { ServerResponse } from "node:http";
import { type Attributes, type Client, sleep } from "./client.js";
import { clientIp, refusal, unreadable } from "./middleware.js";

/** What is used of Fastify; any version with these will do. */
export interface FastifyRequest {
  method: string;
  url: string;
  ip: string;
  headers: Record<string, string | string[] | undefined>;
}
export interface FastifyReply {
  raw: ServerResponse;
  code(status: number): FastifyReply;
  header(name: string, value: string): FastifyReply;
  send(body: string): FastifyReply;
}
export interface Options {
  client: Client;
  /** Describes a request to the rules; null lets it pass unasked. */
  attributes?: (request: any) => Attributes | null | undefined;
}

/** Method, path and address. Behind a proxy, set Fastify's `trustProxy`. */
export function requestAttributes(request: FastifyRequest): Attributes {
  const [path = "/"] = request.url.split("?");
  return { method: request.method, path, ip: clientIp(request.ip) };
}

/** Asks before each request, sends the headers on, and holds leases until the response is sent. */
export async function rateLimit(fastify: any, { client, attributes = requestAttributes }: Options): Promise<void> {
  fastify.addHook("onRequest", async (request: FastifyRequest, reply: FastifyReply) => {
    const asked = attributes(request);
    if (asked == null) return undefined;
    const decision = await client.check(asked).catch(unreadable);
    const answer = "body" in decision ? decision : decision.allowed ? null : refusal(decision);
    if (answer !== null) {
      for (const [name, value] of Object.entries(answer.headers)) reply.header(name, value);
      return reply.code(answer.status).send(answer.body);
    }
    if ("body" in decision) return undefined;
    if (decision.lease !== null) reply.raw.once("close", () => void client.releaseQuietly(decision.lease));
    for (const [name, value] of Object.entries(decision.headers)) reply.header(name, value);
    if (decision.delayMs > 0) await sleep(decision.delayMs);
    return undefined;
  });
}

// Fastify keeps a plugin's hooks to itself unless it says otherwise.
Object.assign(rateLimit, { [Symbol.for("skip-override")]: true, [Symbol.for("fastify.display-name")]: "tidegate" });
