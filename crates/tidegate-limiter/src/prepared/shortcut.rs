//! The limit that decides prepared checks, found once per rule set.
//!
//! A check compares one number with the limiter's: as long as they are equal, what was found holds. What was found is never
//! dropped before its handle, so that verdicts can borrow from it and a check needs no reference count. Rule sets that change
//! nothing about these requests find what is there already; a handle that has met [`MOST`] different limits takes the whole path
//! from then on.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::{Limit, Micros, Over, Scope};
use tidegate_rules::{Coordination, Foreseen, KeyPlan, SoleLimit};

use super::names::Names;
use crate::limiter::Limiter;
use crate::source::Source;

/// The most limits, and the most rules that give leases, that a handle keeps.
const MOST: usize = 32;

/// The limit that decides all requests with certain attributes, with what a check needs of its rule.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Shortcut {
    pub(super) limit: Limit,
    pub(super) scope: Scope,
    pub(super) key: KeyPlan,
    pub(super) over: Over,
    pub(super) source: Source,
    pub(super) rule: Box<str>,
    pub(super) quota: u64,
    pub(super) window: Option<Micros>,
}

impl Shortcut {
    fn new(sole: SoleLimit<'_>) -> Self {
        let over = sole.over();
        let SoleLimit { rule, limit, key } = sole;
        let source = match rule.coordination() {
            Coordination::Exact => Source::Store,
            Coordination::Approximate { .. } => Source::Approximate,
            Coordination::Local => Source::Local,
            Coordination::Escrow | Coordination::Eventual { .. } => {
                unreachable!("`foresee` leaves rules for all regions to the whole path")
            }
        };
        let (quota, window) = (limit.limit.quota(), limit.limit.quota_window());
        let (limit, scope) = (limit.limit.clone(), limit.scope.clone());
        Shortcut { limit, scope, key, over, source, rule: rule.name().into(), quota, window }
    }
}

/// How a check is decided.
pub(super) enum Way<'s> {
    Short(&'s Shortcut),
    Whole,
    /// It cannot be: this rule may give it a lease.
    TakesLease(&'s str),
}

#[derive(Debug)]
pub(super) struct Shortcuts {
    /// The limiter's epoch when it was last looked, and what was found then: [`pack`].
    found: AtomicU64,
    kept: Interned<Shortcut>,
    lenders: Interned<Box<str>>,
    names: Names,
}

/// In the place of an index: no limit alone decides.
const WHOLE: u64 = 0xff;
/// Added to the index of a lender's name: it may give a lease.
const TAKES_LEASE: u64 = 0x80;

impl Shortcuts {
    pub(super) fn new() -> Self {
        Shortcuts {
            found: AtomicU64::new(u64::MAX),
            kept: Interned::new(),
            lenders: Interned::new(),
            names: Names::default(),
        }
    }

    /// How to decide a request with these attributes under the rules in use.
    #[inline]
    pub(super) fn way<'s>(&'s self, limiter: &Limiter, domain: &str, attributes: &[Box<str>]) -> Way<'s> {
        let epoch = limiter.epoch.load(Ordering::Acquire);
        let mut found = self.found.load(Ordering::Acquire);
        if found >> 8 != epoch {
            found = self.find(epoch, limiter, domain, attributes);
        }
        match found & 0xff {
            WHOLE => Way::Whole,
            index if index & TAKES_LEASE != 0 => {
                self.lenders.get(index & !TAKES_LEASE).map_or(Way::Whole, |name| Way::TakesLease(name))
            }
            index => self.kept.get(index).map_or(Way::Whole, Way::Short),
        }
    }

    /// A name that lives as long as this; `None` if there are too many.
    pub(super) fn name(&self, name: &str) -> Option<&str> {
        self.names.keep(name)
    }

    #[cold]
    fn find(&self, epoch: u64, limiter: &Limiter, domain: &str, attributes: &[Box<str>]) -> u64 {
        let snapshot = limiter.rules.load();
        let attributes: Vec<&str> = attributes.iter().map(|name| &**name).collect();
        let index = match snapshot.rules().foresee(domain, &attributes) {
            Ok(Foreseen::Sole(sole)) if limiter.decides_now => self.kept.keep(Shortcut::new(sole)),
            Ok(Foreseen::TakesLease(rule)) => {
                self.lenders.keep(rule.name().into()).map(|index| index | TAKES_LEASE)
            }
            _ => None,
        };
        let found = epoch << 8 | index.unwrap_or(WHOLE);
        // Rules newer than `epoch` are found again at the next check.
        self.found.store(found, Ordering::Release);
        found
    }
}

/// Values that are kept for good, each once.
#[derive(Debug)]
struct Interned<T>(Box<[OnceLock<T>]>);

impl<T: PartialEq> Interned<T> {
    fn new() -> Self {
        Interned((0..MOST).map(|_| OnceLock::new()).collect())
    }

    /// Its index; `None` if there is no room.
    fn keep(&self, value: T) -> Option<u64> {
        let mut new = Some(value);
        for (index, place) in (0..).zip(&self.0) {
            let kept = place.get_or_init(|| new.take().expect("it is kept only once"));
            if new.as_ref().is_none_or(|new| new == kept) {
                return Some(index);
            }
        }
        None
    }

    #[inline]
    fn get(&self, index: u64) -> Option<&T> {
        self.0.get(usize::try_from(index).ok()?)?.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_kept_once_and_never_too_many() {
        let kept = Interned::new();
        assert_eq!((kept.keep("a"), kept.keep("b"), kept.keep("a")), (Some(0), Some(1), Some(0)));
        let many: Vec<String> = (0..40).map(|number| number.to_string()).collect();
        let indexes: Vec<_> = many.iter().map(|name| kept.keep(name)).collect();
        assert_eq!(indexes[29], Some(31));
        assert_eq!(&indexes[30..], [None; 10]);
        assert_eq!((kept.get(0), kept.get(31), kept.get(32)), (Some(&"a"), Some(&"29"), None));
    }
}
