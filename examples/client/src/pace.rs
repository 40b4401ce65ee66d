//! How fast to call: three small machines that know no HTTP client, to be copied into one.

use std::time::Duration;

/// Spreads calls over the time until the quota is back, once little is left of it: `RateLimit: "rule";r=4;t=2`.
#[derive(Default)]
pub struct Pacer {
    pause: Duration,
}

impl Pacer {
    /// How long to wait before the next call.
    pub fn pause(&self) -> Duration {
        self.pause
    }

    /// Takes in what a response says of its limit.
    pub fn heard(&mut self, headers: &[(String, String)]) {
        let value =
            |name: &str| headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
        let parameter = |name: &str, list: &str| -> Option<u64> {
            list.split(';').find_map(|part| part.trim().strip_prefix(name)?.strip_prefix('=')?.parse().ok())
        };
        let told = value("ratelimit").and_then(|list| Some((parameter("r", list)?, parameter("t", list)?)));
        let Some((remaining, reset_after)) = told else { return };
        let quota = value("ratelimit-policy").and_then(|list| parameter("q", list)).unwrap_or(1).max(1);
        // What is left must last until all is back. With much left there is no hurry to slow down.
        let until_reset = Duration::from_secs(reset_after.max(1));
        let spread = until_reset / u32::try_from(quota).unwrap_or(u32::MAX);
        self.pause = match remaining {
            0 => spread * 2,
            left if left * 2 <= quota => spread,
            _ => Duration::ZERO,
        };
    }
}

/// Waits longer after each refusal, by a random part, and never less than the server asks for.
pub struct Backoff {
    next: Duration,
    most: Duration,
    random: Random,
}

impl Backoff {
    /// From `first` on, doubling up to `most`.
    pub fn new(first: Duration, most: Duration, seed: u64) -> Self {
        Backoff { next: first, most, random: Random(seed) }
    }

    /// How long to wait now: full jitter, so that clients refused together do not come back together.
    pub fn next(&mut self, retry_after: Option<Duration>) -> Duration {
        let jitter = self.next.mul_f64(self.random.next());
        self.next = (self.next * 2).min(self.most);
        retry_after.unwrap_or_default() + jitter
    }
}

/// Google SRE's client throttling ("Handling Overload"): of late, one number of calls was wanted and another accepted. A call is
/// dropped here with probability `max(0, (wanted - k * accepted) / (wanted + 1))`.
pub struct Throttle {
    k: f64,
    wanted: f64,
    accepted: f64,
    random: Random,
}

impl Throttle {
    /// With `k` 2, a server that accepts at least half of all calls is never throttled.
    pub fn new(k: f64, seed: u64) -> Self {
        Throttle { k, wanted: 0.0, accepted: 0.0, random: Random(seed) }
    }

    /// Whether to call at all.
    pub fn lets_pass(&mut self) -> bool {
        let drop = ((self.wanted - self.k * self.accepted) / (self.wanted + 1.0)).max(0.0);
        // Old times fade, so that a server that recovers is noticed.
        self.wanted = self.wanted * 0.99 + 1.0;
        self.accepted *= 0.99;
        self.random.next() >= drop
    }

    /// A call was made, and accepted or refused.
    pub fn heard(&mut self, accepted: bool) {
        self.accepted += f64::from(u8::from(accepted));
    }
}

/// Good enough to spread clients: xorshift. Seed it from the clock or the operating system.
struct Random(u64);

impl Random {
    /// From 0 up to, not including, 1.
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}
