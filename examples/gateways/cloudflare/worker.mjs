// A Cloudflare Worker in front of your service: it asks tidegate before it forwards.
//
// Variables: TIDEGATE_URL, TIDEGATE_DOMAIN, ORIGIN (your service), TIDEGATE_TOKEN (a secret: one of access.tokens), DEADLINE_MS (250).
// Without an answer in time requests pass: change `open` below to false where that must not be.

const open = true;
const NAMES = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "ratelimit-policy", "ratelimit", "retry-after"];

async function check(env, attributes) {
  try {
    const answer = await fetch(`${env.TIDEGATE_URL}/v1/check`, {
      method: "POST",
      headers: {
        "content-type": "application/json",
        ...(env.TIDEGATE_TOKEN ? { authorization: `Bearer ${env.TIDEGATE_TOKEN}` } : {}),
      },
      body: JSON.stringify({ domain: env.TIDEGATE_DOMAIN, attributes }),
      signal: AbortSignal.timeout(Number(env.DEADLINE_MS ?? 250)),
    });
    const { allowed, message, detail } = await answer.json();
    if (typeof allowed !== "boolean") throw new Error(detail ?? `status ${answer.status}`);
    const headers = NAMES.map((name) => [name, answer.headers.get(name)]).filter(([, value]) => value !== null);
    return { allowed, status: answer.status, headers, message };
  } catch (error) {
    console.warn(`tidegate: ${error.message}`);
    return { allowed: open, status: open ? 200 : 503, headers: [], message: "the rate limiter cannot be asked now" };
  }
}

export default {
  async fetch(request, env) {
    const url = new URL(request.url);
    const key = request.headers.get("x-api-key");
    const attributes = {
      method: request.method,
      path: url.pathname,
      // Cloudflare sets it, whatever the client sent.
      ip: request.headers.get("cf-connecting-ip") ?? "unknown",
      ...(key === null ? {} : { api_key: key }),
    };
    const { allowed, status, headers, message } = await check(env, attributes);
    if (!allowed) {
      const error = status === 429 ? "rate_limit_exceeded" : "store_unavailable";
      return Response.json({ status, error, message }, { status, headers: [...headers, ["content-type", "application/problem+json"]] });
    }
    const forwarded = await fetch(new Request(new URL(url.pathname + url.search, env.ORIGIN), request));
    // Its headers cannot be changed; those of a copy can.
    const answer = new Response(forwarded.body, forwarded);
    for (const [name, value] of headers) answer.headers.set(name, value);
    return answer;
  },
};
