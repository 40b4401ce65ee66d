//! What all streams of the process share: the limits that are lent, streams that broke, and whether this node lends.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use tidegate_core::{Micros, Timestamp};
use tidegate_store::Clock;

use super::budget::Budgets;
use super::{ABANDONED_AFTER, BucketId, LENT_FOR, MAX_BUCKETS_IN_ALL, MAX_STREAMS, REPORTS_ABOUT};

/// The quotas that this process lends to Envoys.
pub struct Quotas {
    clock: Arc<dyn Clock>,
    pub(super) budgets: Mutex<Budgets>,
    /// Holders whose stream broke: Envoy keeps using what they have, and reports it on its next stream.
    orphans: Mutex<Orphans>,
    /// Since when this node lends without a break, and until when it may.
    lends: Mutex<(Timestamp, Timestamp)>,
    /// The last report, by the same time.
    reported_at: AtomicU64,
    streams: AtomicUsize,
    buckets: AtomicUsize,
    refused_streams: AtomicU64,
    refused_buckets: AtomicU64,
    abandoned: AtomicU64,
    /// Requests that Envoys say they allowed and denied, by domain.
    reported: Mutex<BTreeMap<String, [u64; 2]>>,
}

const SWEPT_EVERY: Micros = Micros::from_secs(5);

type BucketName = (IpAddr, String, BucketId);

#[derive(Debug, Default)]
struct Orphans {
    by_name: HashMap<BucketName, Vec<(u64, Timestamp)>>,
    count: usize,
    swept: Timestamp,
}

/// What this node may do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Another node lends, or none does.
    NotLending,
    /// It lends, but does not yet know what else is lent.
    Settling,
    /// It lends, and knows all that is lent.
    Lending,
}

/// The counts of [`Quotas`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuotaCounts {
    /// Whether this node lends.
    pub lends: bool,
    /// Open streams.
    pub streams: u64,
    /// Buckets of open streams.
    pub buckets: u64,
    /// Limits of which something is lent.
    pub budgets: u64,
    /// Requests per second lent of all limits, in thousandths.
    pub lent_milli: u64,
    /// Streams refused because there were too many.
    pub refused_streams: u64,
    /// Reports of buckets that got no assignment: too many of them, or malformed.
    pub refused_buckets: u64,
    /// Buckets that Envoy was told to forget.
    pub abandoned: u64,
    /// Requests that Envoys reported as allowed and as denied, by domain.
    pub reported: BTreeMap<String, [u64; 2]>,
}

impl Quotas {
    /// Lends once [`Quotas::may_lend`] allows it.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Quotas {
            clock,
            budgets: Mutex::default(),
            orphans: Mutex::default(),
            lends: Mutex::new((Timestamp::default(), Timestamp::default())),
            reported_at: AtomicU64::new(0),
            streams: AtomicUsize::new(0),
            buckets: AtomicUsize::new(0),
            refused_streams: AtomicU64::new(0),
            refused_buckets: AtomicU64::new(0),
            abandoned: AtomicU64::new(0),
            reported: Mutex::default(),
        })
    }

    /// The time by which it lends: it never steps back, and means nothing outside of this process.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.clock.uptime().get())
    }

    /// This node alone lends, from `now` for `span`. If it did until now, it goes on.
    pub fn may_lend(&self, now: Timestamp, span: Micros) {
        let mut lends = self.lends.lock();
        let (since, until) = *lends;
        *lends = (if now < until { since } else { now }, now + span);
    }

    /// This node lends nothing from now on.
    pub fn stop_lending(&self) {
        *self.lends.lock() = Default::default();
    }

    /// Whether an Envoy reported to this node within the last minute, whether or not it lends.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        let reported_at = self.reported_at.load(Ordering::Relaxed);
        reported_at > 0 && self.now().since(Timestamp::from_micros(reported_at)) < ABANDONED_AFTER
    }

    pub(super) fn wanted(&self, now: Timestamp) {
        self.reported_at.store(now.as_micros().max(1), Ordering::Relaxed);
    }

    pub(super) fn role(&self, now: Timestamp) -> Role {
        let (since, until) = *self.lends.lock();
        match now < until {
            false => Role::NotLending,
            true if now.since(since) < LENT_FOR => Role::Settling,
            true => Role::Lending,
        }
    }

    /// Its counts.
    #[must_use]
    pub fn counts(&self) -> QuotaCounts {
        let (budgets, lent_milli) = self.budgets.lock().lent();
        QuotaCounts {
            lends: self.role(self.now()) != Role::NotLending,
            streams: self.streams.load(Ordering::Relaxed) as u64,
            buckets: self.buckets.load(Ordering::Relaxed) as u64,
            budgets: budgets as u64,
            lent_milli,
            refused_streams: self.refused_streams.load(Ordering::Relaxed),
            refused_buckets: self.refused_buckets.load(Ordering::Relaxed),
            abandoned: self.abandoned.load(Ordering::Relaxed),
            reported: self.reported.lock().clone(),
        }
    }

    /// A place for one more stream, if there is one.
    pub(crate) fn open_stream(self: &Arc<Self>) -> Option<StreamPlace> {
        if self.streams.fetch_add(1, Ordering::Relaxed) < MAX_STREAMS {
            return Some(StreamPlace(Arc::clone(self)));
        }
        self.streams.fetch_sub(1, Ordering::Relaxed);
        self.refused_streams.fetch_add(1, Ordering::Relaxed);
        None
    }

    /// Counts one more bucket of a stream, if there is room.
    pub(super) fn open_bucket(&self) -> bool {
        let has_room = self.buckets.fetch_add(1, Ordering::Relaxed) < MAX_BUCKETS_IN_ALL;
        if !has_room {
            self.buckets.fetch_sub(1, Ordering::Relaxed);
        }
        has_room
    }

    pub(super) fn close_buckets(&self, count: usize) {
        self.buckets.fetch_sub(count, Ordering::Relaxed);
    }

    pub(super) fn bucket_refused(&self) {
        self.refused_buckets.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn bucket_abandoned(&self) {
        self.abandoned.fetch_add(1, Ordering::Relaxed);
        self.close_buckets(1);
    }

    /// Counts requests that Envoys decided. The domain has rules, so there are few.
    pub(super) fn reported(&self, domain: &str, allowed: u64, denied: u64) {
        let mut reported = self.reported.lock();
        if !reported.contains_key(domain) {
            reported.insert(domain.to_owned(), [0, 0]);
        }
        let counts = reported.get_mut(domain).expect("it is there now");
        *counts = [counts[0].wrapping_add(allowed), counts[1].wrapping_add(denied)];
    }

    /// Remembers holders that report no more, as their stream broke, until what they hold has ended and no report is about it.
    pub(super) fn orphan(
        &self,
        (peer, domain): (IpAddr, &str),
        holders: impl Iterator<Item = (BucketId, u64)>,
        now: Timestamp,
    ) {
        let mut orphans = self.orphans.lock();
        orphans.forget_what_has_ended(now);
        for (id, holder) in holders {
            if orphans.count >= MAX_BUCKETS_IN_ALL {
                return;
            }
            orphans.count += 1;
            let name = (peer, domain.to_owned(), id);
            orphans.by_name.entry(name).or_default().push((holder, now + LENT_FOR + REPORTS_ABOUT));
        }
    }

    /// The holders of this bucket whose streams, from the same address, broke.
    pub(super) fn orphans(&self, peer: IpAddr, domain: &str, id: &BucketId) -> Vec<u64> {
        let orphans = self.orphans.lock();
        if orphans.count == 0 {
            return Vec::new();
        }
        let found = orphans.by_name.get(&(peer, domain.to_owned(), id.clone()));
        found.into_iter().flatten().map(|(holder, _)| *holder).collect()
    }
}

impl fmt::Debug for Quotas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quotas").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

impl Orphans {
    /// Looking at all of them every few seconds is enough.
    fn forget_what_has_ended(&mut self, now: Timestamp) {
        if now.since(self.swept) < SWEPT_EVERY {
            return;
        }
        self.swept = now;
        self.by_name.retain(|_, kept| {
            kept.retain(|(_, until)| now < *until);
            !kept.is_empty()
        });
        self.count = self.by_name.values().map(Vec::len).sum();
    }
}

/// The place of an open stream.
#[derive(Debug)]
pub(crate) struct StreamPlace(pub(super) Arc<Quotas>);

impl Drop for StreamPlace {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}
