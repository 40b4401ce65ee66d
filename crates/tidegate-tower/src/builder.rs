//! Which attributes a layer reads from requests, checked against what its rules match and count by.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use http::request::Parts;
use tidegate_http::Gate;
use tidegate_http::answer::ClosedStatus;
use tidegate_limiter::{Limiter, TokioRuntime};
use tidegate_rules::{OnMissingKey, UnknownDomain};
use tidegate_store::SystemClock;

use crate::RateLimitLayer;
use crate::headers::HeaderSets;
use crate::identity::{Attributes, Identity, IdentityConfig};
use crate::layer::{Also, Extract, LayerState, Who};

/// Builds a [`RateLimitLayer`]: which attributes it reads from requests.
///
/// ```
/// # use tidegate_tower::RateLimitLayer;
/// # #[derive(Clone)] struct User(String);
/// # fn example(limiter: tidegate_limiter::Limiter) -> Result<RateLimitLayer, tidegate_tower::LayerError> {
/// RateLimitLayer::builder(limiter, "api")
///     .also(["user"], |parts, attributes| {
///         if let Some(User(name)) = parts.extensions.get() {
///             attributes.push_everywhere("user", name.as_bytes());
///         }
///     })
///     .build()
/// # }
/// ```
#[must_use = "a builder limits nothing until it is built"]
pub struct LayerBuilder {
    limiter: Arc<Limiter>,
    domain: String,
    who: Who,
    also: Option<Arc<Also>>,
    /// Attributes that closures add, and attributes that only other callers send.
    declared: BTreeSet<String>,
}

/// Why a layer cannot be built.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LayerError {
    /// The rules do not have the domain.
    UnknownDomain(UnknownDomain),
    /// A rule counts by an attribute that this layer does not read: it would limit nobody.
    Unread {
        /// The rule.
        rule: String,
        /// The attribute of its key.
        attribute: String,
        /// The attributes that this layer reads.
        reads: Vec<String>,
    },
    /// A rule matches only what has an attribute that this layer does not read: it would limit nobody.
    Unmatched {
        /// The rule.
        rule: String,
        /// The attribute of its condition.
        attribute: String,
        /// The attributes that this layer reads.
        reads: Vec<String>,
    },
}

impl LayerBuilder {
    pub(crate) fn new(limiter: Arc<Limiter>, domain: &str) -> Self {
        let identity = Identity::new(&IdentityConfig::default()).expect("identity needs no configuration");
        let who = Who::Identity(Arc::new(identity));
        LayerBuilder { limiter, domain: domain.to_owned(), who, also: None, declared: BTreeSet::new() }
    }

    /// Reads the attributes that `identity` describes.
    pub fn identity(mut self, identity: impl Into<Arc<Identity>>) -> Self {
        self.who = Who::Identity(identity.into());
        self
    }

    /// Reads only what `extract` returns: the attributes `names`, for example from extensions that an earlier layer has set.
    pub fn extract(
        mut self,
        names: impl IntoIterator<Item = impl Into<String>>,
        extract: impl for<'r> Fn(&'r Parts) -> Attributes<'r> + Send + Sync + 'static,
    ) -> Self {
        self.who = Who::Extract(Arc::new(extract) as Arc<Extract>);
        self.declare(names)
    }

    /// Adds what `also` reads, the attributes `names`, to those of the identity: such as the user that an earlier layer has
    /// authenticated. Attributes of the identity are not replaced. Put that layer around this one: with axum's `layer`,
    /// the one added last runs first; with tonic's `Server` and tower's `ServiceBuilder`, the one added first.
    pub fn also(
        mut self,
        names: impl IntoIterator<Item = impl Into<String>>,
        also: impl for<'r> Fn(&'r Parts, &mut Attributes<'r>) + Send + Sync + 'static,
    ) -> Self {
        self.also = Some(Arc::new(also));
        self.declare(names)
    }

    /// Declares attributes that only other callers send, such as handlers. Rules that match or count by them skip every
    /// request of this layer.
    pub fn asked_elsewhere(self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.declare(names)
    }

    /// Builds the layer.
    ///
    /// # Errors
    /// When the rules do not have the domain, or one of them can never count a request of this layer: its key, or a condition
    /// that something must be so, asks for an attribute that the layer does not read.
    pub fn build(self) -> Result<RateLimitLayer, LayerError> {
        self.check()?;
        let gate = Gate {
            limiter: self.limiter,
            shedder: None,
            headers: HeaderSets::ALL,
            closed_status: ClosedStatus::default(),
            runtime: Arc::new(TokioRuntime),
            clock: Arc::new(SystemClock::new()),
            observed: None,
        };
        let shared = LayerState {
            gate,
            domain: self.domain.into(),
            who: self.who,
            also: self.also,
            cost: None,
            on_missing_key: OnMissingKey::Skip,
            on_refused: None,
            refund_when: None,
        };
        Ok(RateLimitLayer { shared: Arc::new(shared) })
    }

    fn declare(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.declared.extend(names.into_iter().map(Into::into));
        self
    }

    fn check(&self) -> Result<(), LayerError> {
        let snapshot = self.limiter.snapshot();
        let rules = snapshot.rules();
        if !rules.has_domain(&self.domain) {
            return Err(LayerError::UnknownDomain(UnknownDomain { domain: self.domain.clone() }));
        }
        let mut reads = self.declared.clone();
        if let Who::Identity(identity) = &self.who {
            reads.extend(identity.attribute_names().map(str::to_owned));
        }
        let ours = rules.rules().filter(|rule| rule.domain() == self.domain && rule.is_enabled());
        for rule in ours {
            if let Some(attribute) = rule.key().iter().find(|attribute| !reads.contains(*attribute)) {
                let (rule, attribute) = (rule.name().to_owned(), attribute.clone());
                return Err(LayerError::Unread { rule, attribute, reads: reads.into_iter().collect() });
            }
        }
        let required = rules.required_attributes(&self.domain);
        let mut unread = required.filter(|(rule, name)| rule.is_enabled() && !reads.contains(*name));
        if let Some((rule, attribute)) = unread.next() {
            let (rule, attribute) = (rule.name().to_owned(), attribute.to_owned());
            return Err(LayerError::Unmatched { rule, attribute, reads: reads.into_iter().collect() });
        }
        Ok(())
    }
}

impl fmt::Display for LayerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LayerError::UnknownDomain(unknown) => unknown.fmt(f),
            LayerError::Unread { rule, attribute, reads } => unread(f, (rule, "counts"), attribute, reads),
            LayerError::Unmatched { rule, attribute, reads } => {
                unread(f, (rule, "matches"), attribute, reads)
            }
        }
    }
}

fn unread(
    f: &mut fmt::Formatter<'_>,
    (rule, does): (&str, &str),
    attribute: &str,
    reads: &[String],
) -> fmt::Result {
    write!(
        f,
        "rule {rule} {does} by `{attribute}`, which this layer does not read: it would limit nobody; the layer reads {}; \
         read it with `RateLimitLayer::builder(..).also([\"{attribute}\"], ..)` or `.identity(..)`, or declare it with \
         `.asked_elsewhere([\"{attribute}\"])`",
        if reads.is_empty() { "nothing".to_owned() } else { reads.join(", ") }
    )
}

impl std::error::Error for LayerError {}

impl From<UnknownDomain> for LayerError {
    fn from(unknown: UnknownDomain) -> Self {
        LayerError::UnknownDomain(unknown)
    }
}

impl fmt::Debug for LayerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LayerBuilder").field("domain", &self.domain).finish_non_exhaustive()
    }
}
