//! Parses limits: `100/minute`, a mapping with an algorithm, or `unlimited`.
//!
//! `tidegate_core` validates the numbers; what it rejects is reported at the field it names.

use tidegate_core::{
    Algorithm, Limit, LimitError, Micros, Over, Prepaid, RefusedHits, Scope, SlidingLog, SlidingWindow,
    Timestamp,
};

use crate::algorithms::{ALGORITHMS, count_and_window, fields_of, in_window, read};
use crate::calendar::Calendars;
use crate::choice::LimitSet;
use crate::diagnostics::{Report, Span};
use crate::fields::{self, Fields};
use crate::policy::Policy;
use crate::quantity::count_per_period;
use crate::rule::{OnHangup, RuleLimit};
use crate::yaml::{Node, Scalar, Value};

/// The rule whose limits are parsed.
pub(crate) struct LimitReader<'c> {
    pub(crate) domain: &'c str,
    pub(crate) rule: &'c str,
    /// Whether clients take hits of its limits ahead.
    pub(crate) lends: bool,
    pub(crate) calendars: &'c mut Calendars,
    /// When the rules take effect, if known.
    pub(crate) now: Option<Timestamp>,
}

/// The most limits that apply to one request together; each is a cell to look up.
const MOST_LIMITS: usize = 32;

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

const LIST_HINT: &str = "write a list such as [100/minute], or `unlimited`";
const SHORTHAND_HINT: &str = "write hits per time, such as 100/minute";

/// A limit, and the part of its window that belongs to its identity.
pub(crate) struct Made {
    pub(crate) limit: Limit,
    pub(crate) period: String,
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
            let limit = if self.lends { lent(limit, item.span, report) } else { Some(limit) };
            let Some(limit) = limit else { continue };
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
            Some(algorithm) => read(algorithm, &fields, self.calendars, report),
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

    /// A limit whose hits clients take ahead keeps its name, and counts as [`Limit::prepaid`] says: whoever asks for each hit is
    /// counted so, too, or the sum would exceed the limit.
    fn named(&self, made: Made, given: Option<&str>) -> RuleLimit {
        let terms = self.lends.then(|| made.limit.prepaid()).flatten();
        let period = made.limit.period();
        let limit = made.named(self.domain, self.rule, given);
        let Some(Prepaid { limit: ahead, held }) = terms else { return limit };
        // Cells of another window are other cells.
        let scope = match ahead.period() == period {
            true => limit.scope.clone(),
            false => Made::of(ahead.clone()).named(self.domain, self.rule, given).scope,
        };
        let held = held.map_or(LONGEST_HELD, |held| held.min(LONGEST_HELD));
        RuleLimit { limit: ahead, scope, held: Some(held), ..limit }
    }
}

/// Checks that clients can take hits of this limit ahead.
fn lent(limit: RuleLimit, span: Span, report: &mut Report<'_>) -> Option<RuleLimit> {
    let (problem, hint) = if limit.over.is_some_and(|over| over != Over::Refuse) {
        ("it lets a cost above what is left pass or count", "remove `over`, or `lease_to_clients`")
    } else if limit.held.is_none() {
        not_lendable(&limit.limit)
    } else {
        return Some(limit);
    };
    report.error(span, format!("clients cannot take hits of `{}` ahead: {problem}", limit.name), hint);
    None
}

/// Whoever is banned, or has a lower limit, is so for all clients after this long and one message. Also of windows that hits could
/// be held in to their end.
const LONGEST_HELD: Micros = Micros::from_secs(1);

fn not_lendable(limit: &Limit) -> (&'static str, &'static str) {
    const ASK: &str = "remove `lease_to_clients`: clients then ask for each request";
    match limit.algorithm() {
        Algorithm::Concurrency => ("a place in use is not spent, but returned", ASK),
        Algorithm::LeakyBucket => ("a place in its queue is a time, which passes while it is held", ASK),
        Algorithm::SlidingLog if limit.min_interval() > Micros::ZERO => {
            ("`min_interval` needs the time of the last request", ASK)
        }
        Algorithm::SlidingLog if limit.counts_refused() => {
            ("clients do not report what they refuse", "remove `count_refused`, or `lease_to_clients`")
        }
        Algorithm::TokenBucket
        | Algorithm::FixedWindow
        | Algorithm::SlidingWindow
        | Algorithm::SlidingLog => (
            "its window, or the refill of its burst, is shorter than a second",
            "use a window or a burst of several seconds: such as `burst: 50` for `rate: 10/s`",
        ),
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
    pub(crate) fn of(limit: impl Into<Limit>) -> Self {
        let limit = limit.into();
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
        let on_hangup = OnHangup::default();
        RuleLimit { limit, name, scope, over: None, on_hangup, held: None, policy: Policy::ONLY }
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
        1..=LARGEST_LOG => Made::of(SlidingLog::new(count, window, Micros::ZERO, RefusedHits::Forget)?),
        _ => Made::of(SlidingWindow::new(count, window)?),
    };
    Ok(limit)
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
