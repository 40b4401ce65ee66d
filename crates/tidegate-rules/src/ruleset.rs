//! A compiled set of rules: immutable, shared by every thread, matched without a lock.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use foldhash::fast::RandomState;
use tidegate_core::Timestamp;

use crate::calendar::Calendars;
use crate::diagnostics::{Diagnostics, Report, Span};
use crate::envoy;
use crate::explain::{self, Explanation};
use crate::flags::{FlagStates, Flags};
use crate::load::Source;
use crate::matching::envoy::EnvoyDomain;
use crate::matching::native::NativeDomain;
use crate::matching::{Descriptor, Matches};
use crate::native;
use crate::rule::Rule;
use crate::runtime::Overrides;
use crate::yaml::{self, Value};

/// The format of a rule file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// Our own: `domain` and `rules`.
    Native,
    /// envoyproxy/ratelimit's: `domain` and nested `descriptors`.
    EnvoyRatelimit,
}

impl Format {
    /// Guesses the format of a file: `descriptors` means envoyproxy/ratelimit's, anything else ours.
    #[must_use]
    pub fn of(source: &Source) -> Format {
        let documents = yaml::parse(0, &source.text, &mut Report::new(&[source]));
        let fields = documents.first().and_then(|document| match &document.value {
            Value::Map(fields) => Some(fields),
            _ => None,
        });
        let has = |name| fields.is_some_and(|fields| fields.iter().any(|(key, _)| &*key.text == name));
        if has("descriptors") && !has("rules") { Format::EnvoyRatelimit } else { Format::Native }
    }
}

/// A compiled set of rules.
///
/// ```
/// use tidegate_core::Timestamp;
/// use tidegate_rules::{Descriptor, Format, Matches, RuleSet, Source};
///
/// let text = "{ domain: api, rules: [{ name: per-user, key: [user], limits: [100/minute] }] }";
/// let rules = RuleSet::compile(&[Source::new("rules.yaml", text)], Format::Native)?;
///
/// let request = Descriptor { entries: &[("user", b"42")] };
/// let mut found = Matches::new();
/// rules.matches("api", &[request], Timestamp::from_micros(0), &mut found).expect("a known domain");
/// assert_eq!(found[0].rule.name(), "per-user");
/// # Ok::<(), tidegate_rules::Diagnostics>(())
/// ```
#[derive(Debug, Default)]
pub struct RuleSet {
    /// Shared with sets that have other runtime overrides on the same rules: those change more often than rules do.
    compiled: Arc<Compiled>,
    /// The runtime overrides of each domain.
    pub(crate) overrides: HashMap<Box<str>, Overrides, RandomState>,
    /// Rules that carry the bans of a whole domain; their indexes follow those of the files' rules.
    pub(crate) carriers: Vec<Rule>,
    flags: FlagStates,
    /// The version under which the rules were published.
    published: Option<u64>,
}

/// The compiled rule files.
#[derive(Debug, Default)]
struct Compiled {
    rules: Box<[Rule]>,
    domains: HashMap<Box<str>, Domain, RandomState>,
    warnings: Option<Diagnostics>,
}

#[derive(Debug)]
pub(crate) enum Domain {
    Native(NativeDomain),
    Envoy(EnvoyDomain),
}

/// No rule file has this domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownDomain {
    /// The requested domain.
    pub domain: String,
}

impl fmt::Display for UnknownDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown domain `{}`", self.domain)
    }
}

impl std::error::Error for UnknownDomain {}

impl RuleSet {
    /// Compiles rule files of one format.
    ///
    /// # Errors
    /// Every mistake that was found, if there is any: a set is accepted whole or not at all.
    pub fn compile(sources: &[Source], format: Format) -> Result<RuleSet, Diagnostics> {
        RuleSet::compile_all(&[(sources, format)])
    }

    /// Compiles rule files of several formats into one set. A domain of our own format may be spread over several files, and
    /// one file may have several domains, as documents separated by `---`. Rules of one domain must have different names, so
    /// that a leftover copy is noticed and does not double every limit.
    ///
    /// # Errors
    /// Every mistake that was found, if there is any.
    pub fn compile_all(groups: &[(&[Source], Format)]) -> Result<RuleSet, Diagnostics> {
        RuleSet::compile_at(groups, None)
    }

    /// Like [`RuleSet::compile_all`], for rules that take effect at `now`: also warns of what has expired by then.
    ///
    /// # Errors
    /// Every mistake that was found, if there is any.
    pub fn compile_at(
        groups: &[(&[Source], Format)],
        now: Option<Timestamp>,
    ) -> Result<RuleSet, Diagnostics> {
        RuleSet::compile_while(&|| true, groups, now)
    }

    /// Like [`RuleSet::compile_at`], for somebody who may leave: it ends soon after `wanted` says no, with a mistake that says
    /// so.
    ///
    /// # Errors
    /// Every mistake that was found, if there is any.
    pub fn compile_while(
        wanted: &dyn Fn() -> bool,
        groups: &[(&[Source], Format)],
        now: Option<Timestamp>,
    ) -> Result<RuleSet, Diagnostics> {
        let files: Vec<&Source> = groups.iter().flat_map(|(sources, _)| sources.iter()).collect();
        let formats = groups.iter().flat_map(|(sources, format)| sources.iter().map(|_| *format));
        let mut report = Report::while_wanted(&files, wanted);
        let mut compiling = Compiling { now, ..Compiling::default() };
        for ((number, source), format) in (0..).zip(&files).zip(formats) {
            let documents = yaml::parse(number, &source.text, &mut report);
            match format {
                Format::Native => {
                    documents.iter().for_each(|document| native::read(document, &mut compiling, &mut report));
                }
                Format::EnvoyRatelimit => envoy::compile_first(&documents, &mut compiling, &mut report),
            }
        }
        if wanted() {
            native::finish(&mut compiling, &mut report);
        }
        let warnings = report.finish()?;
        let compiled = Compiled { rules: compiling.rules.into(), domains: compiling.domains, warnings };
        let set = RuleSet { compiled: Arc::new(compiled), ..RuleSet::default() };
        Ok(set.under(Flags::default()))
    }

    /// What was accepted but looks wrong.
    #[must_use]
    pub fn warnings(&self) -> Option<&Diagnostics> {
        self.compiled.warnings.as_ref()
    }

    /// Sets the version under which the rules were published.
    #[must_use]
    pub fn published_as(self, version: u64) -> Self {
        RuleSet { published: Some(version), ..self }
    }

    /// The version under which they were published; `None` if they come from elsewhere.
    #[must_use]
    pub fn published(&self) -> Option<u64> {
        self.published
    }

    /// The rules, in the order of their indices.
    pub fn rules(&self) -> impl ExactSizeIterator<Item = &Rule> {
        (0..self.len()).map(|index| self.rule(index))
    }

    /// Those that a person wrote.
    pub(crate) fn written(&self) -> impl Iterator<Item = &Rule> {
        self.compiled.rules.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.compiled.rules.len() + self.carriers.len()
    }

    /// The rule at an index.
    ///
    /// # Panics
    /// If this set has no such index.
    #[must_use]
    pub fn rule(&self, index: usize) -> &Rule {
        let files = &self.compiled.rules;
        files.get(index).unwrap_or_else(|| &self.carriers[index - files.len()])
    }

    /// The same rules without overrides; nothing is compiled or copied.
    pub(crate) fn bare(&self) -> RuleSet {
        RuleSet { compiled: self.compiled.clone(), flags: self.flags.clone(), ..RuleSet::default() }
    }

    /// The same rules under these flags.
    pub(crate) fn under(self, flags: Flags) -> RuleSet {
        RuleSet { flags: FlagStates::of(&self.compiled.rules, flags), ..self }
    }

    pub(crate) fn flag_states(&self) -> &FlagStates {
        &self.flags
    }

    /// The domains that have rules, in no particular order.
    pub fn domains(&self) -> impl Iterator<Item = &str> {
        self.compiled.domains.keys().map(|name| &**name)
    }

    pub(crate) fn domain(&self, name: &str) -> Option<&Domain> {
        self.compiled.domains.get(name)
    }

    pub(crate) fn all_domains(&self) -> impl Iterator<Item = (&str, &Domain)> {
        self.compiled.domains.iter().map(|(name, domain)| (&**name, domain))
    }

    /// Whether some rule file has this domain.
    #[must_use]
    pub fn has_domain(&self, name: &str) -> bool {
        self.compiled.domains.contains_key(name)
    }

    /// Whether some rule of the domain uses this attribute, in its conditions, key or tiers.
    #[must_use]
    pub fn asks_for(&self, domain: &str, attribute: &str) -> bool {
        match self.compiled.domains.get(domain) {
            Some(Domain::Native(native)) => native.attributes.get(attribute).is_some(),
            Some(Domain::Envoy(_)) => true,
            None => false,
        }
    }

    /// The attributes that a request must have to match a rule of the domain, beside that rule. One that a rule only says
    /// what it must not be may be absent, too, and is not among them.
    pub fn required_attributes(&self, domain: &str) -> impl Iterator<Item = (&Rule, &str)> {
        let native = self.compiled.domains.get(domain).and_then(|domain| match domain {
            Domain::Native(native) => Some(native),
            Domain::Envoy(_) => None,
        });
        native.into_iter().flat_map(move |native| {
            native.selectors.iter().flat_map(move |selector| {
                let required = selector.conditions.iter().filter(|condition| condition.is.is_some());
                required.map(move |one| (self.rule(selector.rule), native.attributes.name(one.attribute)))
            })
        })
    }

    /// Appends the matches for each descriptor of one request, without those that another match overrides.
    ///
    /// # Errors
    /// No file has the domain.
    pub fn matches<'r>(
        &'r self,
        domain: &str,
        descriptors: &[Descriptor<'_>],
        now: Timestamp,
        found: &mut Matches<'r>,
    ) -> Result<(), UnknownDomain> {
        let (first, rules) = (found.len(), &*self.compiled.rules);
        match self.compiled.domains.get(domain) {
            Some(Domain::Native(native)) => native.matches((rules, &self.flags), descriptors, now, found),
            Some(Domain::Envoy(envoy)) => envoy.matches(rules, descriptors, now, found),
            None => return Err(UnknownDomain { domain: domain.to_owned() }),
        }
        if !self.overrides.is_empty()
            && let Some(overrides) = self.overrides.get(domain)
        {
            overrides.apply(&self.carriers, descriptors, now, first, found);
        }
        Ok(())
    }
}

impl RuleSet {
    /// For each rule of the domain, whether it counts for a request with this one descriptor, and if not, why.
    ///
    /// # Errors
    /// No file has the domain.
    pub fn explain(
        &self,
        domain: &str,
        descriptor: &Descriptor<'_>,
        now: Timestamp,
    ) -> Result<Explanation, UnknownDomain> {
        let mut explained = self.explain_without_overrides(domain, descriptor, now)?;
        if let Some(overrides) = self.overrides.get(domain) {
            self.explain_overrides(domain, descriptor, now, overrides, &mut explained.rules)?;
        }
        Ok(explained)
    }

    /// Like [`RuleSet::explain`], as if no single key were overridden: for those who must not learn which keys are.
    ///
    /// # Errors
    /// No file has the domain.
    pub fn explain_without_overrides(
        &self,
        domain: &str,
        descriptor: &Descriptor<'_>,
        now: Timestamp,
    ) -> Result<Explanation, UnknownDomain> {
        let rules = match self.compiled.domains.get(domain) {
            Some(Domain::Native(native)) => {
                explain::native(native, (&self.compiled.rules, &self.flags), descriptor, now)
            }
            Some(Domain::Envoy(envoy)) => explain::envoy(envoy, &self.compiled.rules, descriptor, now),
            None => return Err(UnknownDomain { domain: domain.to_owned() }),
        };
        Ok(Explanation { domain: domain.to_owned(), rules })
    }
}

impl RuleSet {
    fn explain_overrides(
        &self,
        domain: &str,
        descriptor: &Descriptor<'_>,
        now: Timestamp,
        overrides: &Overrides,
        rules: &mut Vec<explain::RuleExplanation>,
    ) -> Result<(), UnknownDomain> {
        let mut found = Matches::new();
        self.matches(domain, &[*descriptor], now, &mut found)?;
        for one in found.iter().filter(|one| overrides.touches(one.rule.index(), descriptor, now)) {
            match rules.iter_mut().find(|explained| explained.rule == one.rule.name()) {
                Some(explained) => explain::overridden(one, &mut explained.outcome),
                None => rules.push(explain::RuleExplanation::of_override(one)),
            }
        }
        Ok(())
    }
}

/// A set that is being compiled, file by file.
#[derive(Default)]
pub(crate) struct Compiling {
    pub(crate) rules: Vec<Rule>,
    pub(crate) calendars: Calendars,
    /// When the rules take effect, if known.
    pub(crate) now: Option<Timestamp>,
    pub(crate) native: native::Domains,
    domains: HashMap<Box<str>, Domain, RandomState>,
    claimed: HashMap<Box<str>, (Span, Format)>,
}

impl Compiling {
    /// Claims `name` for one document of envoyproxy/ratelimit's format; reports a second one with this name.
    pub(crate) fn claim(&mut self, name: &str, span: Span, report: &mut Report<'_>) {
        if let Some((first, _)) = self.claimed.get(name) {
            let hint = "keep all limits of a domain in one file, or use another domain";
            report
                .error(span, format!("the domain `{name}` is given twice"), hint)
                .related(*first, "first given here");
            return;
        }
        self.claimed.insert(name.into(), (span, Format::EnvoyRatelimit));
    }

    /// Claims `name` for a document of our own format; a domain may have several.
    pub(crate) fn claim_for_native(&mut self, name: &str, span: Span, report: &mut Report<'_>) {
        match self.claimed.get(name) {
            Some((first, Format::EnvoyRatelimit)) => {
                let message = format!("the domain `{name}` is envoyproxy/ratelimit's already");
                let hint = "keep a domain in one format, or use another domain";
                report.error(span, message, hint).related(*first, "first given here");
            }
            Some(_) => {}
            None => {
                self.claimed.insert(name.into(), (span, Format::Native));
            }
        }
    }

    pub(crate) fn add_domain(&mut self, name: &str, domain: Domain) {
        self.domains.insert(name.into(), domain);
    }
}
