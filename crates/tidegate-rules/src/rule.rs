//! A compiled rule: its effect, apart from when it matches.

use std::sync::Arc;

#[cfg(feature = "serde")]
use serde::Serialize;
use tidegate_core::{Hits, Limit, Micros, Over, Scope};

use crate::choice::{LimitChoice, LimitSet};
use crate::digest::of_limit;
use crate::flags::FollowedFlag;
use crate::policy::{Policy, PolicyNames};
use crate::split::{Share, Split};

/// One rule of a compiled set. Indexes are dense within the set, so that other code may keep a list with one entry per rule.
#[derive(Debug)]
pub struct Rule {
    pub(crate) index: usize,
    pub(crate) name: String,
    pub(crate) domain: Arc<str>,
    pub(crate) mode: Mode,
    pub(crate) on_store_failure: OnStoreFailure,
    pub(crate) coordination: Coordination,
    pub(crate) priority: Option<Priority>,
    pub(crate) key: Box<[String]>,
    pub(crate) limits: LimitChoice,
    pub(crate) label: Option<String>,
    pub(crate) replacing: Replacing,
    pub(crate) about: About,
    /// A rule that is off is validated like all others, and matches nothing.
    pub(crate) enabled: bool,
    pub(crate) when: Option<Box<FollowedFlag>>,
    pub(crate) rollout: Option<Split>,
    pub(crate) penalty: Option<Box<RuleLimit>>,
    pub(crate) overdraft: Hits,
    pub(crate) over: Over,
    pub(crate) autopilot: Option<Autopilot>,
    pub(crate) lends: bool,
    pub(crate) visible: bool,
    pub(crate) policies: PolicyNames,
}

/// How far and how fast a rule's limit may follow demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Autopilot {
    /// The lowest limit.
    pub min: u64,
    /// The highest limit.
    pub max: u64,
    /// The largest change per step.
    pub step: Share,
    /// The time between steps.
    pub every: Micros,
}

/// A rule's description and owner, as its author wrote them.
#[derive(Debug, Default)]
pub(crate) struct About {
    pub(crate) description: Option<String>,
    pub(crate) owner: Option<String>,
}

impl Rule {
    /// Its index in the set: below the length of [`RuleSet::rules`](crate::RuleSet::rules), and unique.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// Its name, unique within its domain. An envoyproxy/ratelimit limit is named by its path: `path_/login.user`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The domain it belongs to.
    #[must_use]
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// Whether it may refuse.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// What decides while its counters are unreachable.
    #[must_use]
    pub fn on_store_failure(&self) -> OnStoreFailure {
        self.on_store_failure
    }

    /// Where its counters live.
    #[must_use]
    pub fn coordination(&self) -> Coordination {
        self.coordination
    }

    /// The priority of the traffic it matches, if the rule sets one.
    #[must_use]
    pub fn priority(&self) -> Option<Priority> {
        self.priority
    }

    /// The attributes of its key; empty for one counter for everybody. An envoyproxy/ratelimit limit is keyed by the whole
    /// descriptor, and lists none.
    #[must_use]
    pub fn key(&self) -> &[String] {
        &self.key
    }

    /// The name that an envoyproxy/ratelimit file gives to the limit itself; not unique.
    #[must_use]
    pub fn label(&self) -> Option<&str> {
        self.label.as_deref()
    }

    /// Its description, as its author wrote it.
    #[must_use]
    pub fn description(&self) -> Option<&str> {
        self.about.description.as_deref()
    }

    /// Whom to ask about it.
    #[must_use]
    pub fn owner(&self) -> Option<&str> {
        self.about.owner.as_deref()
    }

    /// Whether it is on. A rule that is off is validated like all others, and matches nothing.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// The feature flag that it follows: it counts only while that is on.
    #[must_use]
    pub fn flag(&self) -> Option<&FollowedFlag> {
        self.when.as_deref()
    }

    /// The share of its keys that it applies to, if not all.
    #[must_use]
    pub fn rollout(&self) -> Option<Share> {
        self.rollout.as_ref().map(|split| split.share)
    }

    /// The share of its keys that get the experiment's limits, if it has one.
    #[must_use]
    pub fn experiment(&self) -> Option<Share> {
        self.limits.experiment.as_ref().map(|experiment| experiment.split.share)
    }

    /// The limit that enforces its penalty: of one hit, spent only by a refusal. A caller passes this rule only while its
    /// cell, under the same key, is empty.
    #[must_use]
    pub fn penalty(&self) -> Option<&RuleLimit> {
        self.penalty.as_deref()
    }

    /// By how many hits charges after the fact may exceed each of its limits.
    #[must_use]
    pub fn overdraft(&self) -> Hits {
        self.overdraft
    }

    /// What a cost above what is left does, for limits that do not say so themselves.
    #[must_use]
    pub fn over(&self) -> Over {
        self.over
    }

    /// Whether clients may take its hits ahead, and spend them by themselves.
    #[must_use]
    pub fn lends_to_clients(&self) -> bool {
        self.lends
    }

    /// Whether callers may see it: a hidden rule is not in headers, nor in the bodies of answers.
    #[must_use]
    pub fn is_visible(&self) -> bool {
        self.visible
    }

    /// Whether its limit follows demand, and how far.
    #[must_use]
    pub fn autopilot(&self) -> Option<Autopilot> {
        self.autopilot
    }

    /// Whether it is internal: it carries the bans of its whole domain.
    #[must_use]
    pub fn is_carrier(&self) -> bool {
        self.name == crate::runtime::BAN
    }

    /// A rule that matches nothing on its own: bans of a whole domain are reported under its name.
    pub(crate) fn carrier(index: usize, name: &str, domain: &str) -> Self {
        let unlimited = LimitChoice::same(LimitSet::Unlimited);
        Rule {
            coordination: Coordination::Local,
            ..Rule::plain(index, name.to_owned(), domain.into(), unlimited)
        }
    }

    /// A rule that says nothing but its limits.
    pub(crate) fn plain(index: usize, name: String, domain: Arc<str>, limits: LimitChoice) -> Self {
        Rule {
            index,
            name,
            domain,
            mode: Mode::Enforce,
            on_store_failure: OnStoreFailure::default(),
            coordination: Coordination::default(),
            priority: None,
            key: Box::default(),
            limits,
            label: None,
            replacing: Replacing::default(),
            about: About::default(),
            enabled: true,
            when: None,
            rollout: None,
            penalty: None,
            overdraft: Hits::ZERO,
            over: Over::Refuse,
            autopilot: None,
            lends: false,
            visible: true,
            policies: PolicyNames::default(),
        }
    }

    /// What it says besides its name, its limits and which requests it matches: two rules behave alike if this is equal.
    pub(crate) fn settings(&self) -> Vec<(&'static str, String)> {
        vec![
            ("mode", format!("{:?}", self.mode)),
            ("enabled", self.enabled.to_string()),
            ("when", self.flag().map_or("always".to_owned(), |flag| format!("{flag:?}"))),
            ("key", self.key.join(", ")),
            ("on_store_failure", format!("{:?}", self.on_store_failure)),
            ("coordination", format!("{:?}", self.coordination)),
            ("priority", format!("{:?}", self.priority)),
            ("rollout", self.rollout().map_or("100%".to_owned(), |share| share.to_string())),
            ("penalty", self.penalty().map_or("none".to_owned(), |penalty| of_limit(&penalty.limit))),
            ("overdraft", self.overdraft.get().to_string()),
            ("over", format!("{:?}", self.over)),
            ("autopilot", format!("{:?}", self.autopilot)),
            ("visible", self.visible.to_string()),
            ("lease_to_clients", self.lends.to_string()),
        ]
    }

    /// Its limits by group: everybody (an empty name), each tier by its name, `experiment`. Those of single keys are left
    /// out: there may be thousands.
    pub fn limit_sets(&self) -> impl Iterator<Item = (String, &[RuleLimit])> {
        self.limits.named_sets().into_iter()
    }

    /// Every limit it may enforce, including those of tiers, of single keys and of an experiment.
    pub fn limits(&self) -> impl Iterator<Item = &RuleLimit> {
        self.limits.sets().flat_map(|set| set.as_slice())
    }
}

/// A limit of a rule, and the scope of its cells.
#[derive(Clone, Debug)]
pub struct RuleLimit {
    /// The limit itself; one that clients take hits of ahead allows for the time that they hold them.
    pub limit: Limit,
    /// Its name, unique within the limits that apply together; by default the algorithm and the window.
    pub name: String,
    /// Domain, rule, name, family of the algorithm and window: a changed number keeps its cells, a changed window gets new ones.
    pub scope: Scope,
    /// What a cost above what is left does; none if its rule says so ([`Rule::over`]).
    pub over: Option<Over>,
    /// What becomes of a place that a client holds and hangs up on.
    pub on_hangup: OnHangup,
    /// How long a client may hold hits of it before it spends them; none if it lends none.
    pub held: Option<Micros>,
    /// What callers know it by.
    pub policy: Policy,
}

/// What becomes of a place of a concurrency limit if the client hangs up while the service still works for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnHangup {
    /// It stays taken until the service's answer ends, for the limit's `ttl` at most.
    #[default]
    Hold,
    /// It is free at once. The service behind must stop its work then, or a client can have any amount of it done at once.
    Release,
}

impl RuleLimit {
    /// Its slot in a set of limits: its name if it was given one, otherwise its window. An override for a single key
    /// replaces the limit in the same slot, whatever the algorithms.
    pub(crate) fn slot(&self) -> &str {
        let algorithm = self.limit.algorithm().name();
        self.name.strip_prefix(algorithm).and_then(|rest| rest.strip_prefix('/')).unwrap_or(&self.name)
    }
}

/// Whether a rule may refuse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Mode {
    /// It refuses requests over its limits.
    #[default]
    Enforce,
    /// It decides and counts, but never refuses.
    Shadow,
    /// A request is refused only when every quota that it matches is spent.
    Quota,
}

/// What decides while a rule's counters are unreachable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnStoreFailure {
    /// Allow.
    Open,
    /// Refuse.
    Closed,
    /// Decide on this node alone, with its share of the limit.
    #[default]
    Local,
}

/// Where a rule's counters live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Coordination {
    /// In the store that all nodes share, used for every request.
    #[default]
    Exact,
    /// On each node, reconciled through the store.
    Approximate {
        /// How often.
        sync_every: Micros,
    },
    /// On each node separately.
    Local,
    /// In the home store of all regions, whose hits each node takes before it spends them: never over the limit.
    Escrow,
    /// On each node, reconciled through the home store of all regions.
    Eventual {
        /// How often.
        sync_every: Micros,
    },
}

impl Coordination {
    /// Whether all regions count together.
    #[must_use]
    pub fn is_global(self) -> bool {
        matches!(self, Coordination::Escrow | Coordination::Eventual { .. })
    }

    /// How often what nodes counted is reconciled, if they count themselves.
    #[must_use]
    pub fn sync_every(self) -> Option<Micros> {
        match self {
            Coordination::Approximate { sync_every } | Coordination::Eventual { sync_every } => {
                Some(sync_every)
            }
            Coordination::Exact | Coordination::Local | Coordination::Escrow => None,
        }
    }
}

/// The priority of traffic: under load P3 is shed first, P0 never.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Priority {
    P0,
    P1,
    P2,
    P3,
}

/// What happens to a request that lacks an attribute of the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum OnMissingKey {
    /// The rule does not apply to it.
    #[default]
    Skip,
    /// It is refused.
    Refuse,
}

/// Which rules are overridden where this one counts.
#[derive(Debug, Default)]
pub(crate) struct Replacing {
    /// The number by which others refer to this rule within its domain.
    pub(crate) called: Option<u32>,
    /// The rules that it overrides, by those numbers.
    pub(crate) replaces: Box<[u32]>,
}
