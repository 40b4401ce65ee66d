//! The active alerts, since when, and which notices were sent: one entry per problem, however often it is found.
//!
//! An alert begins when the problem has lasted as long as its kind requires, and ends when the problem has been gone for a
//! while, so that a flickering problem is reported once. While it is unknown whether the problem continues, the alert
//! neither begins nor ends. A silenced alert is kept, but not sent. Every node of a fleet keeps a book, so that any of them
//! can take over sending notices; it learns from its predecessor which ones were sent.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use super::found::Found;
use super::kinds::{Finding, Kind, Severity};
use super::silences::Silence;

/// The most active alerts; further findings are counted, and not reported.
pub const MOST_ACTIVE: usize = 1_000;
/// The most ended alerts kept.
const MOST_OVER: usize = 200;
/// How long a problem must be gone before its alert ends.
const CLEAR_AFTER_S: u64 = 10;
/// How often a continuing alert is sent again.
const REPEAT_AFTER_S: u64 = 4 * 3600;

/// An alert, active or ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alert {
    /// Identifies the problem, equally on every node and at every time: receivers deduplicate by it.
    pub fingerprint: String,
    /// The kind of problem.
    pub kind: Kind,
    /// What it concerns.
    pub subject: String,
    /// What broke: alerts with the same one that begin together are one incident ([`Kind::incident`]).
    #[serde(default)]
    pub incident: String,
    /// How bad.
    pub severity: Severity,
    /// A sentence that describes it.
    pub summary: String,
    /// What to check next.
    pub next: String,
    /// The page of the dashboard, with its address.
    pub link: String,
    /// The same, as the part behind the `#`: it leads there in whatever dashboard shows the alert.
    #[serde(default)]
    pub page: String,
    /// When it began, in seconds since 1970.
    pub since_s: u64,
    /// When it ended; `None` while active.
    pub ended_s: Option<u64>,
    /// Whether an operator silenced it.
    pub silenced: bool,
    /// Since when, in seconds since 1970, it is unknown whether it continues; `None` if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown_since_s: Option<u64>,
}

/// A change to report.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Notice {
    Begun(Alert),
    ForwardedPath(Alert),
    Ended(Alert),
}

impl Notice {
    /// The alert that changed.
    #[must_use]
    pub fn alert(&self) -> &Alert {
        match self {
            Notice::Begun(alert) | Notice::ForwardedPath(alert) | Notice::Ended(alert) => alert,
        }
    }

    /// Its name in payloads.
    #[must_use]
    pub fn state(&self) -> &'static str {
        match self {
            Notice::Begun(_) | Notice::ForwardedPath(_) => "firing",
            Notice::Ended(_) => "resolved",
        }
    }
}

/// Whether this node sends notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// It does.
    ThisNode,
    /// Another node does: this one only records alerts.
    OtherNode,
}

/// All alerts.
#[derive(Debug, Default)]
pub struct ActiveAlerts {
    entries: BTreeMap<(Kind, String), Entry>,
    over: VecDeque<Alert>,
    left_out: u64,
    /// Fingerprints of alerts that other nodes have reported; those nodes will report the end.
    told_elsewhere: BTreeSet<String>,
    /// The prefix of links.
    dashboard: String,
}

#[derive(Debug)]
struct Entry {
    alert: Alert,
    seen_s: u64,
    /// Until when it was unknown whether it continues: its absence counts from there.
    unknown_s: u64,
    told_s: Option<u64>,
}

impl ActiveAlerts {
    /// An empty book; links in its alerts begin with `dashboard`.
    #[must_use]
    pub fn new(dashboard: &str) -> Self {
        ActiveAlerts { dashboard: dashboard.trim_end_matches('/').to_owned(), ..ActiveAlerts::default() }
    }

    /// Records the findings at `now_s`, and returns the notices that this node must send.
    pub fn step(
        &mut self,
        now_s: u64,
        mut found: Found,
        silences: &[Silence],
        telling: Sender,
    ) -> Vec<Notice> {
        for one in std::mem::take(&mut found.findings) {
            self.see(now_s, one);
        }
        let (mut notices, mut over) = (Vec::new(), Vec::new());
        for (key, entry) in &mut self.entries {
            entry.note_unknown(now_s, &found);
            entry.alert.silenced = silences.iter().any(|silence| silence.covers(&entry.alert, now_s));
            let may_tell = telling == Sender::ThisNode && !entry.alert.silenced;
            match entry.told_s {
                _ if entry.is_gone(now_s) => over.push(key.clone()),
                // An alert that ended a moment ago does not begin again here: the node that reported it reports its end.
                None if entry.lasts()
                    && entry.seen_s == now_s
                    && may_tell
                    && !self.told_elsewhere.contains(&entry.alert.fingerprint) =>
                {
                    entry.told_s = Some(now_s);
                    notices.push(Notice::Begun(entry.alert.clone()));
                }
                Some(told) if now_s.saturating_sub(told) >= REPEAT_AFTER_S && may_tell => {
                    entry.told_s = Some(now_s);
                    notices.push(Notice::ForwardedPath(entry.alert.clone()));
                }
                // After the clock was set back, an entry seen at a later time must not be kept for ever.
                _ => {
                    entry.seen_s = entry.seen_s.min(now_s);
                    entry.unknown_s = entry.unknown_s.min(now_s);
                }
            }
        }
        for key in over {
            let Some(mut entry) = self.entries.remove(&key) else { continue };
            entry.alert.ended_s = Some(entry.seen_s.max(entry.alert.since_s));
            // A receiver of the beginning also receives the end, even if the alert was silenced meanwhile.
            if entry.told_s.is_some() {
                notices.push(Notice::Ended(entry.alert.clone()));
            }
            if entry.lasts() || entry.told_s.is_some() {
                self.over.push_front(entry.alert);
                self.over.truncate(MOST_OVER);
            }
        }
        notices
    }

    /// Alerts whose beginning this node has reported, and not the end: a successor must know them. At most `most`.
    #[must_use]
    pub fn told(&self, most: usize) -> Vec<&Alert> {
        let told = self.entries.values().filter(|entry| entry.told_s.is_some());
        told.take(most).map(|entry| &entry.alert).collect()
    }

    /// Sets the alerts that other nodes have reported, as far as they are reachable: they report the end.
    pub fn heard(&mut self, told_elsewhere: BTreeSet<String>) {
        self.told_elsewhere = told_elsewhere;
    }

    /// Takes over sending from a node that had reported `told`: these are not reported again, but their end will be.
    pub fn take_over(&mut self, now_s: u64, told: Vec<Alert>) {
        for alert in told.into_iter().take(MOST_ACTIVE.saturating_sub(self.entries.len())) {
            let key = (alert.kind, alert.subject.clone());
            let entry = self.entries.entry(key).or_insert(Entry {
                seen_s: now_s,
                unknown_s: 0,
                told_s: None,
                alert: alert.clone(),
            });
            entry.alert.since_s = entry.alert.since_s.min(alert.since_s);
            entry.told_s = Some(now_s);
        }
    }

    /// Hands over sending to a node that `knows` these reported alerts: that node reports their end. The end of alerts it
    /// does not know, because the store lost them, is reported by this node.
    pub fn hand_over(&mut self, knows: &[Alert]) {
        let is_known = |alert: &Alert| knows.iter().any(|known| known.fingerprint == alert.fingerprint);
        let known = self.entries.values_mut().filter(|entry| is_known(&entry.alert));
        known.for_each(|entry| entry.told_s = None);
    }

    fn see(&mut self, now_s: u64, one: Finding) {
        let key = (one.kind, one.subject.clone());
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.seen_s = now_s;
            // After the clock was set back, the duration counts from now: counted from a later time, the alert would not be
            // sent.
            entry.alert.since_s = entry.alert.since_s.min(now_s);
            entry.alert.summary = one.summary;
            // Another caller of the same rule has a page of its own.
            (entry.alert.link, entry.alert.page) = (link(&self.dashboard, &one.page), one.page);
            return;
        }
        if self.entries.len() >= MOST_ACTIVE {
            self.left_out += 1;
            return;
        }
        let alert = Alert {
            fingerprint: fingerprint(one.kind, &one.subject),
            kind: one.kind,
            incident: one.kind.incident(&one.subject),
            severity: one.kind.severity(),
            summary: one.summary,
            next: one.next,
            link: link(&self.dashboard, &one.page),
            page: one.page,
            subject: one.subject,
            since_s: now_s,
            ended_s: None,
            silenced: false,
            unknown_since_s: None,
        };
        self.entries.insert(key, Entry { alert, seen_s: now_s, unknown_s: 0, told_s: None });
    }

    /// Active alerts, most severe first.
    #[must_use]
    pub fn active(&self) -> Vec<Alert> {
        let lasting = |entry: &&Entry| entry.told_s.is_some() || entry.lasts();
        let mut active: Vec<Alert> =
            self.entries.values().filter(lasting).map(|entry| entry.alert.clone()).collect();
        active.sort_by_key(|alert| (std::cmp::Reverse(alert.severity), alert.since_s));
        active
    }

    /// Ended alerts, latest first.
    pub fn over(&self) -> impl Iterator<Item = &Alert> {
        self.over.iter()
    }

    /// Findings dropped because the book was full.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out
    }
}

impl Entry {
    fn is_gone(&self, now_s: u64) -> bool {
        now_s.saturating_sub(self.seen_s.max(self.unknown_s)) >= CLEAR_AFTER_S
    }

    fn note_unknown(&mut self, now_s: u64, found: &Found) {
        let unknown = self.seen_s != now_s && found.is_unknown(self.alert.kind, &self.alert.subject);
        self.alert.unknown_since_s = unknown.then_some(self.seen_s);
        if unknown {
            self.unknown_s = now_s;
        }
    }

    fn lasts(&self) -> bool {
        self.seen_s.saturating_sub(self.alert.since_s) >= self.alert.kind.hold_s()
    }
}

fn link(dashboard: &str, page: &str) -> String {
    if dashboard.is_empty() { String::new() } else { format!("{dashboard}/#{page}") }
}

/// FNV-1a: it only has to be the same everywhere.
fn fingerprint(kind: Kind, subject: &str) -> String {
    let bytes = kind.name().bytes().chain([0]).chain(subject.bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::super::detect::Detector;
    use super::super::found::OthersHeard;
    use super::super::signals::Signals;
    use super::*;

    fn down(store: &str) -> Finding {
        Finding {
            kind: Kind::StoreDown,
            subject: store.to_owned(),
            summary: "down".to_owned(),
            next: "look".to_owned(),
            page: "/stores".to_owned(),
        }
    }

    fn step(book: &mut ActiveAlerts, now_s: u64, found: Vec<Finding>) -> Vec<Notice> {
        book.step(now_s, found.into(), &[], Sender::ThisNode)
    }

    fn states(notices: &[Notice]) -> Vec<(&str, &str)> {
        notices.iter().map(|one| (one.state(), one.alert().subject.as_str())).collect()
    }

    #[test]
    fn an_alert_is_told_once_when_it_begins_and_once_when_it_is_over() {
        let mut book = ActiveAlerts::new("https://gate.example/");
        assert_eq!(states(&step(&mut book, 100, vec![down("r")])), []);
        let begun = step(&mut book, 102, vec![down("r")]);
        assert_eq!(states(&begun), [("firing", "r")]);
        assert_eq!(begun[0].alert().link, "https://gate.example/#/stores");
        assert_eq!(begun[0].alert().since_s, 100);
        (103..200).for_each(|now| assert_eq!(states(&step(&mut book, now, vec![down("r")])), []));
        (200..209).for_each(|now| assert_eq!(states(&step(&mut book, now, vec![])), [], "at {now}"));
        let ended = step(&mut book, 209, vec![]);
        assert_eq!(states(&ended), [("resolved", "r")]);
        assert_eq!(ended[0].alert().ended_s, Some(199));
        assert_eq!((book.active().len(), book.over().count()), (0, 1));
    }

    #[test]
    fn what_flickers_is_told_once() {
        let mut book = ActiveAlerts::new("");
        let told: usize = (0..100)
            .map(|now| step(&mut book, now, if now % 7 < 4 { vec![down("r")] } else { vec![] }).len())
            .sum();
        assert_eq!(told, 1);
    }

    #[test]
    fn what_does_not_last_is_not_told() {
        let mut book = ActiveAlerts::new("");
        let told: usize = (0..60)
            .map(|now| step(&mut book, now, if now == 5 { vec![down("r")] } else { vec![] }).len())
            .sum();
        assert_eq!((told, book.over().count()), (0, 0));
    }

    #[test]
    fn an_alert_that_goes_on_is_told_again_after_hours() {
        let mut book = ActiveAlerts::new("");
        let told: Vec<u64> =
            (0..40_000).filter(|now| !step(&mut book, *now, vec![down("r")]).is_empty()).collect();
        assert_eq!(told, [2, 2 + 4 * 3600, 2 + 8 * 3600]);
    }

    fn silence(subject: &str) -> Silence {
        let (kind, reason) = (Some(Kind::StoreDown), String::new());
        Silence { id: 1, kind, subject: Some(subject.to_owned()), until_s: 50, reason, author: String::new() }
    }

    #[test]
    fn what_is_silenced_is_kept_and_not_told_until_the_silence_ends() {
        let mut book = ActiveAlerts::new("");
        let told = |now: &u64| {
            !book.step(*now, vec![down("r")].into(), &[silence("r")], Sender::ThisNode).is_empty()
        };
        assert_eq!((0..100).filter(told).collect::<Vec<u64>>(), [50]);
    }

    #[test]
    fn a_silence_is_for_its_subject_alone() {
        let mut book = ActiveAlerts::new("");
        let mut at =
            |now| book.step(now, vec![down("r"), down("s")].into(), &[silence("r")], Sender::ThisNode);
        at(0);
        assert_eq!(states(&at(5)), [("firing", "s")]);
        assert!(book.active().iter().any(|alert| alert.silenced && alert.subject == "r"));
    }

    #[test]
    fn who_takes_the_duty_over_tells_what_is_new_and_the_end_of_what_was_told() {
        let (mut first, mut second) = (ActiveAlerts::new(""), ActiveAlerts::new(""));
        for now in 0..=2 {
            let at = |book: &mut ActiveAlerts, telling| {
                book.step(now, vec![down("r"), down("t")].into(), &[], telling).len()
            };
            assert_eq!(
                (at(&mut first, Sender::ThisNode), at(&mut second, Sender::OtherNode)),
                (2 * usize::from(now == 2), 0)
            );
        }
        let told: Vec<Alert> = first.told(100).into_iter().cloned().collect();
        // The first alert is gone; s begins before the second node knows that.
        (3..12).for_each(|now| {
            assert_eq!(second.step(now, vec![down("r"), down("s")].into(), &[], Sender::OtherNode), [])
        });
        second.take_over(12, told);
        let mut later = Vec::new();
        for now in 12..40 {
            let notices = step(&mut second, now, vec![down("r"), down("s")]);
            later.extend(
                states(&notices).into_iter().map(|(state, on)| (now, state == "firing", on.to_owned())),
            );
        }
        assert_eq!(later, [(12, true, "s".to_owned()), (12, false, "t".to_owned())], "and r not again");
    }

    #[test]
    fn who_hands_the_duty_over_tells_the_end_only_of_what_the_other_does_not_know() {
        let mut first = ActiveAlerts::new("");
        (0..=2)
            .for_each(|now| drop(first.step(now, vec![down("r"), down("t")].into(), &[], Sender::ThisNode)));
        let knows: Vec<Alert> =
            first.told(100).into_iter().filter(|one| one.subject == "r").cloned().collect();
        first.hand_over(&knows);
        let later: Vec<Notice> =
            (3..40).flat_map(|now| first.step(now, vec![].into(), &[], Sender::OtherNode)).collect();
        assert_eq!(states(&later), [("resolved", "t")]);
    }

    #[test]
    fn what_another_node_says_it_told_is_told_by_the_new_holder_only_once_that_one_is_gone() {
        let mut second = ActiveAlerts::new("");
        let mut at = |now: u64, elsewhere: &[String]| {
            second.heard(elsewhere.iter().cloned().collect());
            second.step(now, vec![down("r"), down("s")].into(), &[], Sender::ThisNode)
        };
        let told = [fingerprint(Kind::StoreDown, "r")];
        let while_heard: Vec<Notice> = (0..5).flat_map(|now| at(now, &told)).collect();
        assert_eq!(states(&while_heard), [("firing", "s")]);
        assert_eq!(states(&at(5, &[])), [("firing", "r")]);
    }

    #[test]
    fn what_ended_before_the_duty_was_taken_over_does_not_begin_then() {
        let mut second = ActiveAlerts::new("");
        (0..=5).for_each(|now| drop(second.step(now, vec![down("r")].into(), &[], Sender::OtherNode)));
        let told: usize =
            (6..40).map(|now| second.step(now, vec![].into(), &[], Sender::ThisNode).len()).sum();
        assert_eq!((told, second.over().count()), (0, 1));
    }

    #[test]
    fn what_began_before_the_clock_was_set_back_is_told_all_the_same() {
        let mut book = ActiveAlerts::new("");
        step(&mut book, 10_000, vec![down("r")]);
        let told: Vec<u64> =
            (5_000..5_030).filter(|now| !step(&mut book, *now, vec![down("r")]).is_empty()).collect();
        assert_eq!(told, [5_002]);
    }

    #[test]
    fn a_clock_that_is_set_back_keeps_no_alert_for_ever() {
        let mut book = ActiveAlerts::new("");
        (10_000..10_010).for_each(|now| drop(step(&mut book, now, vec![down("r")])));
        let ended: Vec<u64> =
            (5_000..5_030).filter(|now| !step(&mut book, *now, vec![]).is_empty()).collect();
        assert_eq!(ended, [5_010]);
    }

    /// A look of a node that hears from no other, and finds nothing.
    fn alone() -> Found {
        Detector::default().look(0, &[Signals::default()], OthersHeard::No)
    }

    fn with_an_alert() -> ActiveAlerts {
        let mut book = ActiveAlerts::new("");
        (0..=2).for_each(|now| drop(step(&mut book, now, vec![down("r")])));
        book
    }

    #[test]
    fn an_alert_does_not_end_while_it_is_unknown_whether_it_goes_on() {
        let mut book = with_an_alert();
        let notices: Vec<Notice> =
            (3..3_600).flat_map(|now| book.step(now, alone(), &[], Sender::ThisNode)).collect();
        assert_eq!(notices, []);
        assert_eq!(book.active().len(), 1);
    }

    #[test]
    fn an_alert_ends_once_it_is_known_for_a_while_that_it_is_over() {
        let mut book = with_an_alert();
        (3..100).for_each(|now| drop(book.step(now, alone(), &[], Sender::ThisNode)));
        let ended: Vec<u64> = (100..200).filter(|now| !step(&mut book, *now, vec![]).is_empty()).collect();
        assert_eq!(ended, [99 + CLEAR_AFTER_S]);
        assert_eq!(book.over().next().and_then(|alert| alert.ended_s), Some(2), "when it was last seen");
    }

    #[test]
    fn an_alert_says_since_when_it_is_unknown_whether_it_goes_on() {
        let mut book = with_an_alert();
        let mut since = |now, found| {
            book.step(now, found, &[], Sender::ThisNode);
            book.active()[0].unknown_since_s
        };
        assert_eq!(since(3, vec![down("r")].into()), None);
        assert_eq!(since(4, alone()), Some(3));
        assert_eq!(since(5, alone()), Some(3));
        assert_eq!(since(6, vec![down("r")].into()), None);
    }

    #[test]
    fn there_is_a_bound_on_everything() {
        let mut book = ActiveAlerts::new("");
        step(&mut book, 0, (0..MOST_ACTIVE + 7).map(|n| down(&n.to_string())).collect());
        assert_eq!((book.entries.len(), book.left_out()), (MOST_ACTIVE, 7));
    }
}
