//! Tells a request with a mistyped attribute from one that merely lacks it.

use tidegate_rules::OnMissingKey;

use crate::decision::{Report, ReportKind};
use crate::observer::Decided;

/// An attribute that no rule uses, of a request that a rule did not count for want of another.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mistyped<'a> {
    /// The rule's domain.
    pub domain: &'a str,
    /// The rule's name.
    pub rule: &'a str,
    /// What the request lacks of the rule's key.
    pub missing: Vec<&'a str>,
    /// What it has and no rule uses.
    pub attribute: &'a str,
}

impl Decided<'_> {
    /// Finds an attribute whose name may be mistyped, so that a rule limits nobody. What the server itself reads from a request
    /// is never mistyped.
    #[must_use]
    pub fn mistyped(&self) -> Option<Mistyped<'_>> {
        let skipped = |report: &&Report| report.kind == ReportKind::KeyMissing(OnMissingKey::Skip);
        if self.request.are_readings {
            return None;
        }
        self.decision.reports().iter().filter(skipped).find_map(|report| self.mistyped_for(report))
    }

    fn mistyped_for(&self, report: &Report) -> Option<Mistyped<'_>> {
        let rule = self.decision.rule_of(report)?;
        // A gateway sends several descriptors, each for other rules.
        let counts =
            |other: &Report| other.rule == report.rule && !matches!(other.kind, ReportKind::KeyMissing(_));
        if self.decision.reports().iter().any(counts) {
            return None;
        }
        let entries = self.request.descriptors.get(report.descriptor)?.descriptor.entries;
        let rules = self.decision.snapshot().rules();
        let unused = entries.iter().find(|(name, _)| !rules.asks_for(rule.domain(), name))?;
        let is_missing = |name: &&str| !entries.iter().any(|(sent, _)| sent == name);
        Some(Mistyped {
            domain: rule.domain(),
            rule: rule.name(),
            missing: rule.key().iter().map(String::as_str).filter(is_missing).collect(),
            attribute: unused.0,
        })
    }
}
