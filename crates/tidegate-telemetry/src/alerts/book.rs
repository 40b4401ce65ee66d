//! What is the matter, since when, and who was told: one entry for each thing, however often it is found.
//!
//! An alert begins when it has lasted as long as its kind must, and ends when it has been gone for a while, so that what
//! flickers is told once. What an operator has silenced is kept, and not told.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::detect::{Finding, Kind, Severity};

/// Alerts that can be the matter at once; more are counted, and not told.
pub const MOST_ACTIVE: usize = 1_000;
/// Alerts that are over and still shown.
const MOST_OVER: usize = 1_000;
const MOST_SILENCES: usize = 1_000;
/// How long it must be gone before it is over.
const CLEAR_AFTER_S: u64 = 10;
/// How often an alert that goes on is told again.
const REPEAT_AFTER_S: u64 = 4 * 3600;

/// Something that is, or was, the matter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alert {
    /// The same for the same thing, on every node and at every time: receivers tell repeats by it.
    pub fingerprint: String,
    /// What.
    pub kind: Kind,
    /// With what.
    pub subject: String,
    /// How bad.
    pub severity: Severity,
    /// In a sentence.
    pub summary: String,
    /// What to look at next.
    pub next: String,
    /// Where in the dashboard.
    pub link: String,
    /// When it began, in seconds since 1970.
    pub since_s: u64,
    /// When it was over; none while it goes on.
    pub ended_s: Option<u64>,
    /// Whether an operator does not want to hear of it.
    pub silenced: bool,
}

/// What has changed: to be told.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Notice {
    Begun(Alert),
    GoesOn(Alert),
    Ended(Alert),
}

impl Notice {
    /// What it is about.
    #[must_use]
    pub fn alert(&self) -> &Alert {
        match self {
            Notice::Begun(alert) | Notice::GoesOn(alert) | Notice::Ended(alert) => alert,
        }
    }

    /// Its name in payloads.
    #[must_use]
    pub fn state(&self) -> &'static str {
        match self {
            Notice::Begun(_) | Notice::GoesOn(_) => "firing",
            Notice::Ended(_) => "resolved",
        }
    }
}

/// What an operator does not want to hear of, until when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Silence {
    /// Its number.
    #[serde(default)]
    pub id: u64,
    /// Of this kind; of all where there is none.
    #[serde(default)]
    pub kind: Option<Kind>,
    /// With this subject; with all where there is none.
    #[serde(default)]
    pub subject: Option<String>,
    /// Until then, in seconds since 1970.
    pub until_s: u64,
    /// Why.
    #[serde(default)]
    pub reason: String,
}

impl Silence {
    fn covers(&self, alert: &Alert, now_s: u64) -> bool {
        now_s < self.until_s
            && self.kind.is_none_or(|kind| kind == alert.kind)
            && self.subject.as_ref().is_none_or(|subject| *subject == alert.subject)
    }
}

/// Everything that is the matter.
#[derive(Debug, Default)]
pub struct Book {
    entries: BTreeMap<(Kind, String), Entry>,
    over: VecDeque<Alert>,
    silences: Vec<Silence>,
    next_silence: u64,
    left_out: u64,
    /// What a link begins with.
    dashboard: String,
}

#[derive(Debug)]
struct Entry {
    alert: Alert,
    seen_s: u64,
    told_s: Option<u64>,
}

impl Book {
    /// An empty one; links in its alerts begin with `dashboard`.
    #[must_use]
    pub fn new(dashboard: &str) -> Self {
        Book { dashboard: dashboard.trim_end_matches('/').to_owned(), ..Book::default() }
    }

    /// Takes note of what is the matter at `now_s`: what must be told.
    pub fn step(&mut self, now_s: u64, found: Vec<Finding>) -> Vec<Notice> {
        self.silences.retain(|silence| now_s < silence.until_s);
        for one in found {
            self.see(now_s, one);
        }
        let mut notices = Vec::new();
        let silences = &self.silences;
        let mut over = Vec::new();
        for (key, entry) in &mut self.entries {
            entry.alert.silenced = silences.iter().any(|silence| silence.covers(&entry.alert, now_s));
            let gone = now_s.saturating_sub(entry.seen_s) >= CLEAR_AFTER_S;
            let lasts = entry.seen_s.saturating_sub(entry.alert.since_s) >= entry.alert.kind.hold_s();
            match entry.told_s {
                _ if gone => over.push(key.clone()),
                None if lasts && !entry.alert.silenced => {
                    entry.told_s = Some(now_s);
                    notices.push(Notice::Begun(entry.alert.clone()));
                }
                Some(told) if now_s.saturating_sub(told) >= REPEAT_AFTER_S && !entry.alert.silenced => {
                    entry.told_s = Some(now_s);
                    notices.push(Notice::GoesOn(entry.alert.clone()));
                }
                _ => {}
            }
        }
        for key in over {
            let Some(mut entry) = self.entries.remove(&key) else { continue };
            entry.alert.ended_s = Some(entry.seen_s);
            // Who was told that it began is told that it is over, silenced meanwhile or not.
            if entry.told_s.is_some() {
                notices.push(Notice::Ended(entry.alert.clone()));
            }
            if entry.seen_s.saturating_sub(entry.alert.since_s) >= entry.alert.kind.hold_s() {
                self.over.push_front(entry.alert);
                self.over.truncate(MOST_OVER);
            }
        }
        notices
    }

    fn see(&mut self, now_s: u64, one: Finding) {
        let key = (one.kind, one.subject.clone());
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.seen_s = now_s;
            entry.alert.summary = one.summary;
            return;
        }
        if self.entries.len() >= MOST_ACTIVE {
            self.left_out += 1;
            return;
        }
        let alert = Alert {
            fingerprint: fingerprint(one.kind, &one.subject),
            kind: one.kind,
            severity: one.kind.severity(),
            summary: one.summary,
            next: one.next,
            link: if self.dashboard.is_empty() {
                String::new()
            } else {
                format!("{}/#{}", self.dashboard, one.page)
            },
            subject: one.subject,
            since_s: now_s,
            ended_s: None,
            silenced: false,
        };
        self.entries.insert(key, Entry { alert, seen_s: now_s, told_s: None });
    }

    /// What is the matter now, the worst first.
    #[must_use]
    pub fn active(&self) -> Vec<Alert> {
        let lasting = |entry: &&Entry| {
            entry.told_s.is_some()
                || entry.seen_s.saturating_sub(entry.alert.since_s) >= entry.alert.kind.hold_s()
        };
        let mut active: Vec<Alert> =
            self.entries.values().filter(lasting).map(|entry| entry.alert.clone()).collect();
        active.sort_by_key(|alert| (std::cmp::Reverse(alert.severity), alert.since_s));
        active
    }

    /// What was the matter, the latest first.
    pub fn over(&self) -> impl Iterator<Item = &Alert> {
        self.over.iter()
    }

    /// Things that were the matter and found no room.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Silences `silence`, and gives it a number; none where there are too many.
    pub fn silence(&mut self, silence: Silence) -> Option<u64> {
        if self.silences.len() >= MOST_SILENCES {
            return None;
        }
        self.next_silence += 1;
        self.silences.push(Silence { id: self.next_silence, ..silence });
        Some(self.next_silence)
    }

    /// Ends a silence. False where there is none of that number.
    pub fn end_silence(&mut self, id: u64) -> bool {
        let before = self.silences.len();
        self.silences.retain(|silence| silence.id != id);
        self.silences.len() < before
    }

    /// What is silenced.
    #[must_use]
    pub fn silences(&self) -> &[Silence] {
        &self.silences
    }
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

    fn states(notices: &[Notice]) -> Vec<(&str, &str)> {
        notices.iter().map(|one| (one.state(), one.alert().subject.as_str())).collect()
    }

    #[test]
    fn an_alert_is_told_once_when_it_begins_and_once_when_it_is_over() {
        let mut book = Book::new("https://gate.example/");
        assert_eq!(states(&book.step(100, vec![down("r")])), []);
        let begun = book.step(102, vec![down("r")]);
        assert_eq!(states(&begun), [("firing", "r")]);
        assert_eq!(begun[0].alert().link, "https://gate.example/#/stores");
        assert_eq!(begun[0].alert().since_s, 100);
        (103..200).for_each(|now| assert_eq!(states(&book.step(now, vec![down("r")])), []));
        (200..209).for_each(|now| assert_eq!(states(&book.step(now, vec![])), [], "at {now}"));
        let ended = book.step(209, vec![]);
        assert_eq!(states(&ended), [("resolved", "r")]);
        assert_eq!(ended[0].alert().ended_s, Some(199));
        assert_eq!((book.active().len(), book.over().count()), (0, 1));
    }

    #[test]
    fn what_flickers_is_told_once() {
        let mut book = Book::new("");
        let told: usize = (0..100)
            .map(|now| book.step(now, if now % 7 < 4 { vec![down("r")] } else { vec![] }).len())
            .sum();
        assert_eq!(told, 1);
    }

    #[test]
    fn what_does_not_last_is_not_told() {
        let mut book = Book::new("");
        let told: usize =
            (0..60).map(|now| book.step(now, if now == 5 { vec![down("r")] } else { vec![] }).len()).sum();
        assert_eq!((told, book.over().count()), (0, 0));
    }

    #[test]
    fn an_alert_that_goes_on_is_told_again_after_hours() {
        let mut book = Book::new("");
        let told: Vec<u64> = (0..40_000).filter(|now| !book.step(*now, vec![down("r")]).is_empty()).collect();
        assert_eq!(told, [2, 2 + 4 * 3600, 2 + 8 * 3600]);
    }

    #[test]
    fn what_is_silenced_is_kept_and_not_told_until_the_silence_ends() {
        let mut book = Book::new("");
        let silence = Silence {
            id: 0,
            kind: Some(Kind::StoreDown),
            subject: Some("r".to_owned()),
            until_s: 50,
            reason: String::new(),
        };
        let id = book.silence(silence).unwrap();
        let told: Vec<u64> = (0..100).filter(|now| !book.step(*now, vec![down("r")]).is_empty()).collect();
        assert_eq!(told, [50]);
        assert!(!book.end_silence(id), "it ended by itself");
    }

    #[test]
    fn a_silence_is_for_its_subject_alone() {
        let mut book = Book::new("");
        let silence =
            Silence { id: 0, kind: None, subject: Some("r".to_owned()), until_s: 50, reason: String::new() };
        book.silence(silence).unwrap();
        book.step(0, vec![down("r"), down("s")]);
        assert_eq!(states(&book.step(5, vec![down("r"), down("s")])), [("firing", "s")]);
        assert!(book.active().iter().any(|alert| alert.silenced && alert.subject == "r"));
    }

    #[test]
    fn there_is_a_bound_on_everything() {
        let mut book = Book::new("");
        book.step(0, (0..MOST_ACTIVE + 7).map(|n| down(&n.to_string())).collect());
        assert_eq!((book.entries.len(), book.left_out()), (MOST_ACTIVE, 7));
    }
}
