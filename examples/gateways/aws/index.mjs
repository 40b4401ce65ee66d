// AWS: an API Gateway authorizer, and a wrapper for functions behind an Application Load Balancer. No dependencies: zip and upload.
//
// Environment: TIDEGATE_URL (https://…), TIDEGATE_DOMAIN, TIDEGATE_TOKEN (one of access.tokens), TIDEGATE_DEADLINE_MS (250).
// Without an answer in time requests pass: change `open` below to false where that must not be.

const open = true;

async function check(attributes, requestId) {
  const { TIDEGATE_URL, TIDEGATE_DOMAIN, TIDEGATE_TOKEN, TIDEGATE_DEADLINE_MS = "250" } = process.env;
  try {
    const answer = await fetch(`${TIDEGATE_URL}/v1/check`, {
      method: "POST",
      headers: {
        "content-type": "application/json",
        ...(TIDEGATE_TOKEN ? { authorization: `Bearer ${TIDEGATE_TOKEN}` } : {}),
      },
      // AWS may call twice for one request: the request id makes it one charge.
      body: JSON.stringify({ domain: TIDEGATE_DOMAIN, attributes, request_id: requestId }),
      signal: AbortSignal.timeout(Number(TIDEGATE_DEADLINE_MS)),
    });
    const decision = await answer.json();
    if (typeof decision.allowed !== "boolean") throw new Error(decision.detail ?? `status ${answer.status}`);
    const names = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "ratelimit-policy", "ratelimit", "retry-after"];
    const headers = Object.fromEntries(names.map((name) => [name, answer.headers.get(name)]).filter(([, value]) => value !== null));
    return { ...decision, status: answer.status, headers };
  } catch (error) {
    console.warn(`tidegate: ${error.message}`);
    return { allowed: open, status: open ? 200 : 503, headers: {} };
  }
}

/**
 * A REQUEST authorizer of an HTTP API (payload format 2.0, simple responses). Set its cache to 0 seconds, or a decision holds for all
 * requests of that time. API Gateway answers 403 to whom it refuses; a 429 needs a REST API with a gateway response for ACCESS_DENIED,
 * or the wrapper below.
 */
export async function authorizer(event) {
  const { http, requestId } = event.requestContext;
  const key = event.headers?.["x-api-key"];
  const attributes = { method: http.method, path: http.path, ip: http.sourceIp, ...(key ? { api_key: key } : {}) };
  const { allowed, headers } = await check(attributes, requestId);
  // Integrations read these as $context.authorizer.….
  const context = { remaining: headers["x-ratelimit-remaining"] ?? "", retryAfter: headers["retry-after"] ?? "" };
  return { isAuthorized: allowed, context };
}

/** Wraps a function behind a load balancer: 429 with headers, or the function's own answer with them. */
export function limited(handler) {
  return async (event, ...rest) => {
    // The load balancer writes the last one; those before it are what a client claims.
    const ip = (event.headers["x-forwarded-for"] ?? "").split(",").at(-1).trim();
    const key = event.headers["x-api-key"];
    const attributes = { method: event.httpMethod, path: event.path, ip, ...(key ? { api_key: key } : {}) };
    const { allowed, status, headers, message } = await check(attributes, event.headers["x-amzn-trace-id"]);
    if (allowed) {
      const answer = await handler(event, ...rest);
      return { ...answer, headers: { ...answer.headers, ...headers } };
    }
    return {
      statusCode: status,
      statusDescription: status === 429 ? "429 Too Many Requests" : "503 Service Unavailable",
      isBase64Encoded: false,
      headers: { ...headers, "content-type": "application/problem+json" },
      body: JSON.stringify({ status, error: status === 429 ? "rate_limit_exceeded" : "store_unavailable", message }),
    };
  };
}
