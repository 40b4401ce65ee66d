//! For callers of a service that is limited: when to send the next request, and whether to send it at all.
//!
//! Neither type knows an HTTP client: give them the status and headers of each answer.

use std::time::Duration;

use http::header::{DATE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, StatusCode};
use parking_lot::Mutex;
use tidegate_core::{Micros, Timestamp};

use crate::clock::Uptime;
use crate::random;

/// Spreads requests so that few are refused. Threads may share one; one for each service and caller.
///
/// While more than half of a quota is left nothing waits. Below that, requests are as far apart as the quota allows in the long
/// run. A refusal is followed by a pause as `Retry-After` says, and a little longer at random: clients that were refused together do
/// not come back together.
///
/// ```no_run
/// # async fn example(send: impl AsyncFn() -> http::Response<()>) {
/// let pacer = tidegate_client::Pacer::new();
/// pacer.wait().await;
/// let answer = send().await;
/// pacer.heard(answer.status(), answer.headers());
/// # }
/// ```
#[derive(Debug)]
pub struct Pacer {
    clock: Uptime,
    pace: Mutex<Pace>,
}

/// When the next request may be sent, and how far apart those after it are.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    next: Timestamp,
    interval: Micros,
}

impl Default for Pacer {
    fn default() -> Self {
        Self::new()
    }
}

impl Pacer {
    /// One that has heard nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Pacer { clock: Uptime::begin(), pace: Mutex::default() }
    }

    /// Takes the next place in time, and returns how long it is until then.
    #[must_use]
    pub fn reserve(&self) -> Duration {
        self.pace.lock().reserve(self.clock.now(), random::fraction()).into()
    }

    /// Waits until the next request may be sent.
    pub async fn wait(&self) {
        tokio::time::sleep(self.reserve()).await;
    }

    /// Takes in an answer.
    pub fn heard(&self, status: StatusCode, headers: &HeaderMap) {
        self.pace.lock().heard(self.clock.now(), status, headers, random::fraction());
    }
}

impl Pace {
    fn reserve(&mut self, now: Timestamp, random: f64) -> Micros {
        let start = self.next.max(now);
        self.next = start + scaled(self.interval, 1.0 + 0.1 * random);
        start.since(now)
    }

    fn heard(&mut self, now: Timestamp, status: StatusCode, headers: &HeaderMap, random: f64) {
        let interval = interval_of(headers);
        self.interval = interval.unwrap_or(self.interval);
        let is_refused = status == StatusCode::TOO_MANY_REQUESTS || status == StatusCode::SERVICE_UNAVAILABLE;
        let pause = match retry_after(headers).filter(|_| is_refused) {
            Some(after) => {
                let jitter = if self.interval == Micros::ZERO { Micros::from_secs(1) } else { self.interval };
                after + scaled(jitter, random)
            }
            None => interval.unwrap_or(Micros::ZERO),
        };
        if pause > Micros::ZERO {
            self.next = self.next.max(now + pause);
        }
    }
}

fn scaled(span: Micros, by: f64) -> Micros {
    // A pause of weeks loses microseconds.
    Micros::new((span.get() as f64 * by) as u64)
}

/// The time between requests that every reported limit bears; none where none is reported.
fn interval_of(headers: &HeaderMap) -> Option<Micros> {
    let left = items_of(headers, "ratelimit");
    let policies = items_of(headers, "ratelimit-policy");
    let intervals = policies.iter().filter_map(|(name, policy)| {
        let (_, left) = left.iter().find(|(of, _)| of == name)?;
        let (remaining, quota) = (number(left, "r")?, number(policy, "q").filter(|quota| *quota > 0)?);
        let seconds = number(policy, "w").or_else(|| number(left, "t"))?;
        let much_is_left = remaining.saturating_mul(2) > quota;
        Some(if much_is_left { Micros::ZERO } else { Micros::new(seconds.saturating_mul(1_000_000) / quota) })
    });
    intervals.max()
}

/// As a number of seconds, or as a date, which is compared with that of the answer: no clock is needed.
fn retry_after(headers: &HeaderMap) -> Option<Micros> {
    let text = |value: &HeaderValue| value.to_str().ok().map(str::to_owned);
    let value = headers.get(RETRY_AFTER).and_then(text)?;
    if let Ok(seconds) = value.trim().parse::<u32>() {
        return Some(Micros::from_secs(u64::from(seconds)));
    }
    let at = httpdate::parse_http_date(&value).ok()?;
    let sent = httpdate::parse_http_date(&headers.get(DATE).and_then(text)?).ok()?;
    let after = at.duration_since(sent).unwrap_or_default();
    Some(Micros::from_secs(after.as_secs()))
}

/// A name, and its parameters that are whole numbers.
type Item = (String, Vec<(String, u64)>);

fn number(parameters: &[(String, u64)], name: &str) -> Option<u64> {
    parameters.iter().find(|(key, _)| key == name).map(|(_, number)| *number)
}

/// The named items of a `RateLimit` or `RateLimit-Policy` header.
fn items_of(headers: &HeaderMap, name: &str) -> Vec<Item> {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| split(value, ',')).filter_map(item).collect()
}

/// `"name";q=10;w=60`.
fn item(text: &str) -> Option<Item> {
    let mut parts = split(text, ';').into_iter();
    let name = parts.next()?.trim().strip_prefix('"')?.strip_suffix('"')?;
    let parameters = parts.filter_map(|part| {
        let (key, value) = part.trim().split_once('=')?;
        Some((key.to_owned(), value.parse().ok()?))
    });
    Some((name.to_owned(), parameters.collect()))
}

/// The parts between separators, of which those in quoted strings are none.
fn split(text: &str, separator: char) -> Vec<&str> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    let parts = text.split(move |c: char| {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' if is_quoted => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            _ => return c == separator && !is_quoted,
        }
        false
    });
    parts.collect()
}

/// Drops requests here that the service would most likely refuse ("Handling Overload" in Google's SRE book).
///
/// A request is dropped with probability `max(0, (requests - k * accepts) / (requests + 1))`, both counted over the last `window`.
/// With a `k` of 2, a service that accepts at least half is never throttled.
#[derive(Debug)]
pub struct Throttle {
    k: f64,
    slot: Micros,
    clock: Uptime,
    counts: Mutex<Counts>,
}

const SLOTS: usize = 12;

/// Requests and accepts of each slot of time.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    slots: [(u64, u64); SLOTS],
    newest: u64,
}

impl Throttle {
    /// `k` is usually 2, and `window` two minutes.
    #[must_use]
    pub fn new(k: f64, window: Duration) -> Self {
        let micros = u64::try_from(window.as_micros()).unwrap_or(u64::MAX);
        let slot = Micros::new((micros / SLOTS as u64).max(1));
        Throttle { k, slot, clock: Uptime::begin(), counts: Mutex::default() }
    }

    /// Whether to send a request now. It counts as one either way.
    #[must_use]
    pub fn allows(&self) -> bool {
        self.counts.lock().allows(self.number_of(self.clock.now()), self.k, random::fraction())
    }

    /// Takes in whether the service took a request that was sent.
    pub fn heard(&self, accepted: bool) {
        if accepted {
            self.counts.lock().current(self.number_of(self.clock.now())).1 += 1;
        }
    }

    fn number_of(&self, now: Timestamp) -> u64 {
        now.as_micros() / self.slot.get()
    }
}

impl Counts {
    fn allows(&mut self, number: u64, k: f64, random: f64) -> bool {
        self.current(number);
        let (requests, accepts) =
            self.slots.iter().fold((0, 0), |(all, taken), (one, of)| (all + one, taken + of));
        self.current(number).0 += 1;
        random >= ((requests as f64 - k * accepts as f64) / (requests as f64 + 1.0)).max(0.0)
    }

    fn current(&mut self, number: u64) -> &mut (u64, u64) {
        for late in 0..number.saturating_sub(self.newest).min(SLOTS as u64) {
            self.slots[((number - late) % SLOTS as u64) as usize] = (0, 0);
        }
        self.newest = self.newest.max(number);
        &mut self.slots[(self.newest % SLOTS as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(1_000_000_000);

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    fn remaining(remaining: u64) -> Vec<(&'static str, String)> {
        vec![
            ("ratelimit-policy", r#""a";q=10;w=60"#.to_owned()),
            ("ratelimit", format!(r#""a";r={remaining};t=9"#)),
        ]
    }

    fn heard(pace: &mut Pace, status: u16, pairs: &[(&'static str, String)], random: f64) {
        let pairs: Vec<_> = pairs.iter().map(|(name, value)| (*name, value.as_str())).collect();
        pace.heard(NOW, StatusCode::from_u16(status).unwrap(), &headers(&pairs), random);
    }

    #[test]
    fn nothing_waits_while_much_is_left() {
        let mut pace = Pace::default();
        heard(&mut pace, 200, &remaining(6), 0.0);
        assert_eq!([(); 2].map(|()| pace.reserve(NOW, 0.0)), [Micros::ZERO; 2]);
    }

    #[test]
    fn requests_are_spread_once_half_is_spent() {
        let mut pace = Pace::default();
        heard(&mut pace, 200, &remaining(5), 0.0);
        assert_eq!([(); 3].map(|()| pace.reserve(NOW, 0.0)), [6, 12, 18].map(Micros::from_secs));
        assert_eq!(pace.reserve(NOW + Micros::from_secs(18), 0.0), Micros::from_secs(6));
    }

    #[test]
    fn a_refusal_waits_as_long_as_it_says_and_jitter_only_adds() {
        let after = |value: &str, random| {
            let mut pace = Pace::default();
            let date = ("date", "Wed, 21 Oct 2015 07:28:00 GMT".to_owned());
            heard(&mut pace, 429, &[("retry-after", value.to_owned()), date], random);
            pace.reserve(NOW, 0.0)
        };
        assert_eq!(after("30", 0.0), Micros::from_secs(30));
        assert_eq!(after("30", 0.5), Micros::from_millis(30_500));
        assert_eq!(after("Wed, 21 Oct 2015 07:29:00 GMT", 0.0), Micros::from_secs(60));
    }

    #[test]
    fn the_slowest_of_several_limits_counts_and_names_may_hold_separators() {
        let mut pace = Pace::default();
        let policies = r#""a,;q=1\"";q=10;pk=:YSw7:;w=60, "b";q=2;w=60"#.to_owned();
        let left = r#""a,;q=1\"";r=1;t=9, "b";r=1;t=9"#.to_owned();
        heard(&mut pace, 200, &[("ratelimit-policy", policies), ("ratelimit", left)], 0.0);
        assert_eq!(pace.reserve(NOW, 0.0), Micros::from_secs(30));
    }

    #[test]
    fn requests_are_dropped_by_the_formula_and_old_ones_are_forgotten() {
        let mut counts = Counts::default();
        for number in 0..99 {
            counts.allows(1, 2.0, 1.0);
            if number < 9 {
                counts.current(1).1 += 1;
            }
        }
        // (99 - 2 * 9) / (99 + 1)
        let drawn = |random| { counts }.allows(1, 2.0, random);
        assert!(!drawn(0.80) && drawn(0.82));
        assert!({ counts }.allows(1 + SLOTS as u64, 2.0, 0.01), "a window later");
    }
}
