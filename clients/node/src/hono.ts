// Middleware for Hono, on Node and elsewhere.

import { type Attributes, type Client, sleep } from "./client.js";
import { clientIp, refusal, unreadable } from "./middleware.js";

/** What is used of Hono's context; any version with these will do. */
export interface HonoContext {
  req: { method: string; path: string; header(name: string): string | undefined };
  env: unknown;
  res: Response;
  header(name: string, value: string): void;
  newResponse(body: string, status: any, headers: Record<string, string>): Response;
}

/** Method, path and, on Node, the address of the connection. Elsewhere pass `attributes` that know the client's. */
export function requestAttributes(context: HonoContext): Attributes {
  const env = context.env as { incoming?: { socket?: { remoteAddress?: string } } } | undefined;
  const address = env?.incoming?.socket?.remoteAddress;
  const ip = address === undefined ? {} : { ip: clientIp(address) };
  return { method: context.req.method, path: context.req.path, ...ip };
}

/** Asks before each request, sends the headers on, and holds leases until the response is sent. */
export function rateLimit(
  client: Client,
  { attributes = requestAttributes }: { attributes?: (context: any) => Attributes | null | undefined } = {},
): (context: any, next: () => Promise<void>) => Promise<Response | void> {
  return async (context: HonoContext, next) => {
    const asked = attributes(context);
    if (asked == null) return next();
    const decision = await client.check(asked).catch(unreadable);
    const answer = "body" in decision ? decision : decision.allowed ? null : refusal(decision);
    if (answer !== null) return context.newResponse(answer.body, answer.status, answer.headers);
    if ("body" in decision) return undefined;
    if (decision.delayMs > 0) await sleep(decision.delayMs);
    const { lease } = decision;
    try {
      await next();
    } catch (error) {
      await client.releaseQuietly(lease);
      throw error;
    }
    for (const [name, value] of Object.entries(decision.headers)) context.res.headers.set(name, value);
    if (lease === null) return undefined;
    const { body } = context.res;
    if (body === null) return client.releaseQuietly(lease);
    const { status, statusText, headers } = context.res;
    context.res = new Response(ended(body, () => client.releaseQuietly(lease)), { status, statusText, headers });
    return undefined;
  };
}

/** `body`, with a call when it has ended, failed or nobody reads it any more. */
function ended(body: ReadableStream<Uint8Array>, done: () => Promise<void>): ReadableStream<Uint8Array> {
  const reader = body.getReader();
  return new ReadableStream({
    async pull(controller) {
      try {
        const { done: last, value } = await reader.read();
        if (!last) return controller.enqueue(value);
        await done();
        controller.close();
      } catch (error) {
        await done();
        controller.error(error);
      }
    },
    async cancel(reason) {
      await done();
      await reader.cancel(reason);
    },
  });
}
