//! Keeps the limiter's rules in sync with the rule files.
//!
//! Rules with a mistake change nothing: the old ones keep running, and the log and the metrics say so.

use std::sync::Arc;

use tidegate_admin::at_low_priority;
use tidegate_limiter::Limiter;
use tidegate_rules::{Diagnostics, Format, Severity, Source};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::rule_parts::RuleParts;
use super::signals::Done;
use crate::reload::{Look, Watch};
use crate::rules::{RuleFiles, RulesError};
use crate::unread::{Surfaces, Unread, locate};

pub(super) struct Reloader {
    files: RuleFiles,
    surfaces: Surfaces,
    watch: Watch,
    limiter: Arc<Limiter>,
    parts: Arc<RuleParts>,
}

/// Why the reloader woke up.
#[derive(Clone, Copy, Debug)]
enum Cause {
    /// The files are due for a look.
    Time,
    /// SIGHUP.
    Hangup,
}

impl Reloader {
    /// `watch` must be older than the limiter's rules, so that no change between the two is missed.
    pub(super) fn new(
        files: RuleFiles,
        surfaces: Surfaces,
        watch: Watch,
        limiter: Arc<Limiter>,
        parts: Arc<RuleParts>,
    ) -> Self {
        Reloader { files, surfaces, watch, limiter, parts }
    }

    /// Runs until dropped.
    pub(super) async fn run(mut self, mut hangups: mpsc::Receiver<Done>) {
        let mut found = Look::Same;
        loop {
            let (cause, _done) = tokio::select! {
                Some(done) = hangups.recv() => (Cause::Hangup, Some(done)),
                () = sleep(Watch::pause_after(found)) => (Cause::Time, None),
            };
            // A look may take a while, and blocks the runtime.
            let looking = tokio::task::spawn_blocking(move || {
                let found = self.look(cause);
                (self, found)
            });
            (self, found) = looking.await.expect("looking at files does not panic");
            if found == Look::Changed {
                // Reading and compiling take longer, and requests are decided on the same cores.
                let reload = move || {
                    self.reload();
                    self
                };
                self = at_low_priority(reload).await;
            }
        }
    }

    fn look(&mut self, cause: Cause) -> Look {
        match cause {
            Cause::Time => self.watch.look(),
            Cause::Hangup => {
                self.watch.forget_changes();
                Look::Changed
            }
        }
    }

    fn reload(&self) {
        let before = self.limiter.snapshot();
        let taken = self.files.read().and_then(|files| {
            let kept = files.clone();
            let taken = self.parts.take_files(files).map_err(|failure| RulesError::Invalid(failure.0))?;
            Ok((kept, taken))
        });
        let snapshot = self.limiter.snapshot();
        let version = snapshot.version();
        match taken {
            Ok((files, changes)) => {
                snapshot.rules().warnings().into_iter().for_each(log_each);
                let mut unread = self.surfaces.unread(snapshot.rules());
                let known = self.surfaces.unread(before.rules());
                unread.retain(|one| !known.iter().any(|known| known.is_same(one)));
                log_unread(unread, &files);
                for lost in &changes.lost {
                    tracing::warn!(hint = lost.hint, "{}", lost.message);
                }
                let rules = snapshot.rules().rules().len();
                tracing::info!(version, rules, files = files.len(), "rules reloaded: {changes}");
            }
            Err(error) => {
                tracing::error!(version, "rules not reloaded, the old ones keep running");
                log_reasons(&error);
            }
        }
    }
}

/// Logs the rules whose key uses attributes that nothing reads.
pub(super) fn log_unread(mut unread: Vec<Unread>, files: &[(Source, Format)]) {
    locate(&mut unread, files);
    for one in unread {
        tracing::warn!(hint = one.hint(), "{one}");
    }
}

/// Logs why there are no new rules.
fn log_reasons(error: &RulesError) {
    match error {
        RulesError::Unreadable(_) => tracing::error!("{error}"),
        RulesError::Invalid(found) => log_each(found),
    }
}

/// One line per finding: collectors take lines, and a person reads the first few.
pub(super) fn log_each(found: &Diagnostics) {
    for one in found.iter() {
        let hint = one.hint.as_str();
        match one.severity {
            Severity::Error => tracing::error!(hint, "{one}"),
            Severity::Warning => tracing::warn!(hint, "{one}"),
        }
    }
}
