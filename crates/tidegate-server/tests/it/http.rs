//! What HTTP clients rely on, line by line; the numbers are worked out by hand.

mod batch;
mod check;
mod idempotency;
mod json;
mod leases;
mod mistakes;
mod openapi;
mod pages;
mod refunds;
mod slow;
mod takes;
mod utilization;

/// Three hits a minute for each user, in a window that begins when the tests do.
const PER_USER: &str = "
domain: api
rules:
  - { name: per-user, key: [user], limits: [{ algorithm: fixed_window, limit: 3, window: 1m }] }
";
