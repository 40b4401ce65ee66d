//! What this node runs: compiled beside the running rules, then swapped in. What does not compile changes nothing.

use std::sync::Arc;

use tidegate_rules::{Diagnostics, Format, OverrideEffect, RuleSet, RuntimeOverride, Source, Timestamp};
use tidegate_rulestore::{Action, DocumentSet, KeyOverride};

use super::Control;

/// Where rules come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleSource {
    /// A database: they can be published here.
    Database,
    /// Files: they are edited there. Where, for a person.
    Files(Vec<String>),
}

/// Why rules were not taken into use; the old ones go on.
#[derive(Debug, thiserror::Error)]
#[error("the rules have mistakes")]
pub struct CompileFailure(#[source] pub Diagnostics);

/// The rules without overrides.
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

/// What this node runs, and what it should.
#[derive(Clone, Debug, Default)]
pub(crate) struct Running {
    pub(crate) base: Arc<Base>,
    pub(crate) version: u64,
    pub(crate) overrides: Arc<Vec<KeyOverride>>,
    pub(crate) overrides_revision: u64,
    /// Why it does not run what is published.
    pub(crate) error: Option<String>,
    pub(crate) warnings: Option<Diagnostics>,
    /// Overrides that have no effect, by id, and why.
    pub(crate) without_effect: Arc<Vec<(String, String)>>,
}

impl Base {
    /// Compiles it alone.
    pub(crate) fn compile(&self) -> Result<RuleSet, Diagnostics> {
        match self {
            Base::Documents(documents) => RuleSet::compile(&documents.sources(), Format::Native),
            Base::Files(files) => {
                let groups: Vec<(&[Source], Format)> =
                    files.iter().map(|(source, format)| (std::slice::from_ref(source), *format)).collect();
                RuleSet::compile_all(&groups)
            }
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

impl Control {
    /// Takes the rules of files into use, with the overrides that there are.
    ///
    /// # Errors
    /// When they have mistakes.
    pub fn take_files(&self, files: Vec<(Source, Format)>) -> Result<(), CompileFailure> {
        let running = self.running.lock().clone();
        self.take(Running { base: Arc::new(Base::Files(files)), version: 0, ..running })
    }

    /// Compiles `wanted`, takes it into use, and remembers it. It may take long: not on a thread that others wait for.
    ///
    /// # Errors
    /// When it has mistakes; then the old rules go on.
    pub(crate) fn take(&self, mut wanted: Running) -> Result<(), CompileFailure> {
        let compiled = wanted.base.compile();
        let rules = match compiled {
            Ok(rules) => rules,
            Err(found) => {
                let first = found.iter().next().map(ToString::to_string).unwrap_or_default();
                let error = format!("version {} does not compile: {first}", wanted.version);
                self.running.lock().error = Some(error);
                self.metrics.reload_failed();
                return Err(CompileFailure(found));
            }
        };
        wanted.warnings = rules.warnings().cloned();
        let overrides: Vec<RuntimeOverride> = wanted.overrides.iter().map(runtime).collect();
        let (rules, problems) = rules.with_overrides(&overrides);
        let named =
            problems.into_iter().map(|problem| (wanted.overrides[problem.place].id.clone(), problem.message));
        wanted.without_effect = Arc::new(named.collect());
        wanted.error = None;
        self.limiter.replace_rules(rules);
        self.metrics.reloaded(&self.limiter.snapshot());
        *self.running.lock() = wanted;
        Ok(())
    }
}

/// What the compiler takes for an override.
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
