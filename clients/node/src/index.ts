export { type Attributes, type Check, type CheckOptions, Client, type RefundOptions, type Settings } from "./client.js";
export type { Decision } from "./decision.js";
export { ConfigError, InvalidRequest, LeaseEnded, RateLimited, type Reason, TidegateError, Unauthorized, Unavailable } from "./errors.js";
export { clientIp } from "./middleware.js";
export { Pacer, Throttle } from "./pacing.js";
