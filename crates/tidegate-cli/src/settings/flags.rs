//! The section `flags`: where the feature flags come from that rules follow.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::header::{HeaderName, HeaderValue};
use schemars::JsonSchema;
use serde::Deserialize;
use tidegate_telemetry::Endpoint;

use super::telemetry::{endpoint, header_list, often};
use super::values::{Secret, Span, Switch};
use crate::failure::Failure;

/// Where feature flags come from that rules follow (`when: { flag: … }`): nowhere by default
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Flags {
    /// A file with a flag on each line (`new-limits: true`). It is read again when it changes
    pub(crate) file: Option<PathBuf>,
    /// A server with OpenFeature's remote evaluation protocol (OFREP), such as flagd
    pub(crate) ofrep: Option<Ofrep>,
}

/// A server with OpenFeature's remote evaluation protocol
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ofrep {
    /// Its address: https://host:8016, to which /ofrep/v1/evaluate/flags is added
    pub(crate) url: Secret,
    /// How often it is asked: 10s by default
    pub(crate) every: Option<Span>,
    /// What its targeting rules see of this server, by name, for example `environment: production`
    #[serde(default)]
    pub(crate) context: BTreeMap<String, String>,
    /// The context's `targetingKey`: `tidegate` by default, the same on all nodes, so that all follow the same flags
    pub(crate) targeting_key: Option<String>,
    /// Further headers of every request, such as a token
    #[serde(default)]
    pub(crate) headers: BTreeMap<String, Secret>,
    /// PEM file with the authorities to trust: the machine's by default
    pub(crate) ca: Option<PathBuf>,
    /// Whether plaintext may leave the machine: false by default
    pub(crate) plaintext: Option<Switch>,
}

/// The validated section `flags`.
#[derive(Clone, Debug)]
pub(crate) enum FlagSource {
    File(PathBuf),
    Ofrep(OfrepSource),
}

/// A server to ask, and with what.
#[derive(Clone, Debug)]
pub(crate) struct OfrepSource {
    pub(crate) endpoint: Endpoint,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) every: Duration,
    /// The body of each question.
    pub(crate) question: String,
}

impl Flags {
    pub(crate) fn resolve_against(&mut self, directory: &Path) {
        let ca = self.ofrep.iter_mut().filter_map(|ofrep| ofrep.ca.as_mut());
        self.file.iter_mut().chain(ca).for_each(|path| *path = directory.join(&*path));
    }

    /// `None` if there is no source.
    pub(crate) fn check(&self) -> Result<Option<FlagSource>, Failure> {
        match (&self.file, &self.ofrep) {
            (None, None) => Ok(None),
            (Some(file), None) => Ok(Some(FlagSource::File(file.clone()))),
            (None, Some(ofrep)) => ofrep.check().map(|source| Some(FlagSource::Ofrep(source))),
            (Some(_), Some(_)) => {
                Err(Failure::new("flags: `file` and `ofrep` are both given").hint("keep one of them"))
            }
        }
    }
}

impl Ofrep {
    fn check(&self) -> Result<OfrepSource, Failure> {
        let at = endpoint("flags.ofrep.url", &self.url, self.ca.as_deref(), self.plaintext)?;
        let mut context = self.context.clone();
        if context.contains_key("targetingKey") {
            return Err(Failure::new("flags.ofrep.context: `targetingKey` is a field of its own")
                .hint("write it as flags.ofrep.targeting_key"));
        }
        let key = self.targeting_key.clone().unwrap_or_else(|| "tidegate".to_owned());
        context.insert("targetingKey".to_owned(), key);
        Ok(OfrepSource {
            endpoint: at.at("/ofrep/v1/evaluate/flags"),
            headers: header_list("flags.ofrep.headers", &self.headers)?,
            every: often("flags.ofrep.every", self.every, Duration::from_secs(10))?,
            question: serde_json::json!({ "context": context }).to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistake_in_the_source_names_its_field() {
        let of = |text: &str| serde_saphyr::from_str::<Flags>(text).unwrap().check();
        for (text, field) in [
            ("{ file: a, ofrep: { url: 'http://127.0.0.1:1' } }", "flags:"),
            ("ofrep: { url: 'http://flags.example' }", "flags.ofrep.url"),
            ("ofrep: { url: 'http://127.0.0.1:1', every: 2h }", "flags.ofrep.every"),
            ("ofrep: { url: 'http://127.0.0.1:1', context: { targetingKey: a } }", "targeting_key"),
            ("ofrep: { url: 'http://127.0.0.1:1', headers: { 'a b': c } }", "flags.ofrep.headers"),
        ] {
            let failure = format!("{:?}", of(text).unwrap_err());
            assert!(failure.contains(field), "{text}: {failure}");
        }
        assert!(of("{}").unwrap().is_none());
    }
}
