//! StatsD and DogStatsD under the names that envoyproxy/ratelimit uses, so that its dashboards keep working.
//!
//! The increase since the last round is sent as a few packets, every few seconds, from the control plane's thread. Sending
//! never waits: packets that the system does not accept at once are dropped and counted. The number of lines is bounded.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate_metrics::{Families, Histogram, Series};

use crate::is_without_the_store;

/// Fits into one Ethernet frame, including headers.
const MOST_PACKET_BYTES: usize = 1_432;
/// Packets sent in a burst, and the pause before the next: the receiver reads them meanwhile.
const PACKETS_AT_ONCE: usize = 16;
const BETWEEN_PACKETS: Duration = Duration::from_millis(2);
/// The most lines of one round: five for each of 10,000 rules, three for each of 1,000 domains, and a few.
const MOST_LINES: usize = 53_100;

/// The format of lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lines {
    /// The prefix of every name: empty, or ending with a dot.
    pub prefix: String,
    /// DogStatsD's tags, each `name:value`; plain StatsD has none.
    pub tags: Vec<String>,
}

/// The counts of the last round.
#[derive(Debug, Default)]
pub struct Before(HashMap<String, f64>);

/// Sends to one receiver.
#[derive(Debug)]
pub struct Statsd {
    socket: UdpSocket,
    to: SocketAddr,
    lines: Lines,
    dropped: Arc<AtomicU64>,
}

impl Statsd {
    /// Sends to `to`.
    ///
    /// # Errors
    /// The system cannot create a socket.
    pub fn new(to: SocketAddr, lines: Lines) -> std::io::Result<Self> {
        let own: SocketAddr = if to.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
        let socket = UdpSocket::bind(own)?;
        socket.set_nonblocking(true)?;
        Ok(Statsd { socket, to, lines, dropped: Arc::default() })
    }

    /// The number of packets that the system did not accept, and of lines beyond the bound or too long.
    #[must_use]
    pub fn dropped(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.dropped)
    }

    /// Sends the increase since `before`, a few packets at a time: a receiver buffers some two hundred kilobytes, and the
    /// lines of thousands of rules are more.
    pub async fn send(&self, families: &Families, before: &mut Before) {
        let lines = self.lines.since(families, before);
        let unsent =
            lines.len().saturating_sub(MOST_LINES) + lines.iter().filter(|line| is_too_long(line)).count();
        self.dropped.fetch_add(unsent as u64, Ordering::Relaxed);
        for (number, some) in
            packets(&lines[..lines.len().min(MOST_LINES)]).chunks(PACKETS_AT_ONCE).enumerate()
        {
            if number > 0 {
                tokio::time::sleep(BETWEEN_PACKETS).await;
            }
            let failed = some.iter().filter(|one| self.socket.send_to(one.as_bytes(), self.to).is_err());
            self.dropped.fetch_add(failed.count() as u64, Ordering::Relaxed);
        }
    }

    /// Sends what `read` returns at every interval. Runs until dropped.
    pub async fn run<R: Future<Output = Families>>(self, every: Duration, read: impl Fn() -> R) {
        // A process counts from zero: counts from before this task first ran are sent too.
        let mut before = Before::default();
        let mut ticks = tokio::time::interval(every);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        ticks.tick().await;
        loop {
            ticks.tick().await;
            self.send(&read().await, &mut before).await;
        }
    }
}

impl Lines {
    /// A line for every counter that has grown since `before`, which is updated.
    #[must_use]
    pub fn since(&self, families: &Families, before: &mut Before) -> Vec<String> {
        let mut totals: HashMap<String, f64> = HashMap::new();
        let mut add = |name: String, count: f64| *totals.entry(name).or_default() += count;
        for series in families.series("tidegate_requests") {
            let label = |name| series.label(name).unwrap_or_default();
            add(format!("tidegate.requests.{}.{}", clean(label("domain")), label("result")), series.number());
        }
        for series in families.series("tidegate_decisions") {
            let label = |name| series.label(name).unwrap_or_default();
            // A limit that came with the request belongs to no rule, and its hits are not counted: its decisions are.
            if label("domain").is_empty() && label("rule") == "direct" {
                for stat in stats_of(label("result"), label("source")) {
                    add(format!("ratelimit.service.rate_limit..direct.{stat}"), series.number());
                }
            }
        }
        for series in families.series("tidegate_hits") {
            let label = |name| series.label(name).unwrap_or_default();
            let rule =
                format!("ratelimit.service.rate_limit.{}.{}", clean(label("domain")), clean(label("rule")));
            if ["within_limit", "over_limit", "without_store"].contains(&label("stat")) {
                add(format!("{rule}.total_hits"), series.number());
            }
            add(format!("{rule}.{}", label("stat")), series.number());
        }
        add(
            "ratelimit.service.call.should_rate_limit.redis_error".to_owned(),
            families.sum("tidegate_store_errors", &[]),
        );
        for (result, name) in [("success", "config_load_success"), ("failure", "config_load_error")] {
            let count = families.sum("tidegate_config_reloads", &[("result", result)]);
            add(format!("ratelimit.service.{name}"), count);
        }
        let mut durations = families.series("tidegate_decision_duration_seconds").iter();
        let of_grpc =
            durations.find(|one| one.label("transport") == Some("grpc")).and_then(Series::histogram);
        let (count, seconds) = of_grpc.map_or((0.0, 0.0), |one: &Histogram| (one.count() as f64, one.sum));
        add(format!("{SERVER}.total_requests"), count);
        let mut lines = self.counters(totals, before);
        lines.extend(self.response_time(seconds, count, before));
        lines
    }

    fn counters(&self, totals: HashMap<String, f64>, before: &mut Before) -> Vec<String> {
        let mut grown: Vec<(String, f64)> = totals
            .iter()
            .map(|(name, total)| (name.clone(), total - before.0.get(name).copied().unwrap_or_default()))
            .filter(|(_, more)| *more > 0.0)
            .collect();
        grown.sort_by(|one, other| one.0.cmp(&other.0));
        before.0.retain(|name, _| name.starts_with(SUMS));
        before.0.extend(totals);
        grown.iter().map(|(name, more)| self.line(name, *more, "c")).collect()
    }

    /// The mean time of a gRPC answer in this round, in milliseconds.
    fn response_time(&self, seconds: f64, count: f64, before: &mut Before) -> Option<String> {
        let mut since =
            |name: &str, now: f64| now - before.0.insert(format!("{SUMS}{name}"), now).unwrap_or_default();
        let (seconds, count) = (since("seconds", seconds), since("count", count));
        (count > 0.0).then(|| self.line(&format!("{SERVER}.response_time"), seconds / count * 1_000.0, "ms"))
    }

    fn line(&self, name: &str, value: f64, kind: &str) -> String {
        let mut line = format!("{}{name}:{value}|{kind}", self.prefix);
        if !self.tags.is_empty() {
            let _ = write!(line, "|#{}", self.tags.join(","));
        }
        line
    }
}

const SERVER: &str = "ratelimit_server.ShouldRateLimit";
/// A prefix for names that only this module uses.
const SUMS: &str = "=";

/// The envoyproxy/ratelimit counters for a decision on a limit without a rule.
fn stats_of(result: &str, source: &str) -> &'static [&'static str] {
    match (result, source) {
        ("allowed", _) => &["total_hits", "within_limit"],
        ("refused" | "shadow_refused", source) if is_without_the_store(source) => {
            &["total_hits", "without_store"]
        }
        ("refused", "deny_cache") => &["total_hits", "over_limit", "over_limit_with_local_cache"],
        ("refused", _) => &["total_hits", "over_limit"],
        ("shadow_refused", _) => &["total_hits", "over_limit", "shadow_mode"],
        _ => &[],
    }
}

/// A name without StatsD's separators. Dots stay: in envoyproxy/ratelimit they are part of names too.
fn clean(name: &str) -> String {
    name.chars()
        .map(|c| if c.is_whitespace() || c.is_control() || ":|@#,".contains(c) { '_' } else { c })
        .collect()
}

fn is_too_long(line: &str) -> bool {
    line.len() > MOST_PACKET_BYTES
}

/// Packs lines into as few packets as possible. A line longer than a packet is left out.
fn packets(lines: &[String]) -> Vec<String> {
    let mut packets: Vec<String> = Vec::new();
    for line in lines.iter().filter(|line| !is_too_long(line)) {
        match packets.last_mut() {
            Some(last) if last.len() + 1 + line.len() <= MOST_PACKET_BYTES => {
                last.push('\n');
                last.push_str(line);
            }
            _ => packets.push(line.clone()),
        }
    }
    packets
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(within: u64, over: u64) -> Families {
        let rule = || [("domain", "api".into()), ("rule", "path_/a:b.user".into())];
        let mut families = Families::default();
        let [domain, name] = rule();
        families
            .counters("decisions", "")
            .add([domain, name, ("result", "allowed".into()), ("source", "store".into())], 99);
        let request = [("domain", "api".into()), ("result", "refused".into()), ("source", "store".into())];
        families.counters("requests", "").add(request, over);
        let hits = families.counters("hits", "");
        let stats = [
            ("within_limit", within),
            ("near_limit", within / 2),
            ("over_limit", over + 1),
            ("over_limit_with_local_cache", over),
            ("shadow_mode", 1),
        ];
        for (stat, count) in stats {
            let [domain, name] = rule();
            hits.add([domain, name, ("stat", stat.into())], count);
        }
        families
    }

    #[test]
    fn what_has_grown_is_sent_under_the_names_of_envoys_rate_limit_service() {
        let (lines, mut before) = (Lines::default(), Before::default());
        let _ = lines.since(&counted(2, 1), &mut before);
        let sent = lines.since(&counted(12, 4), &mut before);
        let rule = "ratelimit.service.rate_limit.api.path_/a_b.user";
        assert_eq!(
            sent,
            [
                format!("{rule}.near_limit:5|c"),
                format!("{rule}.over_limit:3|c"),
                format!("{rule}.over_limit_with_local_cache:3|c"),
                format!("{rule}.total_hits:13|c"),
                format!("{rule}.within_limit:10|c"),
                "tidegate.requests.api.refused:3|c".to_owned(),
            ]
        );
        assert_eq!(lines.since(&counted(12, 4), &mut before), Vec::<String>::new(), "nothing grew");
    }

    #[test]
    fn a_shadow_rule_counts_as_over_there() {
        let sent = Lines::default().since(&counted(0, 0), &mut Before::default()).join("\n");
        assert!(sent.contains(".over_limit:1|c") && sent.contains(".shadow_mode:1|c"), "{sent}");
    }

    #[test]
    fn tags_and_a_prefix_are_on_every_line() {
        let lines =
            Lines { prefix: "edge.".to_owned(), tags: vec!["env:prod".to_owned(), "az:b".to_owned()] };
        let sent = lines.since(&counted(1, 0), &mut Before::default());
        assert!(!sent.is_empty());
        for line in sent {
            assert!(line.starts_with("edge.") && line.ends_with("|#env:prod,az:b"), "{line}");
        }
    }

    #[test]
    fn packets_fit_into_a_frame_and_lose_no_line() {
        let lines: Vec<String> =
            (0..500).map(|n| format!("name.{n}:1|c")).chain(["x".repeat(2_000)]).collect();
        let packets = packets(&lines);
        assert!(packets.iter().all(|packet| packet.len() <= MOST_PACKET_BYTES));
        assert_eq!(packets.iter().flat_map(|packet| packet.lines()).count(), 500);
        assert!(packets.len() < 10, "{} packets", packets.len());
    }
}
