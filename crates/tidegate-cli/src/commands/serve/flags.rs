//! Asks the source of feature flags, and lets the rules follow what it answers.
//!
//! A request never waits for it. What it last said holds while it is silent; rules have a default for the time before.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::StatusCode;
use http::header::{ETAG, HeaderValue, IF_NONE_MATCH};
use serde::Deserialize;
use tidegate_admin::{ControlPlane, at_low_priority};
use tidegate_limiter::Limiter;
use tidegate_metrics::FollowedFlags;
use tidegate_rules::Flags;
use tokio::time::sleep;

use crate::failure::Failure;
use crate::reload::{Look, Watch};
use crate::settings::flags::{FlagSource, OfrepSource};

/// How long an answer may take. The first one is awaited before the server listens.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
/// The largest answer or file: tens of thousands of flags.
const MOST_BYTES: usize = 4 << 20;

/// The source, and what it said.
pub(super) struct FlagFollower {
    source: FlagSource,
    control: Arc<ControlPlane>,
    answers: Arc<AtomicBool>,
    /// The version of the last answer, so that the same one is not sent again.
    etag: Option<HeaderValue>,
    /// Why the source did not answer, so that the log says so once.
    silent: Option<String>,
}

/// Reads a file of flags.
pub(crate) fn read_file(path: &Path) -> Result<Flags, Failure> {
    read(path).map_err(|why| {
        Failure::new(format!("cannot read the feature flags in {}: {why}", path.display()))
            .hint("write one on each line: `new-limits: true`")
    })
}

fn read(path: &Path) -> Result<Flags, String> {
    let metadata = std::fs::metadata(path).map_err(|error| error.to_string())?;
    if !metadata.is_file() || metadata.len() > MOST_BYTES as u64 {
        return Err("it is not a regular file, or is too large".to_owned());
    }
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let is_empty = text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#'));
    if is_empty {
        return Ok(Flags::default());
    }
    let states: std::collections::BTreeMap<String, bool> =
        serde_saphyr::from_str(&text).map_err(|error| error.without_snippet().to_string())?;
    Ok(states.into_iter().collect())
}

/// The answer of an OFREP server to a question for all flags.
#[derive(Deserialize)]
struct Evaluated {
    flags: Vec<EvaluatedFlag>,
}

/// A flag is a value, or an error.
#[derive(Deserialize)]
struct EvaluatedFlag {
    key: String,
    value: Option<serde_json::Value>,
}

impl FlagFollower {
    /// Asks the source once, so that the first request meets the right rules.
    pub(super) async fn start(source: FlagSource, control: Arc<ControlPlane>) -> Self {
        let mut follower = FlagFollower {
            source,
            control,
            answers: Arc::new(AtomicBool::new(false)),
            etag: None,
            silent: None,
        };
        follower.ask().await;
        follower
    }

    /// What metrics show of it.
    pub(super) fn metrics(
        &self,
        limiter: Arc<Limiter>,
    ) -> impl Fn() -> FollowedFlags + Send + Sync + 'static {
        let answers = self.answers.clone();
        move || FollowedFlags {
            known: limiter
                .snapshot()
                .rules()
                .flags()
                .iter()
                .map(|(name, on)| (name.to_owned(), on))
                .collect(),
            answers: answers.load(Ordering::Relaxed),
        }
    }

    /// Follows the source until dropped.
    pub(super) async fn run(mut self) {
        match self.source.clone() {
            FlagSource::File(path) => {
                let mut watch = Watch::new([path.as_path()].into_iter());
                // Between the first reading and this.
                self.ask().await;
                loop {
                    let found = watch.look();
                    if found == Look::Changed {
                        self.ask().await;
                    }
                    sleep(Watch::pause_after(found)).await;
                }
            }
            FlagSource::Ofrep(source) => loop {
                sleep(source.every).await;
                self.ask().await;
            },
        }
    }

    async fn ask(&mut self) {
        let answer = match &self.source {
            FlagSource::File(path) => read(path).map(Some),
            FlagSource::Ofrep(source) => ask_server(source, &mut self.etag).await,
        };
        self.answers.store(answer.is_ok(), Ordering::Relaxed);
        match answer {
            Ok(flags) => {
                if self.silent.take().is_some() {
                    tracing::info!("the source of feature flags answers again");
                }
                if let Some(flags) = flags {
                    self.take(flags).await;
                }
            }
            Err(why) if self.silent.as_ref() != Some(&why) => {
                tracing::warn!(
                    "the feature flags are unknown: {why}; rules follow what was last known, or their defaults"
                );
                self.silent = Some(why);
            }
            Err(_) => {}
        }
    }

    async fn take(&self, flags: Flags) {
        let control = self.control.clone();
        // With ten thousand rules this takes a while, and requests are decided on the same cores.
        let taken = at_low_priority(move || {
            control.rules().take_flags(flags).map(|changed| (changed, control.rules().flags()))
        });
        if let Ok((true, flags)) = taken.await {
            let on: Vec<&str> =
                flags.iter().filter(|(_, is_on)| *is_on).map(|(name, _)| name).take(20).collect();
            tracing::info!(on = on.join(" "), "rules follow other feature flags");
        }
    }
}

/// Asks for all flags at once; `None` if they are what they were.
async fn ask_server(source: &OfrepSource, etag: &mut Option<HeaderValue>) -> Result<Option<Flags>, String> {
    let mut headers = source.headers.clone();
    headers.extend(etag.clone().map(|etag| (IF_NONE_MATCH, etag)));
    let question = source.question.clone().into();
    let answer = source.endpoint.ask(&headers, question, ANSWERS_WITHIN, MOST_BYTES).await;
    let answer = answer.map_err(|error| error.to_string())?;
    match answer.status() {
        StatusCode::NOT_MODIFIED => return Ok(None),
        StatusCode::OK => {}
        status => return Err(format!("the server answered {status}")),
    }
    let evaluated: Evaluated =
        serde_json::from_slice(answer.body()).map_err(|_| "the answer is not one of OFREP".to_owned())?;
    *etag = answer.headers().get(ETAG).cloned();
    // Only booleans switch a rule; a flag with another value, or an error, counts as unknown.
    let states = evaluated.flags.into_iter().filter_map(|flag| Some((flag.key, flag.value?.as_bool()?)));
    Ok(Some(states.collect()))
}
