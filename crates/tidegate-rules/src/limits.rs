//! Parses limits: `100/minute`, a mapping with an algorithm, or `unlimited`.
//!
//! `tidegate_core` validates the numbers; what it rejects is reported at the field it names.

use tidegate_core::{
    Algorithm, Concurrency, FixedWindow, LeakyBucket, Limit, LimitError, Micros, Over, Rate, RefusedHits,
    Scope, SlidingLog, SlidingWindow, Timestamp, TokenBucket,
};

use crate::calendar::{CalendarUnit, Calendars, MOST_CALENDARS, Zone};
use crate::choice::LimitSet;
use crate::diagnostics::{Report, Span};
use crate::fields::{self, Fields, did_you_mean};
use crate::policy::Policy;
use crate::quantity::{count_per_period, parse_rate};
use crate::rule::{OnHangup, RuleLimit};
use crate::yaml::{Node, Scalar, Value};

/// The rule whose limits are parsed.
pub(crate) struct LimitReader<'c> {
    pub(crate) domain: &'c str,
    pub(crate) rule: &'c str,
    pub(crate) calendars: &'c mut Calendars,
    /// When the rules take effect, if known.
    pub(crate) now: Option<Timestamp>,
}

/// The most limits that apply to one request together; each is a cell to look up.
const MOST_LIMITS: usize = 32;

pub(crate) const ALGORITHMS: [(&str, Algorithm); 6] = [
    ("sliding_window", Algorithm::SlidingWindow),
    ("token_bucket", Algorithm::TokenBucket),
    ("fixed_window", Algorithm::FixedWindow),
    ("sliding_log", Algorithm::SlidingLog),
    ("leaky_bucket", Algorithm::LeakyBucket),
    ("concurrency", Algorithm::Concurrency),
];

/// All fields of all limits.
pub(crate) const LIMIT_FIELDS: [&str; 13] = [
    "algorithm",
    "name",
    "limit",
    "window",
    "tz",
    "rate",
    "burst",
    "min_interval",
    "count_refused",
    "max_delay",
    "ttl",
    "over",
    "on_hangup",
];

/// What a cost above what is left does. A charge after the fact is what a request is, not a limit.
pub(crate) const OVER: [(&str, Over); 3] =
    [("refuse", Over::Refuse), ("debt", Over::Debt), ("cap", Over::Cap)];

/// What becomes of a place whose client hangs up.
const ON_HANGUP: [(&str, OnHangup); 2] = [("hold", OnHangup::Hold), ("release", OnHangup::Release)];

/// The fields of a limit with this algorithm, besides `algorithm` and `name`.
pub(crate) fn fields_of(algorithm: Algorithm) -> &'static [&'static str] {
    match algorithm {
        Algorithm::TokenBucket => &["rate", "burst", "over"],
        Algorithm::FixedWindow => &["limit", "window", "tz", "over"],
        Algorithm::SlidingWindow => &["limit", "window", "over"],
        Algorithm::SlidingLog => &["limit", "window", "min_interval", "count_refused", "over"],
        Algorithm::LeakyBucket => &["rate", "max_delay", "over"],
        Algorithm::Concurrency => &["limit", "ttl", "count_refused", "on_hangup"],
        _ => &[],
    }
}

const LIST_HINT: &str = "write a list such as [100/minute], or `unlimited`";
const SHORTHAND_HINT: &str = "write hits per time, such as 100/minute";

/// The default time to live of a lease.
const DEFAULT_TTL: Micros = Micros::from_secs(60);

/// A limit, and the part of its window that belongs to its identity.
struct Made {
    limit: Limit,
    period: String,
}

impl LimitReader<'_> {
    /// The limits that `node` lists, or `unlimited`.
    pub(crate) fn limit_set(&mut self, node: &Node, what: &str, report: &mut Report<'_>) -> Option<LimitSet> {
        if let Value::Scalar(Scalar { text, .. }) = &node.value
            && &**text == "unlimited"
        {
            return Some(LimitSet::Unlimited);
        }
        let items = fields::list(node, what, LIST_HINT, report)?;
        let is_unlimited =
            |item: &&Node| matches!(&item.value, Value::Scalar(one) if &*one.text == "unlimited");
        if let Some(item) = items.iter().find(is_unlimited) {
            report.error(
                item.span,
                "`unlimited` cannot stand beside other limits",
                "write `limits: unlimited`",
            );
            return None;
        }
        if items.is_empty() || items.len() > MOST_LIMITS {
            let problem =
                if items.is_empty() { "no limits".into() } else { format!("{} limits", items.len()) };
            let hint = format!("list 1 to {MOST_LIMITS} limits, or write `unlimited`");
            report.error(node.span, format!("{what} {problem}"), hint);
            return None;
        }
        let mut limits: Vec<RuleLimit> = Vec::new();
        let mut places: Vec<Span> = Vec::new();
        for item in items {
            let Some(limit) = self.limit(item, report) else { continue };
            let is_same = |other: &RuleLimit| other.name == limit.name || other.scope == limit.scope;
            if let Some(first) = limits.iter().position(is_same) {
                let (one, other) = (&limits[first].name, &limit.name);
                let message = if one == other {
                    format!("two limits are called `{one}`")
                } else {
                    format!("two sliding limits of one window: `{one}` and `{other}`")
                };
                let hint = "they would share one counter: remove one, or give one a `name`";
                report.error(item.span, message, hint).related(places[first], "the first one");
            }
            limits.push(limit);
            places.push(item.span);
        }
        if limits.len() != items.len() {
            return None;
        }
        warn_of_useless(&limits, &places, report);
        Some(LimitSet::Enforce(limits.into()))
    }

    fn limit(&mut self, node: &Node, report: &mut Report<'_>) -> Option<RuleLimit> {
        if let Value::Map(_) = node.value {
            return self.long_form(node, report);
        }
        let Value::Scalar(Scalar { text, .. }) = &node.value else {
            report.error(node.span, format!("a limit cannot be {}", node.describe()), SHORTHAND_HINT);
            return None;
        };
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            let hint =
                "write hits per time, such as 100/minute; a comma ends a limit, so write 1000, not 1,000";
            report.error(node.span, format!("limit: `{text}` is not a rate"), hint);
            return None;
        }
        let (count, window) = fields::quantity(count_per_period(text), node, "limit", report)?;
        let made = per_window(count, window).map_err(|error| refused(error, |_| node.span, report)).ok()?;
        Some(self.named(made, None))
    }

    fn long_form(&mut self, node: &Node, report: &mut Report<'_>) -> Option<RuleLimit> {
        let before = report.errors();
        let fields = Fields::read(node, "a limit", &LIMIT_FIELDS, report)?;
        let algorithm = match fields.get("algorithm") {
            Some(node) => Some(fields::choice(node, "algorithm", &ALGORITHMS, report)?),
            None => None,
        };
        check_fields(&fields, algorithm.unwrap_or(Algorithm::SlidingWindow), report);
        let given = fields.get("name").and_then(|node| fields::given_name(node, "the limit's name", report));
        let made = match algorithm {
            None => count_and_window(&fields, report).map(|(count, window)| per_window(count, window)),
            Some(Algorithm::TokenBucket) => token_bucket(&fields, report),
            Some(Algorithm::FixedWindow) => self.fixed_window(&fields, report),
            Some(Algorithm::SlidingWindow) => sliding_window(&fields, report),
            Some(Algorithm::SlidingLog) => sliding_log(&fields, report),
            Some(Algorithm::LeakyBucket) => leaky_bucket(&fields, report),
            Some(Algorithm::Concurrency) => concurrency(&fields, report),
            Some(other) => {
                let hint = "leave `algorithm` out, or name another";
                report.error(node.span, format!("rules cannot ask for `{}` yet", other.name()), hint);
                return None;
            }
        };
        let at = |name: &str| fields.get(name).map_or(node.span, |field| field.span);
        let made = made?.map_err(|error| refused(error, at, report)).ok()?;
        let over = fields.get("over").and_then(|node| fields::choice(node, "over", &OVER, report));
        let on_hangup =
            fields.get("on_hangup").and_then(|node| fields::choice(node, "on_hangup", &ON_HANGUP, report));
        let on_hangup = on_hangup.unwrap_or_default();
        (report.errors() == before).then(|| RuleLimit {
            over,
            on_hangup,
            ..self.named(made, given.as_deref())
        })
    }

    fn fixed_window(
        &mut self,
        fields: &Fields<'_>,
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
                let Some(boundaries) = self.calendars.boundaries(unit, &zone) else {
                    let message =
                        format!("more than {MOST_CALENDARS} different calendars in one set of rules");
                    report.error(window.span, message, "use fewer time zones, or windows such as 30d");
                    return None;
                };
                let period = format!("{}@{}", unit.name(), zone.name());
                Some(
                    FixedWindow::calendar(count?, boundaries)
                        .map(|limit| Made { limit: Limit::FixedWindow(limit), period }),
                )
            }
            (_, Some(_)) => {
                let hint = format!("use a calendar unit ({}), or remove tz", CalendarUnit::NAMES.join(", "));
                let message = format!("a time zone does not change how long {} is", window.describe());
                report.error(fields.key_span("tz"), message, hint);
                None
            }
            (_, None) => {
                let window = fields::duration(window, "window", report);
                Some(FixedWindow::new(count?, window?).map(|limit| Made::of(Limit::FixedWindow(limit))))
            }
        }
    }

    fn named(&self, made: Made, given: Option<&str>) -> RuleLimit {
        made.named(self.domain, self.rule, given)
    }
}

/// A limit of a rule with this name.
pub(crate) fn named_limit(domain: &str, rule: &str, limit: Limit, name: &str) -> RuleLimit {
    Made::of(limit).named(domain, rule, Some(name))
}

/// A limit of a rule with its default name.
pub(crate) fn rule_limit(domain: &str, rule: &str, limit: Limit) -> RuleLimit {
    Made::of(limit).named(domain, rule, None)
}

impl Made {
    fn of(limit: Limit) -> Self {
        let period = limit.period().map(|period| period.to_string()).unwrap_or_default();
        Made { limit, period }
    }

    /// Names the limit, and sets the scope of its cells.
    fn named(self, domain: &str, rule: &str, given: Option<&str>) -> RuleLimit {
        let Made { limit, period } = self;
        let (algorithm, family) = (limit.algorithm().name(), limit.algorithm().family());
        let scope =
            Scope::new(&[domain, rule, given.unwrap_or_default(), family, &period].map(str::as_bytes));
        let by_default =
            || if period.is_empty() { algorithm.into() } else { format!("{algorithm}/{period}") };
        let name = given.map_or_else(by_default, str::to_owned);
        RuleLimit { limit, name, scope, over: None, on_hangup: OnHangup::default(), policy: Policy::ONLY }
    }
}

/// The largest limit for which `100/minute`, which names no algorithm, means a log.
///
/// In even traffic at exactly the limit, a counter loses a hit per window: half of `1/minute`, a tenth of `10/minute`, and 1
/// % here, where a log begins to cost more than it gains (400 bytes per key instead of 16). A number that crosses it keeps what
/// was counted: the two share their cells ([`Algorithm::family`]).
const LARGEST_LOG: u64 = 100;

/// `count` hits per `window` if the rule names no algorithm: exact for small limits, a counter above.
fn per_window(count: u64, window: Micros) -> Result<Made, LimitError> {
    let limit = match count {
        1..=LARGEST_LOG => {
            Limit::SlidingLog(SlidingLog::new(count, window, Micros::ZERO, RefusedHits::Forget)?)
        }
        _ => Limit::SlidingWindow(SlidingWindow::new(count, window)?),
    };
    Ok(Made::of(limit))
}

/// Warns of limits that another one of the same set always reaches first: `[100/minute, 50/hour]`.
fn warn_of_useless(limits: &[RuleLimit], places: &[Span], report: &mut Report<'_>) {
    for (at, useless) in limits.iter().enumerate() {
        let Some((most, window)) = in_window(&useless.limit) else { continue };
        let stricter = limits.iter().position(|other| {
            let Some((fewer, longer)) = in_window(&other.limit) else { return false };
            // A counter may admit up to twice its limit, so a limit slightly above it still has an effect.
            let bound = if other.limit.algorithm() == Algorithm::SlidingLog { fewer } else { 2 * fewer };
            !std::ptr::eq(other, useless)
                && bound <= most
                && longer >= window
                && (fewer, longer) != (most, window)
        });
        if let Some(stricter) = stricter {
            let message = format!("this limit has no effect: {} is stricter", limits[stricter].name);
            report
                .warning(places[at], message, "remove it, or check the numbers")
                .related(places[stricter], "the stricter one");
        }
    }
}

/// The most hits, and their window.
fn in_window(limit: &Limit) -> Option<(u64, Micros)> {
    match limit {
        Limit::SlidingLog(log) => Some((log.limit(), log.window())),
        Limit::SlidingWindow(window) => Some((window.limit(), window.window())),
        Limit::FixedWindow(window) => Some((window.limit(), window.window()?)),
        Limit::TokenBucket(_) | Limit::LeakyBucket(_) | Limit::Concurrency(_) => None,
    }
}

/// Reports what core rejects, at the field that core names.
fn refused(error: LimitError, at: impl Fn(&str) -> Span, report: &mut Report<'_>) {
    report.error(at(error.field), format!("{}: {}", error.field, error.problem), error.hint);
}

fn check_fields(fields: &Fields<'_>, algorithm: Algorithm, report: &mut Report<'_>) {
    let own = fields_of(algorithm);
    for (key, _) in fields.entries {
        let name = &*key.text;
        if LIMIT_FIELDS.contains(&name) && !["algorithm", "name"].contains(&name) && !own.contains(&name) {
            let hint = format!("its fields are {}", own.join(", "));
            report.error(key.span, format!("`{name}` does not belong to {}", algorithm.name()), hint);
        }
    }
}

fn token_bucket(fields: &Fields<'_>, report: &mut Report<'_>) -> Option<Result<Made, LimitError>> {
    let rate = required_rate(fields, report);
    let burst = match fields.get("burst") {
        Some(node) => fields::count(node, "burst", report),
        None => rate.map(Rate::count),
    };
    Some(TokenBucket::new(rate?, burst?).map(|limit| Made::of(Limit::TokenBucket(limit))))
}

fn sliding_window(fields: &Fields<'_>, report: &mut Report<'_>) -> Option<Result<Made, LimitError>> {
    let (count, window) = count_and_window(fields, report)?;
    Some(SlidingWindow::new(count, window).map(|limit| Made::of(Limit::SlidingWindow(limit))))
}

fn count_and_window(fields: &Fields<'_>, report: &mut Report<'_>) -> Option<(u64, Micros)> {
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
    Some(SlidingLog::new(count, window, interval?, refused?).map(|limit| Made::of(Limit::SlidingLog(limit))))
}

fn leaky_bucket(fields: &Fields<'_>, report: &mut Report<'_>) -> Option<Result<Made, LimitError>> {
    let rate = required_rate(fields, report);
    let delay = required(fields, "max_delay", "how long a request may be asked to wait, such as 2s", report)
        .and_then(|node| fields::duration(node, "max_delay", report));
    Some(LeakyBucket::new(rate?, delay?).map(|limit| Made::of(Limit::LeakyBucket(limit))))
}

fn concurrency(fields: &Fields<'_>, report: &mut Report<'_>) -> Option<Result<Made, LimitError>> {
    let count = required_count(fields, report);
    let ttl = match fields.get("ttl") {
        Some(node) => fields::duration(node, "ttl", report),
        None => Some(DEFAULT_TTL),
    };
    let refused = refused_hits(fields, report);
    Some(Concurrency::new(count?, ttl?, refused?).map(|limit| Made::of(Limit::Concurrency(limit))))
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
