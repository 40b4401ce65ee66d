//! Watches the fleet for problems, and has alerts sent once.
//!
//! Every two seconds a node announces its [`Signals`] with its heartbeat, reads those of the others, and updates its book of
//! alerts. The node with the lease sends notices. The store has the lease, the alerts reported so far (for a successor), the
//! silences, and the baseline of each rule (for a node that starts or restarts).

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidegate_admin::{CallerWatch, ControlPlane, at_low_priority};
use tidegate_core::Micros;
use tidegate_metrics::{Families, Registry};
use tidegate_store::{Clock, Record, Store};
use tidegate_telemetry::alerts::{
    ActiveAlerts, Alert, AlertStats, CallSpans, Detector, MOST_SILENCES, Minute, Minutes, Notice,
    OthersHeard, RuleCounts, RuleName, Sender, SenderLease, SenderRole, Severity, SharedAlerts, Signals,
    Silence, TrafficStats, WebhookQueue, rule_counts,
};

use super::backend::Backend;
use crate::settings::telemetry::AlertSettings;

/// How often to look for problems.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How long a node holds the duty to send notices, and the record of it.
const LEASE: Micros = Micros::from_secs(15);
const LEASE_NAME: &[u8] = b"alerts: whose duty";
/// The record of reported alerts, written by the sending node.
const TOLD_NAME: &[u8] = b"alerts: told";
const TOLD_TTL: Micros = Micros::from_secs(24 * 3600);
const MOST_TOLD: usize = 200;
/// How many of these a heartbeat names.
const MOST_HEARD: usize = 64;
const SILENCES_NAME: &[u8] = b"alerts: silences";
/// How long an empty list of silences is kept.
const NO_SILENCES_TTL_S: u64 = 60;
/// The record of a rule's baseline; the rule's name follows. It survives two weeks without an update.
const USUAL_NAME: &str = "alerts: usual of";
const USUAL_TTL: Micros = Micros::from_secs(15 * 24 * 3600);
/// A placeholder for a minute if no baseline is stored.
const NOTHING_USUAL: (&[u8], Micros) = (&[0], Micros::from_secs(60));
/// How long a look waits for its notices to be delivered.
const DELIVERED_WITHIN: Duration = Duration::from_millis(500);
/// Seconds into a minute at which the previous one is requested: until all nodes have reported, with clocks that differ.
const ASK_FOR_MINUTE_AT: [u64; 4] = [5, 20, 35, 50];

/// Watches for problems, and has alerts sent.
pub(super) struct AlertWatcher {
    desk: Arc<SharedAlerts>,
    detector: Detector,
    traffic: Arc<Mutex<TrafficStats>>,
    duty: SenderLease,
    /// The store that nodes share, if they do.
    shared: Option<Arc<dyn Store>>,
    backend: Backend,
    /// This node's id in the lease: unique to the process.
    holder: Vec<u8>,
    courier: Option<Arc<WebhookQueue>>,
    control: Arc<ControlPlane>,
    clock: Arc<dyn Clock>,
    node: String,
    /// Whether other nodes have the same name.
    has_namesakes: bool,
    /// The durations of calls to the store.
    calls: CallSpans,
    minutes: MinuteSource,
    /// None only while the callers are read.
    callers: Option<CallerWatch>,
    own: Signals,
    told: Vec<u8>,
}

/// Where whole minutes come from, and the last that was judged or given up.
struct MinuteSource {
    own: Minutes,
    judged: Option<u64>,
}

impl AlertWatcher {
    /// `one_in` is the number of admissions that a logged one stands for.
    pub(super) fn new(
        settings: &AlertSettings,
        node: &str,
        backend: &Backend,
        control: Arc<ControlPlane>,
        one_in: u32,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let desk = Arc::new(SharedAlerts::new(ActiveAlerts::new(&settings.dashboard)));
        control.show_alerts(desk.clone());
        let courier = settings.receiver.clone().map(|receiver| Arc::new(WebhookQueue::new(receiver, node)));
        AlertWatcher {
            desk,
            detector: Detector::new(settings.thresholds.clone()),
            traffic: Arc::default(),
            duty: SenderLease::new(LEASE.get() / 1_000_000, seconds(&*clock)),
            shared: backend.shared(),
            backend: backend.clone(),
            holder: format!("{node} {}", clock.now().as_micros()).into_bytes(),
            courier,
            control,
            clock,
            node: node.to_owned(),
            has_namesakes: false,
            calls: CallSpans::default(),
            minutes: MinuteSource { own: Minutes::default(), judged: None },
            callers: Some(CallerWatch::new(one_in)),
            own: Signals::default(),
            told: Vec::new(),
        }
    }

    /// The counts of alerts and deliveries.
    pub(super) fn stats(&self) -> impl Fn() -> AlertStats + Send + Sync + 'static {
        let (desk, courier, traffic) = (self.desk.clone(), self.courier.clone(), self.traffic.clone());
        move || {
            let traffic = *traffic.lock().unwrap_or_else(PoisonError::into_inner);
            let stats = AlertStats { traffic, ..desk.stats() };
            courier.iter().fold(stats, |stats, courier| stats.with_courier(courier))
        }
    }

    /// Delivers notices to the webhook, if there is one. Runs until dropped.
    pub(super) fn deliver(&self) -> impl Future<Output = ()> + Send + 'static {
        let courier = self.courier.clone();
        async move {
            match courier {
                Some(courier) => courier.run().await,
                None => std::future::pending().await,
            }
        }
    }

    /// Runs until dropped.
    pub(super) async fn run(mut self, registry: Arc<Registry>) {
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.look(Reading::of(&registry).await).await;
        }
    }

    async fn look(&mut self, Reading { families, rules }: Reading) {
        let now_s = seconds(&*self.clock);
        let heard = self.tell_and_hear(now_s, families).await;
        let others_heard = if heard.is_some() { OthersHeard::Yes } else { OthersHeard::No };
        let others = self.with_namesakes(heard);
        let told_elsewhere = others.iter().flat_map(|one| one.told.clone()).collect();
        self.desk.with_book(|book| book.heard(told_elsewhere));
        let mut nodes = vec![self.own.clone()];
        nodes.extend(others);
        tell_apart(&mut nodes, self.has_namesakes);
        let found = self.detector.look(now_s, &nodes, others_heard);
        self.judge_minute(now_s, rules, others_heard).await;
        let (before, ours) = (self.duty.role(), self.renew().await);
        let role = self.duty.heard(now_s, ours);
        self.change_duty(now_s, before, role).await;
        self.backend.estimates_keys(role == SenderRole::Holder);
        self.share_silences(now_s).await;
        let telling = if role.tells() { Sender::ThisNode } else { Sender::OtherNode };
        let notices = self.desk.step(now_s, found, telling);
        notices.iter().for_each(tell);
        if !notices.is_empty() {
            self.control.alerts_changed();
        }
        self.courier.iter().for_each(|courier| courier.take(now_s, &notices));
        if role == SenderRole::Holder && self.is_delivered().await {
            self.share_told().await;
        }
    }

    /// Whether the webhook has accepted everything. A notice in flight may be lost with this process: then a successor sends
    /// it again.
    async fn is_delivered(&self) -> bool {
        match &self.courier {
            Some(courier) => courier.settled(DELIVERED_WITHIN).await,
            None => true,
        }
    }

    /// Whether others have this node's name stays as last known while they are unreachable, so that its alerts keep their
    /// subject.
    fn with_namesakes(&mut self, heard: Option<Vec<Signals>>) -> Vec<Signals> {
        if let Some(others) = &heard {
            self.has_namesakes = others.iter().any(|other| other.node == self.node);
        }
        heard.unwrap_or_default()
    }

    /// Announces this node's signals and returns those of the others; `None` if the store does not answer.
    async fn tell_and_hear(&mut self, now_s: u64, families: Families) -> Option<Vec<Signals>> {
        let callers = std::mem::take(&mut self.own.callers);
        self.own = Signals::read(&self.node, &families, self.calls.step(now_s, &families));
        (self.own.version, self.own.started_us) = self.control.running_version();
        self.own.publish_failed = self.control.not_distributed().is_some();
        self.own.callers = callers;
        self.own.alert = self.desk.worst();
        self.own.told = self.desk.with_book(|book| {
            book.told(MOST_HEARD).into_iter().map(|alert| alert.fingerprint.clone()).collect()
        });
        if !self.control.is_shared() {
            return Some(Vec::new());
        }
        self.control.tell_signals(self.own.clone());
        self.control.others_signals().await
    }

    /// Judges the previous minute, once, when enough of it is known: the counts, and every node's top callers.
    async fn judge_minute(&mut self, now_s: u64, rules: Vec<RuleCounts>, others: OthersHeard) {
        let last = (now_s / 60).saturating_sub(1);
        let minute = match self.control.is_shared() {
            false => self.count(now_s, rules).await,
            true if self.minutes.judged == Some(last) => return,
            true if !ASK_FOR_MINUTE_AT
                .iter()
                .any(|at| (*at..at + LOOK_EVERY.as_secs()).contains(&(now_s % 60))) =>
            {
                return;
            }
            true if others == OthersHeard::No => None,
            true => self.control.fleet_minute(last).await,
        };
        match minute {
            Some(minute) => {
                if !self.restore_usual(&minute).await {
                    return;
                }
                self.minutes.judged = Some(minute.number);
                let kept = self.judge(minute).await;
                self.keep_usual(kept).await;
                *self.traffic.lock().unwrap_or_else(PoisonError::into_inner) = self.detector.stats();
            }
            None if self.minutes.judged.is_some_and(|judged| judged.abs_diff(last) > 1) => {
                self.detector.missed_a_minute();
            }
            None => {}
        }
    }

    /// Adds up this node's own counts. Not on the control plane's thread: there are as many as rules.
    async fn count(&mut self, now_s: u64, rules: Vec<RuleCounts>) -> Option<Minute> {
        let mut own = std::mem::take(&mut self.minutes.own);
        let minute;
        (self.minutes.own, minute) = at_low_priority(move || {
            let minute = own.add(now_s, rules);
            (own, minute)
        })
        .await;
        minute
    }

    /// Judges the counts of all rules, and takes this node's callers; returns the baselines to store. Not on the control
    /// plane's thread either.
    async fn judge(&mut self, minute: Minute) -> Vec<(RuleName, Vec<u8>)> {
        let is_holder = self.duty.role() == SenderRole::Holder;
        let (mut detector, mut callers) = (std::mem::take(&mut self.detector), self.callers.take());
        let control = self.control.clone();
        let kept;
        (self.detector, self.callers, self.own.callers, kept) = at_low_priority(move || {
            detector.keep_only(&control.rules_in_use());
            detector.judge(&minute);
            let kept = if is_holder { detector.to_keep(minute.number) } else { Vec::new() };
            let lately = callers.as_mut().map(|watch| control.callers_lately(watch)).unwrap_or_default();
            (detector, callers, lately, kept)
        })
        .await;
        kept
    }

    /// Restores stored baselines of rules that this process has not seen yet. False if the store does not answer: then the
    /// minute waits.
    async fn restore_usual(&mut self, minute: &Minute) -> bool {
        let Some(store) = self.shared.clone() else { return true };
        let (value, ttl) = NOTHING_USUAL;
        for what in self.detector.unknown(minute) {
            let record = Record { name: &usual_name(&what), value };
            match store.put_record(record, ttl).answer().await {
                Ok(Some(kept)) => self.detector.restore(&what, &kept, minute.number),
                Ok(None) => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// Every node learns baselines; only the sending node stores them.
    async fn keep_usual(&self, all: Vec<(RuleName, Vec<u8>)>) {
        let Some(store) = &self.shared else { return };
        for (what, kept) in all {
            if !overwrite(store, &usual_name(&what), &kept, USUAL_TTL).await {
                return;
            }
        }
    }

    /// Takes over or hands over the duty to send.
    async fn change_duty(&mut self, now_s: u64, before: SenderRole, role: SenderRole) {
        match (before, role) {
            (SenderRole::Other | SenderRole::Orphan, SenderRole::Holder) => {
                let told = self.shared_told().await;
                tracing::debug!(alerts = told.len(), "this node now sends the fleet's alerts");
                self.desk.with_book(|book| book.take_over(now_s, told));
            }
            (SenderRole::Holder | SenderRole::Orphan, SenderRole::Other) => {
                let knows = self.shared_told().await;
                self.desk.with_book(|book| book.hand_over(&knows));
            }
            _ => {}
        }
        if role.tells() {
            self.desk.told_by(&self.node);
        }
    }

    /// The reported alerts in the store; empty if it lost them.
    async fn shared_told(&self) -> Vec<Alert> {
        let told = match &self.shared {
            Some(store) => known(store, TOLD_NAME, b"[]", TOLD_TTL).await,
            None => None,
        };
        told.and_then(|told| serde_json::from_slice(&told).ok()).unwrap_or_default()
    }

    /// Stores the reported alerts for a successor.
    async fn share_told(&mut self) {
        let Some(store) = &self.shared else { return };
        let told = self.desk.with_book(|book| serde_json::to_vec(&book.told(MOST_TOLD)).unwrap_or_default());
        if told != self.told && overwrite(store, TOLD_NAME, &told, TOLD_TTL).await {
            self.told = told;
        }
    }

    /// Merges this node's silences with the fleet's. Waits while the store does not answer.
    async fn share_silences(&self, now_s: u64) {
        let Some(store) = &self.shared else {
            let alone = |silences: &mut tidegate_telemetry::alerts::Silences| {
                let joined = silences.joined(None, now_s);
                drop(silences.agreed(joined));
            };
            return self.desk.with_silences(alone);
        };
        let encode = |list: &[Silence]| serde_json::to_vec(list).unwrap_or_default();
        let ours = self.desk.with_silences(|silences| silences.joined(None, now_s));
        let record = Record { name: SILENCES_NAME, value: &encode(&ours) };
        let joined = match store.put_record(record, lifetime(&ours, now_s)).answer().await {
            Ok(None) => ours,
            Ok(Some(known)) => {
                // Another release may have written what this one cannot read: leave it.
                let Ok(theirs) = serde_json::from_slice::<Vec<Silence>>(&known) else { return };
                let joined = self.desk.with_silences(|silences| silences.joined(Some(theirs.clone()), now_s));
                let record = Record { name: SILENCES_NAME, value: &known };
                let replaced = joined == theirs
                    || store
                        .replace_record(record, Some(&encode(&joined)), lifetime(&joined, now_s))
                        .answer()
                        .await
                        .is_ok_and(|replaced| replaced);
                if !replaced {
                    return;
                }
                joined
            }
            Err(_) => return,
        };
        let found_no_room = self.desk.with_silences(|silences| silences.agreed(joined));
        for silence in found_no_room {
            let (kind, subject) = (silence.kind.map_or("every kind", |kind| kind.name()), silence.subject);
            let (subject, author) = (subject.unwrap_or_default(), silence.author);
            tracing::warn!(
                kind,
                subject,
                author,
                "a silence is over: the fleet has {MOST_SILENCES} others already"
            );
        }
    }

    /// Whether the lease is ours; `None` if the store does not answer.
    async fn renew(&self) -> Option<bool> {
        let Some(store) = &self.shared else { return Some(true) };
        let record = Record { name: LEASE_NAME, value: &self.holder };
        if self.duty.role() == SenderRole::Holder {
            match store.replace_record(record, Some(self.holder.as_slice()), LEASE).answer().await {
                Ok(true) => return Some(true),
                Ok(false) => {}
                Err(_) => return None,
            }
        }
        match store.put_record(record, LEASE).answer().await {
            Ok(None) => Some(true),
            Ok(Some(other)) => {
                let text = String::from_utf8_lossy(&other);
                self.desk.told_by(text.rsplit_once(' ').map_or(&text, |(node, _)| node));
                Some(other == self.holder)
            }
            Err(_) => None,
        }
    }
}

/// What a look reads of the metrics.
struct Reading {
    /// Without the series of single rules.
    families: Families,
    rules: Vec<RuleCounts>,
}

impl Reading {
    /// Read where it holds nobody up, as large as it is.
    fn of(registry: &Arc<Registry>) -> impl Future<Output = Reading> + Send + use<> {
        let registry = registry.clone();
        at_low_priority(move || {
            let families = registry.read_without_zeros();
            let rules = rule_counts(&families);
            Reading { families: families.without("rule"), rules }
        })
    }
}

fn seconds(clock: &dyn Clock) -> u64 {
    clock.now().as_micros() / 1_000_000
}

fn usual_name(what: &RuleName) -> Vec<u8> {
    let RuleName { domain, rule } = what;
    format!("{USUAL_NAME} {} {domain}{rule}", domain.len()).into_bytes()
}

/// Several processes on one machine have its name: their start time distinguishes them. The first of `nodes` is this one.
fn tell_apart(nodes: &mut [Signals], has_namesakes: bool) {
    let mut names: Vec<String> = nodes.iter().map(|one| one.node.clone()).collect();
    names.extend(nodes.first().filter(|_| has_namesakes).map(|own| own.node.clone()));
    for one in nodes {
        if names.iter().filter(|name| **name == one.node).count() > 1 {
            one.node = format!("{}~{}", one.node, one.started_us / 1_000 % 1_000_000);
        }
    }
}

/// A list of silences lives as long as its longest silence.
fn lifetime(list: &[Silence], now_s: u64) -> Micros {
    let last = list.iter().map(|silence| silence.until_s.saturating_sub(now_s)).max();
    Micros::from_secs(last.unwrap_or_default().max(NO_SILENCES_TTL_S))
}

/// The value of a record; `unless` is written if there is none.
async fn known(store: &Arc<dyn Store>, name: &[u8], unless: &[u8], ttl: Micros) -> Option<Vec<u8>> {
    store.put_record(Record { name, value: unless }, ttl).answer().await.ok().flatten()
}

/// Overwrites a record. False if the store does not answer.
async fn overwrite(store: &Arc<dyn Store>, name: &[u8], value: &[u8], ttl: Micros) -> bool {
    match store.put_record(Record { name, value }, ttl).answer().await {
        Ok(None) => true,
        Ok(Some(old)) if old == value => true,
        Ok(Some(old)) => {
            let record = Record { name, value: &old };
            store.replace_record(record, Some(value), ttl).answer().await.is_ok_and(|replaced| replaced)
        }
        Err(_) => false,
    }
}

/// Logs once when an alert begins, and once when it is over. The subject distinguishes the lines of different alerts, so
/// that none is withheld as a repeat.
fn tell(notice: &Notice) {
    let alert = notice.alert();
    let (kind, subject, next) = (alert.kind.name(), alert.subject.as_str(), alert.next.as_str());
    match (notice, alert.severity) {
        (Notice::Ended(_), _) => tracing::info!(kind, subject, "alert is over: {}", alert.summary),
        (_, Severity::Info) => tracing::info!(kind, subject, next, "alert: {}", alert.summary),
        (_, _) => tracing::warn!(kind, subject, next, "alert: {}", alert.summary),
    }
}

#[cfg(test)]
mod tests;
