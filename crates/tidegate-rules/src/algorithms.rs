//! What rules know of each algorithm: its name and fields, how a limit is read from them, and how it is shown.

use std::collections::BTreeMap;

use tidegate_core::{
    Algorithm, Concurrency, FixedWindow, LeakyBucket, Limit, LimitError, Micros, Rate, RefusedHits,
    SlidingLog, SlidingWindow, TokenBucket,
};

use crate::calendar::{CalendarUnit, Calendars, MOST_CALENDARS, Zone};
use crate::diagnostics::Report;
use crate::fields::{self, Fields, did_you_mean};
use crate::limits::Made;
use crate::quantity::parse_rate;
use crate::yaml::Node;

pub(crate) const ALGORITHMS: [(&str, Algorithm); 6] = [
    ("sliding_window", Algorithm::SlidingWindow),
    ("token_bucket", Algorithm::TokenBucket),
    ("fixed_window", Algorithm::FixedWindow),
    ("sliding_log", Algorithm::SlidingLog),
    ("leaky_bucket", Algorithm::LeakyBucket),
    ("concurrency", Algorithm::Concurrency),
];

/// The fields of a limit with this algorithm, besides `algorithm` and `name`.
pub(crate) fn fields_of(algorithm: Algorithm) -> &'static [&'static str] {
    match algorithm {
        Algorithm::TokenBucket => &["rate", "burst", "over"],
        Algorithm::FixedWindow => &["limit", "window", "tz", "over"],
        Algorithm::SlidingWindow => &["limit", "window", "over"],
        Algorithm::SlidingLog => &["limit", "window", "min_interval", "count_refused", "over"],
        Algorithm::LeakyBucket => &["rate", "max_delay", "over"],
        Algorithm::Concurrency => &["limit", "ttl", "count_refused", "on_hangup"],
    }
}

/// Reads a limit of this algorithm.
pub(crate) fn read(
    algorithm: Algorithm,
    fields: &Fields<'_>,
    calendars: &mut Calendars,
    report: &mut Report<'_>,
) -> Option<Result<Made, LimitError>> {
    match algorithm {
        Algorithm::TokenBucket => token_bucket(fields, report),
        Algorithm::FixedWindow => fixed_window(fields, calendars, report),
        Algorithm::SlidingWindow => sliding_window(fields, report),
        Algorithm::SlidingLog => sliding_log(fields, report),
        Algorithm::LeakyBucket => leaky_bucket(fields, report),
        Algorithm::Concurrency => concurrency(fields, report),
    }
}

/// A limit in a few words: `100/1m`, `10/1s burst 50`, `10 at once`.
pub(crate) fn shown(limit: &Limit) -> String {
    let per = |count: u64, span: Option<Micros>| match span {
        Some(span) => format!("{count}/{span}"),
        None => format!("{count} in {}", limit.algorithm().name()),
    };
    match limit {
        Limit::TokenBucket(bucket) => {
            format!("{}/{} burst {}", bucket.rate().count(), bucket.rate().period(), bucket.burst())
        }
        Limit::LeakyBucket(bucket) => {
            format!("{}/{} delay {}", bucket.rate().count(), bucket.rate().period(), bucket.max_delay())
        }
        Limit::Concurrency(leases) => format!("{} at once", leases.limit()),
        Limit::FixedWindow(_) | Limit::SlidingWindow(_) | Limit::SlidingLog(_) => {
            per(limit.quota(), limit.quota_window())
        }
    }
}

/// The properties of a limit other than its number and window.
pub(crate) fn properties(limit: &Limit) -> BTreeMap<&'static str, String> {
    let rate = |rate: Rate| ("rate", format!("{}/{}", rate.count(), rate.period()));
    let counted = |refused| (refused == RefusedHits::Count).then(|| ("count_refused", "true".to_owned()));
    match limit {
        Limit::TokenBucket(bucket) => [rate(bucket.rate()), ("burst", bucket.burst().to_string())].into(),
        Limit::LeakyBucket(bucket) => {
            [rate(bucket.rate()), ("max_delay", bucket.max_delay().to_string())].into()
        }
        Limit::SlidingLog(log) => {
            let apart =
                (log.min_interval() > Micros::ZERO).then(|| ("min_interval", log.min_interval().to_string()));
            apart.into_iter().chain(counted(log.refused_hits())).collect()
        }
        Limit::Concurrency(limit) => {
            [("ttl", limit.ttl().to_string())].into_iter().chain(counted(limit.refused_hits())).collect()
        }
        Limit::FixedWindow(_) | Limit::SlidingWindow(_) => BTreeMap::new(),
    }
}

/// The most hits, and their window.
pub(crate) fn in_window(limit: &Limit) -> Option<(u64, Micros)> {
    match limit {
        Limit::SlidingLog(log) => Some((log.limit(), log.window())),
        Limit::SlidingWindow(window) => Some((window.limit(), window.window())),
        Limit::FixedWindow(window) => Some((window.limit(), window.window()?)),
        Limit::TokenBucket(_) | Limit::LeakyBucket(_) | Limit::Concurrency(_) => None,
    }
}

/// The default time to live of a lease.
const DEFAULT_TTL: Micros = Micros::from_secs(60);

fn token_bucket(fields: &Fields<'_>, report: &mut Report<'_>) -> Option<Result<Made, LimitError>> {
    let rate = required_rate(fields, report);
    let burst = match fields.get("burst") {
        Some(node) => fields::count(node, "burst", report),
        None => rate.map(Rate::count),
    };
    Some(TokenBucket::new(rate?, burst?).map(Made::of))
}

fn sliding_window(fields: &Fields<'_>, report: &mut Report<'_>) -> Option<Result<Made, LimitError>> {
    let (count, window) = count_and_window(fields, report)?;
    Some(SlidingWindow::new(count, window).map(Made::of))
}

pub(crate) fn count_and_window(fields: &Fields<'_>, report: &mut Report<'_>) -> Option<(u64, Micros)> {
    let count = required_count(fields, report);
    let window = required_window(fields, report);
    Some((count?, window?))
}

fn sliding_log(fields: &Fields<'_>, report: &mut Report<'_>) -> Option<Result<Made, LimitError>> {
    let counted = count_and_window(fields, report);
    let interval = match fields.get("min_interval") {
        Some(node) => fields::duration(node, "min_interval", report),
        None => Some(Micros::ZERO),
    };
    let refused = refused_hits(fields, report);
    let (count, window) = counted?;
    Some(SlidingLog::new(count, window, interval?, refused?).map(Made::of))
}

fn leaky_bucket(fields: &Fields<'_>, report: &mut Report<'_>) -> Option<Result<Made, LimitError>> {
    let rate = required_rate(fields, report);
    let delay = required(fields, "max_delay", "how long a request may be asked to wait, such as 2s", report)
        .and_then(|node| fields::duration(node, "max_delay", report));
    Some(LeakyBucket::new(rate?, delay?).map(Made::of))
}

fn concurrency(fields: &Fields<'_>, report: &mut Report<'_>) -> Option<Result<Made, LimitError>> {
    let count = required_count(fields, report);
    let ttl = match fields.get("ttl") {
        Some(node) => fields::duration(node, "ttl", report),
        None => Some(DEFAULT_TTL),
    };
    let refused = refused_hits(fields, report);
    Some(Concurrency::new(count?, ttl?, refused?).map(Made::of))
}

fn refused_hits(fields: &Fields<'_>, report: &mut Report<'_>) -> Option<RefusedHits> {
    let Some(node) = fields.get("count_refused") else { return Some(RefusedHits::Forget) };
    let counted = fields::flag(node, "count_refused", report)?;
    Some(if counted { RefusedHits::Count } else { RefusedHits::Forget })
}

fn required<'n>(fields: &Fields<'n>, name: &str, hint: &str, report: &mut Report<'_>) -> Option<&'n Node> {
    fields.require(name, "this limit", hint, report)
}

fn required_count(fields: &Fields<'_>, report: &mut Report<'_>) -> Option<u64> {
    let node = required(fields, "limit", "how many hits, such as `limit: 100`", report)?;
    fields::count(node, "limit", report)
}

fn required_rate(fields: &Fields<'_>, report: &mut Report<'_>) -> Option<Rate> {
    let node = required(fields, "rate", "hits per time, such as `rate: 10/s`", report)?;
    let text = fields::text(node, "rate", report)?;
    fields::quantity(parse_rate(&text), node, "rate", report)
}

fn required_window(fields: &Fields<'_>, report: &mut Report<'_>) -> Option<Micros> {
    let node = required(fields, "window", "how long, such as `window: 1m`", report)?;
    fields::duration(node, "window", report)
}

fn zone(node: &Node, report: &mut Report<'_>) -> Option<Zone> {
    let text = fields::text(node, "tz", report)?;
    match Zone::find(&text) {
        Ok(zone) => Some(zone),
        Err(known) => {
            let hint = did_you_mean(&text, known.iter().map(String::as_str))
                .unwrap_or_else(|| "use a name of the IANA database, such as Europe/Paris or UTC".into());
            report.error(node.span, format!("unknown time zone {}", node.describe()), hint);
            None
        }
    }
}

fn fixed_window(
    fields: &Fields<'_>,
    calendars: &mut Calendars,
    report: &mut Report<'_>,
) -> Option<Result<Made, LimitError>> {
    let count = required_count(fields, report);
    let window =
        required(fields, "window", "such as 1m, or a calendar unit: day, week, month, year", report)?;
    let text = fields::text(window, "window", report)?;
    let zone = fields.get("tz").map(|node| zone(node, report));
    match (CalendarUnit::parse(&text), zone) {
        // A day without a zone is a day in UTC, and those all have the same length.
        (Some(unit), zone) if unit != CalendarUnit::Day || zone.is_some() => {
            let zone = zone.unwrap_or_else(|| Some(Zone::utc()))?;
            let Some(boundaries) = calendars.boundaries(unit, &zone) else {
                let message = format!("more than {MOST_CALENDARS} different calendars in one set of rules");
                report.error(window.span, message, "use fewer time zones, or windows such as 30d");
                return None;
            };
            let period = format!("{}@{}", unit.name(), zone.name());
            Some(FixedWindow::calendar(count?, boundaries).map(|limit| Made { limit: limit.into(), period }))
        }
        (_, Some(_)) => {
            let hint = format!("use a calendar unit ({}), or remove tz", CalendarUnit::NAMES.join(", "));
            let message = format!("a time zone does not change how long {} is", window.describe());
            report.error(fields.key_span("tz"), message, hint);
            None
        }
        (_, None) => {
            let window = fields::duration(window, "window", report);
            Some(FixedWindow::new(count?, window?).map(Made::of))
        }
    }
}
