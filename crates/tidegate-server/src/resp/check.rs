//! `TG.CHECK`, `TG.REFUND`, `TG.RELEASE` and `TG.RENEW`: rule checks over the Redis protocol.

use std::str;

use http::HeaderMap;
use smallvec::SmallVec;
use tidegate_core::{Hits, Micros, Timestamp};
use tidegate_http::answer;
use tidegate_limiter::{
    CheckRequest, Decision, DescriptorAsk, LeaseError, LeaseToken, LeaseTokenError, Limiter, Patience,
    RefundError, Report, SpentAt,
};
use tidegate_rules::UnknownDomain;
use tidegate_store::Clock;

use super::reply::{Replies, quoted};
use super::throttle::read_number;
use crate::headers::{HeaderSet, HeaderSets, ResetForm};
use crate::json::{MAX_ATTRIBUTES, MAX_DOMAIN_BYTES, MAX_NAME_BYTES, MAX_VALUE_BYTES};
use crate::service::rule_name;

/// Attributes and their values.
type Pairs<'b> = SmallVec<[(&'b str, &'b [u8]); 4]>;

/// A parsed `TG.CHECK`.
#[derive(Debug)]
pub(crate) struct RespCheck<'b> {
    domain: &'b str,
    cost: Hits,
    entries: Pairs<'b>,
    shows: Shows,
}

/// Which fields the reply to a check has beside the usual eight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shows {
    /// The token for a later refund.
    spent: bool,
    /// Headers for the caller of the service, as of the time of the check.
    headers: Option<(HeaderSets, Timestamp)>,
}

impl<'b> RespCheck<'b> {
    /// Parses `domain [COST n] [HEADERS set] [SPENT] attribute value …`, with options in any order.
    ///
    /// # Errors
    /// What is wrong, as text for the client.
    pub(crate) fn read(words: &[&'b [u8]]) -> Result<Self, String> {
        let [domain, rest @ ..] = words else { return Err("expected a domain".to_owned()) };
        let (domain, mut rest) = (read_text("domain", domain, MAX_DOMAIN_BYTES)?, rest);
        let (mut cost, mut shows) = (None, Shows::default());
        loop {
            rest = match rest {
                [option, number, after @ ..] if cost.is_none() && option.eq_ignore_ascii_case(b"cost") => {
                    cost = Some(read_number("COST", number)?);
                    after
                }
                [option, set, after @ ..]
                    if shows.headers.is_none() && option.eq_ignore_ascii_case(b"headers") =>
                {
                    shows.headers = Some((read_sets(set)?, Timestamp::default()));
                    after
                }
                // Attributes come in pairs, and so do COST and HEADERS: only an unpaired word is this option, and not an attribute of
                // that name.
                [option, after @ ..]
                    if after.len().is_multiple_of(2) && option.eq_ignore_ascii_case(b"spent") =>
                {
                    shows.spent = true;
                    after
                }
                _ => break,
            };
        }
        let entries = read_pairs(rest, &["cost", "headers"])?;
        Ok(RespCheck { domain, cost: Hits::new(cost.unwrap_or(1)), entries, shows })
    }

    /// Notes the time and the form of resets, if the reply has headers.
    pub(crate) fn asked_at(mut self, clock: &dyn Clock, reset: ResetForm) -> Self {
        if let Some((sets, asked_at)) = &mut self.shows.headers {
            *sets = sets.with_reset(reset);
            *asked_at = clock.now();
        }
        self
    }

    /// The fields that the client wants.
    pub(crate) fn shows(&self) -> Shows {
        self.shows
    }

    pub(crate) fn ask(&self) -> DescriptorAsk<'_> {
        DescriptorAsk::one(&self.entries).cost(self.cost)
    }

    /// The limiter request for what [`RespCheck::ask`] returned.
    pub(crate) fn request<'a>(&'a self, ask: &'a DescriptorAsk<'a>) -> CheckRequest<'a> {
        // The reply has no field for a delay.
        CheckRequest::new(self.domain, std::slice::from_ref(ask)).patience(Patience::MustGoNow)
    }
}

/// A parsed `TG.REFUND`.
#[derive(Debug)]
pub(crate) struct RespRefund<'b> {
    domain: &'b str,
    amount: Hits,
    spent: Option<&'b [u8]>,
    entries: Pairs<'b>,
}

impl<'b> RespRefund<'b> {
    /// Parses `domain [AMOUNT n] [SPENT token] attribute value …`, with options in any order.
    ///
    /// # Errors
    /// What is wrong, as text for the client.
    pub(crate) fn read(words: &[&'b [u8]]) -> Result<Self, String> {
        let [domain, rest @ ..] = words else { return Err("expected a domain".to_owned()) };
        let (domain, mut rest) = (read_text("domain", domain, MAX_DOMAIN_BYTES)?, rest);
        let (mut amount, mut spent) = (None, None);
        loop {
            rest = match rest {
                [option, number, after @ ..]
                    if amount.is_none() && option.eq_ignore_ascii_case(b"amount") =>
                {
                    amount = Some(read_number("AMOUNT", number)?);
                    after
                }
                [option, token, after @ ..] if spent.is_none() && option.eq_ignore_ascii_case(b"spent") => {
                    spent = Some(*token);
                    after
                }
                _ => break,
            };
        }
        let entries = read_pairs(rest, &["amount", "spent"])?;
        Ok(RespRefund { domain, amount: Hits::new(amount.unwrap_or(1)), spent, entries })
    }

    /// Refunds the hits and replies with their number, or why not.
    pub(crate) async fn run(&self, limiter: &Limiter, to: &mut Replies) {
        let spent = match self.spent.map(|text| limiter.read_spent(text)).transpose() {
            Ok(token) => token.map_or(SpentAt::Unknown, SpentAt::Token),
            Err(error) => return to.error(&format!("ERR SPENT: {error}")),
        };
        let ask = DescriptorAsk::one(&self.entries).cost(Hits::ZERO);
        let request = CheckRequest::new(self.domain, std::slice::from_ref(&ask));
        match limiter.refund(&request, self.amount, spent).await {
            Ok(()) => write_number(Some(self.amount.get()), to),
            Err(RefundError::UnknownDomain(error)) => to.error(&unknown_domain(limiter, &error)),
            Err(error) => to.error(&format!("ERR {error}, hits that are not refunded stay spent")),
        }
    }
}

/// Parses `attribute value …`. An attribute with the name of one of the `options` is a misplaced option: taking it for an
/// attribute would spend or refund another number of hits than the client wants.
fn read_pairs<'b>(pairs: &[&'b [u8]], options: &[&str]) -> Result<Pairs<'b>, String> {
    if pairs.len() > 2 * MAX_ATTRIBUTES {
        return Err(format!("at most {MAX_ATTRIBUTES} attributes are allowed"));
    }
    let (pairs, left_over) = pairs.as_chunks();
    if let [name] = left_over {
        let hint =
            if name.eq_ignore_ascii_case(b"spent") { ": SPENT goes before the attributes" } else { "" };
        return Err(format!("attribute {} has no value{hint}", quoted(name)));
    }
    let mut entries = Pairs::new();
    for [name, value] in pairs {
        let name = read_text("attribute", name, MAX_NAME_BYTES)?;
        if let Some(option) = options.iter().find(|option| name.eq_ignore_ascii_case(option)) {
            return Err(format!("{} goes before the attributes, and once", option.to_uppercase()));
        }
        if value.len() > MAX_VALUE_BYTES {
            return Err(format!("the value of attribute '{name}' is longer than {MAX_VALUE_BYTES} bytes"));
        }
        // At most 64 names: a scan beats a set.
        if entries.iter().any(|(earlier, _)| *earlier == name) {
            return Err(format!("attribute '{name}' is given twice"));
        }
        entries.push((name, *value));
    }
    Ok(entries)
}

/// A set of headers, by its name in the configuration, or all.
fn read_sets(word: &[u8]) -> Result<HeaderSets, String> {
    if word.eq_ignore_ascii_case(b"all") {
        return Ok(HeaderSets::ALL);
    }
    let found = HeaderSet::NAMES.iter().find(|(name, _)| word.eq_ignore_ascii_case(name.as_bytes()));
    let (_, set) = found.ok_or_else(|| {
        format!("HEADERS must be x-ratelimit, ietf, ietf-11, ietf-next or all, not {}", quoted(word))
    })?;
    Ok([*set].into_iter().collect())
}

/// Text such as names of domains and attributes. Values may be any bytes.
fn read_text<'b>(what: &str, word: &'b [u8], most: usize) -> Result<&'b str, String> {
    if word.len() > most {
        return Err(format!("{what} {} is longer than {most} bytes", quoted(word)));
    }
    str::from_utf8(word).map_err(|_| format!("{what} {} is not UTF-8", quoted(word)))
}

/// Writes the decision: allowed, limit, remaining, retry_after_ms, reset_after_ms, rule, source, lease, and spent and headers
/// if the client wants them.
pub(crate) fn write(
    limiter: &Limiter,
    shows: Shows,
    decision: &Result<Decision, UnknownDomain>,
    to: &mut Replies,
) {
    let decision = match decision {
        Ok(decision) => decision,
        Err(error) => return to.error(&unknown_domain(limiter, error)),
    };
    let shown = answer::shown(decision);
    let limit = shown.and_then(Report::limit);
    let retry_after = decision.governing().and_then(Report::retry_after);
    to.array(8 + usize::from(shows.spent) + usize::from(shows.headers.is_some()));
    to.integer(i64::from(decision.allowed));
    write_number(limit.map(|limit| limit.quota), to);
    write_number(limit.map(|limit| limit.outcome.remaining), to);
    write_number(retry_after.map(Micros::as_millis_ceil), to);
    write_number(limit.map(|limit| limit.outcome.reset_after.as_millis_ceil()), to);
    match shown {
        Some(report) => to.bulk(rule_name(decision, report).as_bytes()),
        None => to.nil(),
    }
    to.bulk(decision.source.name().as_bytes());
    match &decision.lease {
        Some(lease) => to.bulk(lease.to_string().as_bytes()),
        None => to.nil(),
    }
    match decision.spent().filter(|_| shows.spent) {
        Some(spent) => to.bulk(spent.to_ascii().as_ref()),
        None if shows.spent => to.nil(),
        None => {}
    }
    if let Some((sets, asked_at)) = shows.headers {
        write_headers(decision, sets, asked_at, to);
    }
}

/// Writes names and values of headers alternately, as over HTTP.
fn write_headers(decision: &Decision, sets: HeaderSets, asked_at: Timestamp, to: &mut Replies) {
    let mut headers = HeaderMap::new();
    // The sets of a command have no partition keys.
    answer::write_headers(decision, sets, asked_at, &answer::Partitions::default(), &mut headers);
    to.array(2 * headers.len());
    for (name, value) in &headers {
        to.bulk(name.as_str().as_bytes());
        to.bulk(value.as_bytes());
    }
}

fn write_number(number: Option<u64>, to: &mut Replies) {
    match number {
        Some(number) => to.integer(i64::try_from(number).unwrap_or(i64::MAX)),
        None => to.nil(),
    }
}

fn unknown_domain(limiter: &Limiter, error: &UnknownDomain) -> String {
    const MOST_NAMED: usize = 20;
    let snapshot = limiter.snapshot();
    let mut known: Vec<&str> = snapshot.rules().domains().collect();
    known.sort_unstable();
    let more = if known.len() > MOST_NAMED { " and more" } else { "" };
    known.truncate(MOST_NAMED);
    format!("ERR {error}, known domains: {}{more}", known.join(", "))
}

/// Parses a lease from its holder.
///
/// # Errors
/// What is wrong, as text for the client.
pub(crate) fn read_lease(limiter: &Limiter, word: &[u8]) -> Result<LeaseToken, String> {
    let text = str::from_utf8(word).map_err(|_| LeaseTokenError::Malformed);
    let token = text.and_then(|text| limiter.read_lease(text));
    token.map_err(|error| error.to_string())
}

/// Writes the result for a lease: 1, or 0 if it had already ended.
pub(crate) fn write_lease(outcome: Result<(), LeaseError>, to: &mut Replies) {
    match outcome {
        Ok(()) => to.integer(1),
        Err(LeaseError::Ended) => to.integer(0),
        Err(error) => {
            to.error(&format!("ERR {error}, try again, otherwise the lease expires after its ttl"));
        }
    }
}
