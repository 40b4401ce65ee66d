//! One stream: an Envoy's reports, and the assignments that answer them.
//!
//! Nothing is sent but answers to reports, so a slow peer holds one report and one message.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use tidegate_core::{Micros, Timestamp, append_part};
use tidegate_rules::{Descriptor, MatchedLimits, Matches, Mode, OnMissingKey};
use tonic::Status;

use super::budget::{Ask, Need};
use super::quotas::{Quotas, Role, StreamPlace};
use super::terms::Terms;
use super::{
    ABANDONED_AFTER, ANSWERED_AT_ONCE, APPLIED_WITHIN, AbandonAction, Action, BlanketRule, BucketAction,
    BucketId, BucketQuotaUsage, MAX_BUCKETS, QuotaAssignmentAction, REPORTS_ABOUT, RateLimitQuotaResponse,
    RateLimitQuotaUsageReports, RateLimitStrategy, Strategy, VALID_FOR,
};
use crate::json::{MAX_ATTRIBUTES, MAX_DOMAIN_BYTES, MAX_NAME_BYTES, MAX_VALUE_BYTES};
use crate::service::Service;

const SECOND: Micros = Micros::from_secs(1);

/// The most shares of a bucket that are remembered as sent: Envoy reports every five seconds, and once more when a bucket begins.
const MOST_UNCONFIRMED: usize = 4;

/// Why the server ends a stream.
pub(crate) type Ended = Status;

/// One Envoy's stream.
pub(crate) struct QuotaSession {
    service: Arc<Service>,
    place: StreamPlace,
    peer: IpAddr,
    domain: String,
    buckets: HashMap<BucketId, EnvoyBucket>,
    /// The rest of the report that is being answered.
    unanswered: VecDeque<BucketQuotaUsage>,
}

/// A bucket of an Envoy.
#[derive(Debug)]
pub(super) struct EnvoyBucket {
    holder: u64,
    /// Until its first report is answered: whoever may have held its shares on an earlier stream.
    before: Vec<u64>,
    /// Its last report on this stream, and its last with a request.
    reported: Option<Timestamp>,
    used: Timestamp,
    /// What it holds of each limit.
    shares: Vec<HeldShare>,
}

/// What a bucket holds of one limit.
#[derive(Debug)]
struct HeldShare {
    cell: Box<[u8]>,
    current: u64,
    /// The serial of the last share that was certainly applied.
    confirmed: u64,
    /// Serials sent since, and when.
    sent: VecDeque<(u64, Timestamp)>,
}

/// What the rules say of a bucket.
enum Ruled {
    Deny,
    /// The cell of each limit that applies; none: everything passes.
    Limits(Vec<(Box<[u8]>, Terms)>),
}

impl QuotaSession {
    pub(crate) fn new(service: Arc<Service>, place: StreamPlace, peer: IpAddr) -> Self {
        let (buckets, unanswered) = (HashMap::new(), VecDeque::new());
        QuotaSession { service, place, peer, domain: String::new(), buckets, unanswered }
    }

    /// Takes a report in; [`QuotaSession::answer`] answers it.
    ///
    /// # Errors
    /// When the stream must end: another node lends, or no rule has the domain.
    pub(crate) fn take(&mut self, report: RateLimitQuotaUsageReports) -> Result<(), Ended> {
        let now = self.now();
        self.place.0.wanted(now);
        if self.place.0.role(now) == Role::NotLending {
            return Err(Status::unavailable("another node lends quotas"));
        }
        if self.domain.is_empty() {
            self.domain = report.domain;
        } else if !report.domain.is_empty() && report.domain != self.domain {
            return Err(Status::invalid_argument("domain: it differs from the stream's first"));
        }
        if self.domain.is_empty() || self.domain.len() > MAX_DOMAIN_BYTES {
            return Err(Status::invalid_argument(format!("domain: expected 1 to {MAX_DOMAIN_BYTES} bytes")));
        }
        let snapshot = self.service.limiter.snapshot();
        if !snapshot.rules().has_domain(&self.domain) {
            return Err(Status::not_found(format!("no rule has the domain `{}`", self.domain)));
        }
        self.unanswered = report.bucket_quota_usages.into();
        let sums = self.unanswered.iter().fold((0_u64, 0_u64), |(allowed, denied), usage| {
            (allowed.wrapping_add(usage.num_requests_allowed), denied.wrapping_add(usage.num_requests_denied))
        });
        self.place.0.reported(&self.domain, sums.0, sums.1);
        self.place.0.budgets.lock().sweep(now);
        Ok(())
    }

    /// Whether a part of the last report is unanswered.
    pub(crate) fn has_more(&self) -> bool {
        !self.unanswered.is_empty()
    }

    /// The next message, if the last report calls for one.
    pub(crate) fn answer(&mut self) -> Option<RateLimitQuotaResponse> {
        let mut bucket_action = Vec::new();
        let now = self.now();
        for _ in 0..ANSWERED_AT_ONCE {
            let Some(usage) = self.unanswered.pop_front() else { break };
            let Some((id, action)) = self.action(usage, now) else { continue };
            bucket_action.push(BucketAction { bucket_id: Some(id), bucket_action: Some(action) });
        }
        (!bucket_action.is_empty()).then_some(RateLimitQuotaResponse { bucket_action })
    }

    fn now(&self) -> Timestamp {
        self.place.0.now()
    }

    fn action(&mut self, usage: BucketQuotaUsage, now: Timestamp) -> Option<(BucketId, Action)> {
        let id = usage.bucket_id.as_ref()?.clone();
        if !is_well_formed(&id) || !self.knows(&id, &usage, now) {
            self.place.0.bucket_refused();
            return None;
        }
        let bucket = self.buckets.get_mut(&id).expect("it is known");
        let hits = usage.num_requests_allowed.saturating_add(usage.num_requests_denied);
        if hits > 0 {
            bucket.used = now;
        } else if now.since(bucket.used) >= ABANDONED_AFTER {
            // What it holds ends by itself: this message may be lost.
            let holder = bucket.holder;
            self.buckets.remove(&id);
            self.place.0.bucket_abandoned();
            self.place.0.orphan((self.peer, &self.domain), std::iter::once((id.clone(), holder)), now);
            return Some((id, Action::AbandonAction(AbandonAction {})));
        }
        let strategy = match ruled(&self.service, &self.domain, &id) {
            Ruled::Deny => blanket(BlanketRule::DenyAll),
            Ruled::Limits(limits) if limits.is_empty() => blanket(BlanketRule::AllowAll),
            Ruled::Limits(limits) => bucket.share(&self.place.0, &limits, &usage, now)?,
        };
        bucket.reported = Some(now);
        let assignment = QuotaAssignmentAction {
            assignment_time_to_live: Some(prost_types::Duration {
                seconds: i64::try_from(VALID_FOR.as_secs_ceil()).expect("a few seconds"),
                nanos: 0,
            }),
            rate_limit_strategy: Some(strategy),
        };
        Some((id, Action::QuotaAssignmentAction(assignment)))
    }

    /// Whether the bucket is known now; not if there is no room.
    fn knows(&mut self, id: &BucketId, usage: &BucketQuotaUsage, now: Timestamp) -> bool {
        if self.buckets.contains_key(id) {
            return true;
        }
        let quotas = &self.place.0;
        if self.buckets.len() >= MAX_BUCKETS || !quotas.open_bucket() {
            return false;
        }
        // A bucket that Envoy had before this stream has what the last stream lent it. What a longer report proves may have ended.
        let was_there = elapsed(usage) > Micros::ZERO && elapsed(usage) + SECOND <= REPORTS_ABOUT;
        let before = if was_there { quotas.orphans(self.peer, &self.domain, id) } else { Vec::new() };
        let holder = quotas.budgets.lock().new_holder();
        let bucket = EnvoyBucket { holder, before, reported: None, used: now, shares: Vec::new() };
        self.buckets.insert(id.clone(), bucket);
        true
    }
}

impl Drop for QuotaSession {
    fn drop(&mut self) {
        let now = self.now();
        self.place.0.close_buckets(self.buckets.len());
        let holders = self.buckets.drain().map(|(id, bucket)| (id, bucket.holder));
        self.place.0.orphan((self.peer, &self.domain), holders, now);
    }
}

impl EnvoyBucket {
    /// The slowest of its shares of all `limits`. None while the server does not know what it may lend.
    fn share(
        &mut self,
        quotas: &Quotas,
        limits: &[(Box<[u8]>, Terms)],
        usage: &BucketQuotaUsage,
        now: Timestamp,
    ) -> Option<RateLimitStrategy> {
        let settles = quotas.role(now) != Role::Lending;
        let since = match self.reported {
            Some(reported) => now.since(reported),
            None => elapsed(usage),
        };
        if settles && since == Micros::ZERO {
            return None;
        }
        self.shares.retain(|held| limits.iter().any(|(cell, _)| *cell == held.cell));
        let mut slowest: Option<(u64, Terms)> = None;
        let mut budgets = quotas.budgets.lock();
        let before = std::mem::take(&mut self.before);
        for (cell, terms) in limits {
            if !before.is_empty() {
                budgets.hand_over(cell, &before, self.holder, proven(usage, since, terms), now);
            }
            let held = HeldShare::of(&mut self.shares, cell);
            held.confirm(now);
            let others = limits.iter().filter(|(other, _)| other != cell);
            let most = others.map(|(_, other)| terms.converted(other.capacity, other)).min();
            let ask = Ask {
                holder: self.holder,
                confirmed: held.confirmed,
                current: held.current,
                // What this server itself gave needs no proof.
                need: match settles {
                    true => Need::AtMost(proven(usage, since, terms).max(held.current)),
                    false => need(usage, since, terms),
                },
                most: most.unwrap_or(u64::MAX),
            };
            held.current = match budgets.claim(cell, *terms, ask, now) {
                Some(share) => {
                    held.sent(share.serial, now);
                    share.ceiling
                }
                None => 0,
            };
            if slowest.is_none_or(|(share, of)| terms.is_slower(held.current, (share, &of))) {
                slowest = Some((held.current, *terms));
            }
        }
        slowest.map(|(share, terms)| terms.strategy(share))
    }
}

impl HeldShare {
    fn of<'h>(shares: &'h mut Vec<HeldShare>, cell: &[u8]) -> &'h mut Self {
        let at = shares.iter().position(|held| *held.cell == *cell).unwrap_or(shares.len());
        if at == shares.len() {
            shares.push(HeldShare { cell: cell.into(), current: 0, confirmed: 0, sent: VecDeque::new() });
        }
        &mut shares[at]
    }

    /// A share is sent. Of many within seconds not all are confirmed: the later ones are.
    fn sent(&mut self, serial: u64, now: Timestamp) {
        if self.sent.len() < MOST_UNCONFIRMED {
            self.sent.push_back((serial, now));
        }
    }

    /// A report came at `now`: shares sent long enough before it are applied.
    fn confirm(&mut self, now: Timestamp) {
        while let Some((serial, _)) = self.sent.pop_front_if(|(_, sent)| now.since(*sent) >= APPLIED_WITHIN) {
            self.confirmed = serial;
        }
    }
}

fn need(usage: &BucketQuotaUsage, since: Micros, terms: &Terms) -> Need {
    if since == Micros::ZERO {
        return Need::Unknown;
    }
    let hits = usage.num_requests_allowed.saturating_add(usage.num_requests_denied);
    Need::Demand(terms.rate_of(hits, since.max(SECOND)))
}

/// The share that a bucket certainly had, since it passed so many requests. It may have less now: what was sent to reduce it then
/// still counts as lent.
fn proven(usage: &BucketQuotaUsage, since: Micros, terms: &Terms) -> u64 {
    // Envoy reports whole seconds, rounded down.
    terms.proven_by(usage.num_requests_allowed, since + SECOND)
}

fn elapsed(usage: &BucketQuotaUsage) -> Micros {
    let seconds = usage.time_elapsed.map_or(0, |span| span.seconds);
    Micros::from_secs(u64::try_from(seconds).unwrap_or(0).min(86_400))
}

/// What the rules say of this bucket now.
fn ruled(service: &Service, domain: &str, id: &BucketId) -> Ruled {
    let entries: Vec<(&str, &[u8])> =
        id.bucket.iter().map(|(name, value)| (name.as_str(), value.as_slice())).collect();
    let (snapshot, mut found, now) = (service.limiter.snapshot(), Matches::new(), service.clock.now());
    let known = snapshot.rules().matches(domain, &[Descriptor { entries: &entries }], now, &mut found);
    if known.is_err() {
        // The domain went while its stream is open: the next report ends it.
        return Ruled::Limits(Vec::new());
    }
    let mut limits = Vec::new();
    for one in found.iter().filter(|one| one.rule.mode() != Mode::Shadow) {
        match one.limits {
            MatchedLimits::Banned { .. } | MatchedLimits::KeyMissing(OnMissingKey::Refuse) => {
                return Ruled::Deny;
            }
            MatchedLimits::Unlimited | MatchedLimits::KeyMissing(OnMissingKey::Skip) => {}
            MatchedLimits::Enforce(of_rule) => limits.extend(of_rule.iter().filter_map(|limit| {
                let terms = Terms::of(&limit.limit, now)?;
                let mut cell = Vec::new();
                append_part(&mut cell, limit.scope.as_bytes());
                append_part(&mut cell, &one.key);
                Some((cell.into_boxed_slice(), terms))
            })),
        }
    }
    // The strictest first: it decides where several give the same share.
    limits.sort_by_key(|(_, terms)| terms.per_second_milli(terms.capacity));
    Ruled::Limits(limits)
}

pub(super) fn blanket(rule: BlanketRule) -> RateLimitStrategy {
    RateLimitStrategy { strategy: Some(Strategy::BlanketRule(rule.into())) }
}

/// Whether Envoy can have this bucket: it reads no answer with a text that is not UTF-8.
fn is_well_formed(id: &BucketId) -> bool {
    let fits = |(name, value): (&String, &Vec<u8>)| {
        name.len() <= MAX_NAME_BYTES && value.len() <= MAX_VALUE_BYTES && std::str::from_utf8(value).is_ok()
    };
    (1..=MAX_ATTRIBUTES).contains(&id.bucket.len()) && id.bucket.iter().all(fits)
}
