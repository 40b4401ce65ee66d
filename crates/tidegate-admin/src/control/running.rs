//! The rules that this node runs. New rules are compiled beside them, then swapped in; if they do not compile, nothing
//! changes.

use std::sync::Arc;

use parking_lot::Mutex;
use tidegate_fleet::PublishedRevision;
use tidegate_limiter::Limiter;
use tidegate_metrics::Metrics;
use tidegate_rules::{
    Diagnostics, Flags, Format, OverrideEffect, RuleChanges, RuleSet, RuntimeOverride, Source, Timestamp,
};
use tidegate_rulestore::{Action, DocumentSet, KeyOverride, Revision};
use tidegate_store::Clock;

use super::fleet::{PublishedSet, heartbeat_of};

/// Where rules come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleSource {
    /// A database: rules can be published through the API.
    Database,
    /// Files: rules are edited there. The paths, for messages.
    Files(Vec<String>),
}

/// Why rules were not taken into use; the old ones keep running.
#[derive(Debug, thiserror::Error)]
#[error("the rules have mistakes")]
pub struct CompileFailure(#[source] pub Diagnostics);

/// The rules without key overrides.
#[derive(Clone, Debug)]
pub(crate) enum Base {
    Documents(DocumentSet),
    Files(Vec<(Source, Format)>),
}

impl Default for Base {
    fn default() -> Self {
        Base::Documents(DocumentSet::default())
    }
}

/// The rules that this node runs, and those it should run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Running {
    pub(crate) base: Arc<Base>,
    /// What of the published this is; if rules come from files, only its overrides.
    pub(crate) revision: Revision,
    pub(crate) overrides: Arc<Vec<KeyOverride>>,
    /// The published revision that does not compile here, and why.
    pub(crate) refused: Option<(Revision, String)>,
    /// Why the published set cannot be read.
    pub(crate) unreadable: Option<String>,
    pub(crate) warnings: Option<Diagnostics>,
    /// A digest of the rules.
    pub(crate) digest: u64,
    /// Overrides that have no effect, by id, and why.
    pub(crate) without_effect: Arc<Vec<(String, String)>>,
}

impl Running {
    /// The version of the rules; 0 if they come from files.
    pub(crate) fn version(&self) -> u64 {
        match *self.base {
            Base::Documents(_) => self.revision.version,
            Base::Files(_) => 0,
        }
    }
}

impl Base {
    /// Compiles the rules without overrides, effective at `now`.
    pub(crate) fn compile(&self, now: Timestamp) -> Result<RuleSet, Diagnostics> {
        self.compile_while(&|| true, now)
    }

    /// The same for somebody who may leave.
    pub(crate) fn compile_while(
        &self,
        wanted: &dyn Fn() -> bool,
        now: Timestamp,
    ) -> Result<RuleSet, Diagnostics> {
        match self {
            Base::Documents(documents) => compile_while(wanted, documents, now),
            Base::Files(files) => {
                let groups: Vec<(&[Source], Format)> =
                    files.iter().map(|(source, format)| (std::slice::from_ref(source), *format)).collect();
                RuleSet::compile_while(wanted, &groups, Some(now))
            }
        }
    }

    /// Its files; those of documents are named by their domain.
    fn sources(&self) -> Vec<Source> {
        match self {
            Base::Documents(documents) => documents.sources(),
            Base::Files(files) => files.iter().map(|(source, _)| source.clone()).collect(),
        }
    }

    /// Its documents: one per domain, or one per file.
    pub(crate) fn documents(&self) -> Vec<tidegate_rulestore::Document> {
        match self {
            Base::Documents(documents) => documents.to_documents(),
            Base::Files(files) => {
                let document = |(source, _): &(Source, Format)| tidegate_rulestore::Document {
                    domain: source.name.clone(),
                    text: source.text.clone(),
                };
                files.iter().map(document).collect()
            }
        }
    }
}

/// Compiles documents, effective at `now`.
pub(crate) fn compile(documents: &DocumentSet, now: Timestamp) -> Result<RuleSet, Diagnostics> {
    compile_while(&|| true, documents, now)
}

/// The same for somebody who may leave.
pub(crate) fn compile_while(
    wanted: &dyn Fn() -> bool,
    documents: &DocumentSet,
    now: Timestamp,
) -> Result<RuleSet, Diagnostics> {
    RuleSet::compile_while(wanted, &[(&documents.sources(), Format::Native)], Some(now))
}

/// The rules that this node runs: compiles new ones beside them, and swaps them in.
pub struct RunningRules {
    limiter: Arc<Limiter>,
    metrics: Arc<Metrics>,
    clock: Arc<dyn Clock>,
    source: RuleSource,
    running: Mutex<Running>,
    /// What the source of feature flags last answered.
    flags: Mutex<Flags>,
    /// Held while rules are compiled and swapped in, so that the second of two changes builds on the first.
    compiling: Mutex<()>,
}

impl RunningRules {
    pub(super) fn new(
        limiter: Arc<Limiter>,
        metrics: Arc<Metrics>,
        clock: Arc<dyn Clock>,
        source: RuleSource,
    ) -> Self {
        RunningRules {
            limiter,
            metrics,
            clock,
            source,
            running: Mutex::default(),
            flags: Mutex::default(),
            compiling: Mutex::default(),
        }
    }

    /// Where rules come from.
    pub(crate) fn source(&self) -> &RuleSource {
        &self.source
    }

    /// What runs now.
    pub(crate) fn now(&self) -> Running {
        self.running.lock().clone()
    }

    /// The number of the published revision that runs.
    pub(crate) fn published_number(&self) -> u64 {
        self.running.lock().revision.number()
    }

    /// The database of the published revision that runs.
    pub(super) fn lineage(&self) -> String {
        self.running.lock().revision.lineage.clone()
    }

    /// Whether this node runs that revision, or has refused it.
    pub(super) fn runs(&self, published: &PublishedRevision) -> bool {
        let running = self.running.lock();
        let refused = running.refused.as_ref().map(|(refused, _)| refused);
        [Some(&running.revision), refused].into_iter().flatten().any(|one| heartbeat_of(one) == *published)
    }

    /// Records why the published set cannot be read, if so, and returns what was recorded before.
    pub(super) fn note_unreadable(&self, why: &Option<String>) -> Option<String> {
        std::mem::replace(&mut self.running.lock().unreadable, why.clone())
    }

    pub(super) fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    /// Records that the limiter started with the rules of these files.
    pub fn began_with(&self, files: Vec<(Source, Format)>) {
        let mut running = self.running.lock();
        running.base = Arc::new(Base::Files(files));
        running.warnings = self.limiter.snapshot().rules().warnings().cloned();
        running.digest = self.metrics.rules_digest();
    }

    /// Takes the rules of files into use, with the current overrides, and returns the changes. Compiling may take long: do
    /// not call this on a thread that requests wait for.
    ///
    /// # Errors
    /// The rules do not compile; the old ones keep running.
    pub fn take_files(&self, files: Vec<(Source, Format)>) -> Result<RuleChanges, CompileFailure> {
        let _one_at_a_time = self.compiling.lock();
        let running = self.running.lock().clone();
        self.take(Running { base: Arc::new(Base::Files(files)), ..running }).map(Option::unwrap_or_default)
    }

    /// What the source of feature flags last answered.
    #[must_use]
    pub fn flags(&self) -> Flags {
        self.flags.lock().clone()
    }

    /// Lets the rules follow these flags from now on, and returns whether that changes any rule.
    ///
    /// # Errors
    /// None in practice: the rules run already.
    pub fn take_flags(&self, flags: Flags) -> Result<bool, CompileFailure> {
        let _one_at_a_time = self.compiling.lock();
        let before = self.limiter.snapshot();
        let is_same = *before.rules().flags() == flags.only(&before.rules().followed_flags());
        *self.flags.lock() = flags;
        if !is_same {
            let running = self.running.lock().clone();
            self.take(running)?;
        }
        Ok(!is_same)
    }

    /// Takes the published set into use; if rules come from files, only its overrides. May take long, like
    /// [`RunningRules::take_files`]. Returns the changes, or `None` if the rules are the same.
    ///
    /// # Errors
    /// The reason why the old rules keep running.
    pub(crate) fn take_published(&self, set: PublishedSet) -> Result<Option<RuleChanges>, String> {
        let _one_at_a_time = self.compiling.lock();
        let running = self.running.lock().clone();
        let revision = set.revision;
        let base = match self.source {
            RuleSource::Database => {
                let documents = DocumentSet::new(set.documents);
                match &*running.base {
                    Base::Documents(same) if *same == documents => running.base.clone(),
                    _ => Arc::new(Base::Documents(documents)),
                }
            }
            RuleSource::Files(_) => running.base.clone(),
        };
        if revision.version == 0 && self.source == RuleSource::Database {
            let why = "the other nodes load their rules from files, and this one has none".to_owned();
            self.running.lock().refused = Some((revision, why.clone()));
            return Err(why);
        }
        let wanted = Running { base, revision, overrides: Arc::new(set.key_overrides), ..running.clone() };
        let is_file = matches!(self.source, RuleSource::Files(_));
        if is_file && wanted.overrides.is_empty() && running.overrides.is_empty() {
            // The wanted rules are already running.
            *self.running.lock() = wanted;
            return Ok(None);
        }
        self.take(wanted).map_err(|failure| failure.0.to_string())
    }

    /// Checks that this node can count what `rules` say, which were compiled from `sources`.
    ///
    /// # Errors
    /// Rules for all regions that have no home here: if each region counted them for itself, they would admit a multiple of their
    /// limits. Rules that keep more of one key than their store does.
    pub(crate) fn check_here(
        &self,
        rules: RuleSet,
        sources: impl Fn() -> Vec<Source>,
    ) -> Result<RuleSet, Diagnostics> {
        rules.check_homes(&sources, |domain| self.limiter.has_home(domain))?;
        self.limiter.check_room(&rules, sources).map(|()| rules)
    }

    /// Compiles `wanted`, takes it into use, and records it. Rules that already run are not compiled again: a ban must not
    /// cost as much as ten thousand rules.
    fn take(&self, mut wanted: Running) -> Result<Option<RuleChanges>, CompileFailure> {
        let before = self.limiter.snapshot();
        let is_same = Arc::ptr_eq(&self.running.lock().base, &wanted.base);
        let compile = || {
            let rules = wanted.base.compile(self.clock.now())?;
            self.check_here(rules, || wanted.base.sources())
        };
        let compiled = match (!is_same).then(compile).transpose() {
            Ok(compiled) => compiled,
            Err(found) => {
                let first = found.iter().next().map(ToString::to_string).unwrap_or_default();
                let what = match wanted.version() {
                    0 => "the rules of the files do".to_owned(),
                    version => format!("version {version} does"),
                };
                let refused = (wanted.revision, format!("{what} not compile: {first}"));
                self.running.lock().refused = Some(refused);
                self.metrics.reload_failed();
                return Err(CompileFailure(found));
            }
        };
        let rules = compiled.as_ref().unwrap_or_else(|| before.rules());
        wanted.warnings = rules.warnings().cloned();
        let overrides: Vec<RuntimeOverride> = wanted.overrides.iter().map(runtime).collect();
        let (rules, problems) = rules.with_overrides_within(&overrides, &|rule| self.limiter.room_of(rule));
        let mut rules = rules.with_flags(&self.flags());
        if self.source == RuleSource::Database {
            // A ban takes the same rules into use once more; decisions keep naming the published version, which people know.
            rules = rules.published_as(wanted.version());
        }
        let named =
            problems.into_iter().map(|problem| (wanted.overrides[problem.place].id.clone(), problem.message));
        wanted.without_effect = Arc::new(named.collect());
        wanted.refused = None;
        let changes = compiled.is_some().then(|| rules.changes_since(before.rules()));
        self.limiter.use_rules(rules);
        self.metrics.reloaded(&self.limiter.snapshot());
        wanted.digest = self.metrics.rules_digest();
        if self.source == RuleSource::Database {
            self.metrics.runs_version(wanted.version());
        }
        *self.running.lock() = wanted;
        Ok(changes)
    }

    /// The published set, if it is what runs here, so that it need not be read again.
    pub(super) fn set_if_running(&self, head: &Revision) -> Option<PublishedSet> {
        let is_it = self.source == RuleSource::Database && self.running.lock().revision == *head;
        is_it.then(|| self.set_in_use())
    }

    /// The running rules as a published set. If rules come from files, those stand in for its documents, which nothing
    /// reads.
    pub(crate) fn set_in_use(&self) -> PublishedSet {
        let running = self.running.lock().clone();
        PublishedSet {
            revision: running.revision,
            documents: running.base.documents(),
            key_overrides: running.overrides.to_vec(),
            serial: 0,
        }
    }
}

impl std::fmt::Debug for RunningRules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunningRules").field("source", &self.source).finish_non_exhaustive()
    }
}

/// The compiler's form of an override.
pub(crate) fn runtime(one: &KeyOverride) -> RuntimeOverride {
    let effect = match one.what.action {
        Action::Ban => OverrideEffect::Ban,
        Action::Unlimited => OverrideEffect::Unlimited,
        // JSON is YAML.
        Action::Limits => {
            OverrideEffect::Limits(serde_json::Value::from(one.what.limits.clone()).to_string())
        }
    };
    RuntimeOverride {
        domain: one.what.domain.clone(),
        rule: one.what.rule.clone(),
        when: one.what.when.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
        until: one.what.until_us.map(Timestamp::from_micros),
        effect,
    }
}
