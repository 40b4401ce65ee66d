//! Warns once per rule that skips a request because an attribute of its key is missing: usually a typing mistake, and the
//! rule then limits nobody.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use tidegate_limiter::Decision;

use crate::ask::Ask;

/// Rules that have had their warning, by domain and name: at most [`MOST_WARNINGS`], and no warnings beyond.
static WARNED: Mutex<BTreeSet<(String, String)>> = Mutex::new(BTreeSet::new());
const MOST_WARNINGS: usize = 64;

/// Warns of each rule that skipped the request, once in this process.
pub(crate) fn warn_once(ask: &Ask<'_>, decision: &Decision) {
    for rule in decision.skipped() {
        let missing: Vec<&str> =
            rule.key().iter().map(String::as_str).filter(|attribute| !ask.accounts_for(attribute)).collect();
        if missing.is_empty() {
            continue;
        }
        let name = (rule.domain().to_owned(), rule.name().to_owned());
        let mut warned = WARNED.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.len() < MOST_WARNINGS && warned.insert(name) {
            drop(warned);
            write(&text(rule.name(), rule.domain(), &missing, ask));
        }
    }
}

fn text(rule: &str, domain: &str, missing: &[&str], ask: &Ask<'_>) -> String {
    let (missing, names) =
        (missing.join("`, `"), ask.entries().iter().map(|(name, _)| *name).collect::<Vec<_>>());
    let given = if names.is_empty() { "none".to_owned() } else { format!("`{}`", names.join("`, `")) };
    format!(
        "rule {rule} of domain {domain} did not count a request without `{missing}` (its attributes: {given}); if that is meant, \
         say so with `Ask::without`. This is said once per rule."
    )
}

#[cfg(feature = "tracing")]
fn write(text: &str) {
    tracing::warn!("{text}");
}

#[cfg(not(feature = "tracing"))]
#[expect(clippy::print_stderr, reason = "without tracing there is no other place, and silence limits nobody")]
fn write(text: &str) {
    eprintln!("tidegate: {text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_names_what_is_missing_and_what_is_there() {
        let ask = Ask::new("api").with("usr", "ann");
        let text = text("per-user", "api", &["user"], &ask);
        assert!(
            text.starts_with(
                "rule per-user of domain api did not count a request without `user` (its attributes: `usr`)"
            ),
            "{text}"
        );
    }
}
