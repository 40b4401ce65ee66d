//! Response bodies.

use std::borrow::Cow;

use serde::{Serialize, Serializer};
use tidegate_limiter::SpentToken;

/// The answer to one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Decision<'a> {
    /// Whether the request is admitted.
    pub allowed: bool,
    /// `rate_limit_exceeded` or `store_unavailable` in a refusal, else left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<&'static str>,
    /// The error as a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<Cow<'static, str>>,
    /// The rule that the numbers belong to; `None` if no rule matched.
    pub rule: Option<&'a str>,
    /// Its limit.
    pub limit: Option<u64>,
    /// What remains of it.
    pub remaining: Option<u64>,
    /// The time until the full quota is back.
    pub reset_after_ms: Option<u64>,
    /// The time until this request would be admitted; `None` if it is, or never would be.
    pub retry_after_ms: Option<u64>,
    /// What decided it.
    pub source: &'static str,
    /// If a concurrency limit was taken: the lease, to be released when the request is done.
    pub lease: Option<&'a str>,
    /// How long to wait before continuing (leaky buckets).
    pub delay_ms: u64,
    /// Rules that did not count the request because it lacks attributes of their key; otherwise omitted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<SkippedRule<'a>>,
    /// If hits were spent: the token for a refund; otherwise omitted.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_text")]
    pub spent: Option<SpentToken>,
}

/// A rule that did not count a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SkippedRule<'a> {
    /// Its name.
    pub rule: &'a str,
    /// The attributes of its key that the request lacks.
    pub missing: Vec<&'a str>,
}

/// Writes straight into the body, without a string in between.
fn as_text<S: Serializer>(spent: &Option<SpentToken>, serializer: S) -> Result<S::Ok, S::Error> {
    match spent {
        Some(spent) => serializer.collect_str(spent),
        None => serializer.serialize_none(),
    }
}

/// The answer to a batch: one decision per check, in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BatchReply<'a> {
    /// The decisions.
    pub decisions: Vec<Decision<'a>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOWED: Decision<'_> = Decision {
        allowed: true,
        error: None,
        message: None,
        rule: Some("per-user"),
        limit: Some(100),
        remaining: Some(99),
        reset_after_ms: Some(60_000),
        retry_after_ms: None,
        source: "store",
        lease: None,
        delay_ms: 0,
        skipped: Vec::new(),
        spent: None,
    };

    #[test]
    fn an_admission_reads_as_documented() {
        assert_eq!(
            serde_json::to_string(&ALLOWED).unwrap(),
            r#"{"allowed":true,"rule":"per-user","limit":100,"remaining":99,"reset_after_ms":60000,"retry_after_ms":null,"source":"store","lease":null,"delay_ms":0}"#
        );
    }

    #[test]
    fn a_refusal_also_has_an_error() {
        let refused = Decision { allowed: false, error: Some("rate_limit_exceeded"), ..ALLOWED };
        let batch = serde_json::to_value(BatchReply { decisions: vec![refused] }).unwrap();
        assert_eq!(batch["decisions"][0]["error"], "rate_limit_exceeded");
    }
}
