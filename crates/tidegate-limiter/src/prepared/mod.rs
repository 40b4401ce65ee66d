//! Checks of requests that always have the same attributes, prepared once.
//!
//! Where one limit decides whatever the values are, a check is a key and a look-up in the store: no rule is matched, nothing is
//! allocated and nothing but the cell's shard is locked. [`Shortcuts`] finds that limit once per rule set. Everything else takes
//! the path of [`Limiter::check`], with the same answers.

mod error;
mod names;
mod shortcut;
mod verdict;

use smallvec::SmallVec;
use tidegate_core::{Ask, Group, Hits, Touch};
use tidegate_rules::Foreseen;
use tidegate_store::{CellKey, Request, Spend};

pub use error::PreparedError;
use shortcut::{Shortcut, Shortcuts, Way};
pub use verdict::Verdict;

use crate::blocking::wait_for;
use crate::decision::Decision;
use crate::limiter::Limiter;
use crate::request::{CheckRequest, DescriptorAsk};

/// Checks of requests with the same `N` attributes, by their values: the fastest way to ask a [`Limiter`].
///
/// It follows rule changes. Keep it as long as the limiter: making one looks through all rules of the domain. On a store in
/// memory, where one limit decides these requests whatever their values, a check costs little more than the store's look-up; in
/// all other cases it costs and answers what [`Limiter::check`] does.
///
/// ```
/// # use std::sync::Arc;
/// # use tidegate_limiter::{Limiter, LimiterConfig, NoObserver};
/// # use tidegate_rules::{Format, RuleSet, Source};
/// # use tidegate_store::{MemoryConfig, MemoryStore};
/// # let text = "{ domain: api, rules: [{ name: per-user, key: [user], limits: [1/minute] }] }";
/// # let rules = RuleSet::compile(&[Source::new("rules.yaml", text)], Format::Native)?;
/// # let store = Arc::new(MemoryStore::new(MemoryConfig::new()));
/// # let limiter = Limiter::new(LimiterConfig::new(rules, store, Arc::new(NoObserver)));
/// let per_user = limiter.prepare("api", ["user"])?;
/// assert!(per_user.check_blocking(&["ann"])?.is_allowed());
/// assert!(!per_user.check_blocking(&["ann"])?.is_allowed());
/// assert!(per_user.check_blocking(&["bob"])?.is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Prepared<const N: usize> {
    limiter: Limiter,
    domain: Box<str>,
    attributes: [Box<str>; N],
    shortcuts: Shortcuts,
}

impl Limiter {
    /// Prepares checks of requests of `domain` with these attributes and no others.
    ///
    /// # Errors
    /// When the rules have no such domain, when one of its rules may give these requests a lease, which a [`Verdict`] cannot hold,
    /// or when none of them would ever count such a request, because all lack an attribute of their key. Rules that
    /// replace these later are not asked the last: where they count none of these requests, they allow them, as with any check.
    pub fn prepare<const N: usize>(
        &self,
        domain: &str,
        attributes: [&str; N],
    ) -> Result<Prepared<N>, PreparedError> {
        let prepared = Prepared {
            limiter: self.clone(),
            domain: domain.into(),
            attributes: attributes.map(Box::from),
            shortcuts: Shortcuts::new(),
        };
        if let Foreseen::NotCounted(rule, attribute) =
            self.rules.load().rules().foresee(domain, &attributes)?
        {
            return Err(PreparedError::NotCounted {
                rule: rule.name().to_owned(),
                attribute: attribute.to_owned(),
                given: attributes.map(str::to_owned).to_vec(),
            });
        }
        match prepared.shortcuts.way(self, domain, &prepared.attributes) {
            Way::TakesLease(rule) => Err(PreparedError::TakesLease { rule: rule.to_owned() }),
            Way::Short(_) | Way::Whole => Ok(prepared),
        }
    }
}

impl<const N: usize> Prepared<N> {
    /// Decides a request with these values, in the order of the attributes.
    ///
    /// # Errors
    /// When the rules no longer have the domain, or may now give it a lease.
    pub async fn check<V: AsRef<[u8]>>(&self, values: &[V; N]) -> Result<Verdict<'_>, PreparedError> {
        self.check_cost(values, 1).await
    }

    /// [`Prepared::check`] with a cost in hits; 0 reads without spending.
    ///
    /// # Errors
    /// As [`Prepared::check`].
    pub async fn check_cost<V: AsRef<[u8]>>(
        &self,
        values: &[V; N],
        hits: u64,
    ) -> Result<Verdict<'_>, PreparedError> {
        match self.at_once(values, Hits::new(hits)) {
            Some(verdict) => Ok(verdict),
            // Large, and rarely used.
            None => Box::pin(self.whole(values, Hits::new(hits))).await,
        }
    }

    /// [`Prepared::check`] for a thread that may block. A store in memory answers at once.
    ///
    /// # Errors
    /// As [`Prepared::check`], and when the limiter's runtime is blocked by this thread.
    #[inline]
    pub fn check_blocking<V: AsRef<[u8]>>(&self, values: &[V; N]) -> Result<Verdict<'_>, PreparedError> {
        self.check_cost_blocking(values, 1)
    }

    /// [`Prepared::check_cost`] for a thread that may block.
    ///
    /// # Errors
    /// As [`Prepared::check_blocking`].
    #[inline]
    pub fn check_cost_blocking<V: AsRef<[u8]>>(
        &self,
        values: &[V; N],
        hits: u64,
    ) -> Result<Verdict<'_>, PreparedError> {
        match self.at_once(values, Hits::new(hits)) {
            Some(verdict) => Ok(verdict),
            None => self.whole_blocking(values, Hits::new(hits)),
        }
    }

    /// The rules that count none of these requests, because they lack an attribute of the rule's key: its name, and that of
    /// the attribute. Others count them. A log line at start that shows these finds typing mistakes.
    #[must_use]
    pub fn skipped(&self) -> Vec<(String, String)> {
        let attributes = self.attributes.each_ref().map(|name| &**name);
        let snapshot = self.limiter.rules.load();
        let skipped = snapshot.rules().skipped_without_key(&self.domain, &attributes);
        skipped.map(|(rule, attribute)| (rule.name().to_owned(), attribute.to_owned())).collect()
    }

    /// The verdict, where one limit decides and the store answers at once. Observers must see whole decisions.
    #[inline]
    fn at_once<V: AsRef<[u8]>>(&self, values: &[V; N], hits: Hits) -> Option<Verdict<'_>> {
        let Way::Short(shortcut) = self.shortcuts.way(&self.limiter, &self.domain, &self.attributes) else {
            return None;
        };
        if self.limiter.observer.wants_decisions() {
            return None;
        }
        let Shortcut { limit, scope, key, over, .. } = shortcut;
        let touch = Touch { limit, ask: Ask { hits, lease: None, over: *over }, group: Group::ENFORCED };
        let decided = key.with_key(values, |key| {
            let spends = [Spend { cell: CellKey { scope, key, tag: key }, touch }];
            self.limiter.store.decide_now(&Request::once(&spends))
        })?;
        Some(Verdict::short(shortcut, &decided.outcomes[0]))
    }

    #[cold]
    fn whole_blocking<V: AsRef<[u8]>>(
        &self,
        values: &[V; N],
        hits: Hits,
    ) -> Result<Verdict<'_>, PreparedError> {
        let patience = self.limiter.blocks_for();
        wait_for(self.whole(values, hits), patience).ok_or(PreparedError::RuntimeBlocked)?
    }

    /// The way of every other check.
    async fn whole<V: AsRef<[u8]>>(&self, values: &[V; N], hits: Hits) -> Result<Verdict<'_>, PreparedError> {
        if let Way::TakesLease(rule) = self.shortcuts.way(&self.limiter, &self.domain, &self.attributes) {
            return Err(PreparedError::TakesLease { rule: rule.to_owned() });
        }
        let pairs = self.attributes.iter().zip(values);
        let entries: SmallVec<[(&str, &[u8]); 8]> =
            pairs.map(|(name, value)| (&**name, value.as_ref())).collect();
        let descriptors = [DescriptorAsk::one(&entries).cost(hits)];
        let decision = self.limiter.check(&CheckRequest::new(&self.domain, &descriptors)).await?;
        self.verdict(&decision)
    }

    fn verdict(&self, decision: &Decision) -> Result<Verdict<'_>, PreparedError> {
        let rule = decision.rule();
        if let Some(lease) = &decision.lease {
            // The rules changed a moment ago. Nobody would hold the lease.
            self.limiter.release_soon(lease);
            return Err(PreparedError::TakesLease { rule: rule.unwrap_or_default().to_owned() });
        }
        Ok(Verdict::of(decision, rule.and_then(|name| self.shortcuts.name(name))))
    }
}
