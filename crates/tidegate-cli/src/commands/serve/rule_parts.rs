//! The rules of files and the limits of an xDS server, which are in force together. Each replaces its own part, and only if both
//! compile as one set: a domain that both have is a mistake of whichever came last.

use std::sync::{Arc, Mutex, PoisonError};

use tidegate_admin::{CompileFailure, ControlPlane};
use tidegate_rules::{Format, RuleChanges, Source};

type Sources = Vec<(Source, Format)>;

pub(super) struct RuleParts {
    control: Arc<ControlPlane>,
    in_force: Mutex<InForce>,
}

#[derive(Clone)]
struct InForce {
    files: Sources,
    pushed: Sources,
}

impl RuleParts {
    /// `files` are in force already.
    pub(super) fn new(control: Arc<ControlPlane>, files: Sources) -> Arc<Self> {
        Arc::new(RuleParts { control, in_force: Mutex::new(InForce { files, pushed: Vec::new() }) })
    }

    /// Takes the contents of the files into use. Compiles, so do not call it on a thread that requests wait for.
    pub(super) fn take_files(&self, files: Sources) -> Result<RuleChanges, CompileFailure> {
        self.take(|parts| parts.files = files)
    }

    /// The same with what the xDS server sent.
    pub(super) fn take_pushed(&self, pushed: Sources) -> Result<RuleChanges, CompileFailure> {
        self.take(|parts| parts.pushed = pushed)
    }

    fn take(&self, change: impl FnOnce(&mut InForce)) -> Result<RuleChanges, CompileFailure> {
        let mut in_force = self.in_force.lock().unwrap_or_else(PoisonError::into_inner);
        let mut parts = in_force.clone();
        change(&mut parts);
        let all = parts.files.iter().chain(&parts.pushed).cloned().collect();
        let changes = self.control.rules().take_files(all)?;
        *in_force = parts;
        Ok(changes)
    }
}
