//! Withholds repeated log lines: a lasting fault must not fill a disk, nor hide another one.
//!
//! Lines are distinguished by their place in the code and, if they have them, by `kind` and `subject`: two alerts are not
//! repeats. Lines with a `hint` are distinguished by their message: two mistakes in a file are not repeats either. Each may
//! be written a few times in a row and then once every ten seconds; the number withheld is logged once that is over, and
//! counted in a metric.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata};
use tracing_subscriber::layer::{Context, Filter};

use crate::clock;

/// The number of lines of one place that are always written, and the interval of further ones.
const IN_A_ROW: u32 = 10;
const ONE_MORE_EVERY: Duration = Duration::from_secs(10);

/// The most places and subjects distinguished. Beyond that, subjects without recent lines are forgotten, and if that is not
/// enough, new ones share their place.
const MOST_PLACES: usize = 4_000;

/// Tracks the lines written recently.
#[derive(Clone, Default)]
pub(crate) struct Repeats(Arc<RepeatState>);

#[derive(Default)]
struct RepeatState {
    places: Mutex<HashMap<(Identifier, Subject), RepeatPlace>>,
    withheld: AtomicU64,
}

/// A hash of a line's subject; `None` without one.
type Subject = Option<u64>;

struct RepeatPlace {
    may_still: u32,
    since: Instant,
    withheld: u64,
    /// The place, to find the lines by.
    at: (&'static str, Option<u32>),
}

/// The withheld lines of one place.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Withheld {
    pub(crate) lines: u64,
    pub(crate) target: &'static str,
    pub(crate) line: Option<u32>,
}

impl Repeats {
    /// The number of lines withheld since the process started.
    pub(crate) fn total(&self) -> u64 {
        self.0.withheld.load(Ordering::Relaxed)
    }

    /// Whether one more line of a place may be written at `now`.
    fn may_write(&self, place: &'static Metadata<'static>, subject: Subject, now: Instant) -> bool {
        let mut places = self.0.places.lock().unwrap_or_else(PoisonError::into_inner);
        let mut key = (place.callsite(), subject);
        if places.len() >= MOST_PLACES && !places.contains_key(&key) {
            places.retain(|(_, subject), place| {
                let rested = now.saturating_duration_since(place.since) >= ONE_MORE_EVERY * IN_A_ROW;
                subject.is_none() || place.withheld > 0 || !rested
            });
            if places.len() >= MOST_PLACES {
                key.1 = None;
            }
        }
        let place = places.entry(key).or_insert_with(|| RepeatPlace {
            may_still: IN_A_ROW,
            since: now,
            withheld: 0,
            at: (place.target(), place.line()),
        });
        let passed = now.saturating_duration_since(place.since);
        let earned = u32::try_from(passed.as_secs() / ONE_MORE_EVERY.as_secs()).unwrap_or(IN_A_ROW);
        if earned > 0 {
            place.may_still = place.may_still.saturating_add(earned).min(IN_A_ROW);
            place.since += ONE_MORE_EVERY * earned;
        }
        if place.may_still == 0 {
            place.withheld += 1;
            self.0.withheld.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        if place.may_still == IN_A_ROW {
            place.since = now;
        }
        place.may_still -= 1;
        true
    }

    /// The lines withheld at each place since the last call.
    pub(crate) fn take_withheld(&self) -> Vec<Withheld> {
        let mut places = self.0.places.lock().unwrap_or_else(PoisonError::into_inner);
        let mut withheld: BTreeMap<(&'static str, Option<u32>), u64> = BTreeMap::new();
        for place in places.values_mut().filter(|place| place.withheld > 0) {
            *withheld.entry(place.at).or_default() += std::mem::take(&mut place.withheld);
        }
        withheld.into_iter().map(|((target, line), lines)| Withheld { lines, target, line }).collect()
    }

    /// Logs at intervals how many lines were withheld. Runs until dropped.
    pub(crate) async fn tell(self) {
        let mut ticks = tokio::time::interval(ONE_MORE_EVERY);
        loop {
            ticks.tick().await;
            for Withheld { lines, target, line } in self.take_withheld() {
                // Not `target` and `line`: in JSON the origin of a line already has those names.
                tracing::warn!(
                    withheld = lines,
                    like_target = target,
                    like_line = line,
                    "repeated log lines were not written"
                );
            }
        }
    }
}

impl<S> Filter<S> for Repeats {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        self.may_write(event.metadata(), subject(event), clock::now())
    }
}

fn subject(event: &Event<'_>) -> Subject {
    let has = |name: &str| event.metadata().fields().field(name).is_some();
    let told_apart_by: &[&str] = match (has("subject"), has("hint")) {
        (true, _) => &["kind", "subject"],
        (false, true) => &["message"],
        (false, false) => return None,
    };
    let mut reader = SubjectReader { told_apart_by, read: DefaultHasher::new() };
    event.record(&mut reader);
    Some(reader.read.finish())
}

/// Reads the subject of a line.
struct SubjectReader {
    told_apart_by: &'static [&'static str],
    read: DefaultHasher,
}

impl Visit for SubjectReader {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if self.told_apart_by.contains(&field.name()) {
            (field.name(), format!("{value:?}")).hash(&mut self.read);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io;

    use tracing_subscriber::layer::SubscriberExt as _;
    use tracing_subscriber::{Layer as _, Registry};

    use super::*;
    use crate::settings::LogFormat;

    /// The lines that `work` logs through `repeats`.
    pub(crate) fn written(repeats: &Repeats, work: impl FnOnce()) -> Vec<String> {
        written_as(repeats, LogFormat::Text, work)
    }

    fn written_as_json(repeats: &Repeats, work: impl FnOnce()) -> Vec<String> {
        written_as(repeats, LogFormat::Json, work)
    }

    fn written_as(repeats: &Repeats, format: LogFormat, work: impl FnOnce()) -> Vec<String> {
        #[derive(Clone, Default)]
        struct Out(Arc<Mutex<Vec<u8>>>);
        impl io::Write for Out {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.lock().unwrap().extend_from_slice(bytes);
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let out = Out::default();
        let sink = out.clone();
        let layer = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(move || sink.clone());
        let layer = match format {
            LogFormat::Text => layer.boxed(),
            LogFormat::Json => layer.json().flatten_event(true).boxed(),
        };
        let subscriber = Registry::default().with(layer.with_filter(repeats.clone()));
        tracing::subscriber::with_default(subscriber, work);
        let text = out.0.lock().unwrap().clone();
        String::from_utf8(text).unwrap().lines().map(str::to_owned).collect()
    }

    fn lines(repeats: &Repeats, work: impl FnOnce()) -> usize {
        written(repeats, work).len()
    }

    #[test]
    fn a_line_that_repeats_is_withheld_and_counted_and_another_is_not() {
        let repeats = Repeats::default();
        let written = lines(&repeats, || {
            (0..1_000).for_each(|number| tracing::info!(number, "again"));
            tracing::info!("something else");
        });
        assert_eq!(written, IN_A_ROW as usize + 1);
        assert_eq!(repeats.total(), 1_000 - u64::from(IN_A_ROW));
        let told = repeats.take_withheld();
        assert_eq!(told.len(), 1);
        assert_eq!((told[0].lines, told[0].target), (990, module_path!()));
        assert_eq!(repeats.take_withheld(), [], "what was told is told once");
    }

    #[test]
    fn lines_about_different_things_are_no_repetition_and_those_about_one_are() {
        let repeats = Repeats::default();
        let written = lines(&repeats, || {
            for number in 0..40 {
                tracing::warn!(kind = "store_down", subject = format!("redis-{number}"), "alert");
            }
        });
        assert_eq!(written, 40);
        let again = |subject: &str| tracing::warn!(kind = "store_down", subject, "alert again");
        let written = lines(&repeats, || {
            (0..100).for_each(|_| again("a"));
            again("b");
        });
        assert_eq!(written, IN_A_ROW as usize + 1);
        let told = repeats.take_withheld();
        assert_eq!((told.len(), told[0].lines), (1, 90));
    }

    #[test]
    fn different_mistakes_are_no_repetition_and_the_same_again_is() {
        let repeats = Repeats::default();
        let mistake =
            |number: u32| tracing::error!(hint = "units are s, m, h", "rules.yaml:{number}: no unit");
        assert_eq!(lines(&repeats, || (0..30).for_each(mistake)), 30);
        assert_eq!(lines(&repeats, || (0..30).for_each(|_| mistake(7))), IN_A_ROW as usize - 1);
    }

    #[test]
    fn what_says_that_lines_were_withheld_has_no_key_twice_in_json() {
        struct Counted(BTreeMap<String, u32>);
        impl<'de> serde::Deserialize<'de> for Counted {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                struct Keys;
                impl<'de> serde::de::Visitor<'de> for Keys {
                    type Value = Counted;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str("an object")
                    }
                    fn visit_map<A: serde::de::MapAccess<'de>>(
                        self,
                        mut map: A,
                    ) -> Result<Counted, A::Error> {
                        let mut keys = BTreeMap::new();
                        while let Some((key, _)) = map.next_entry::<String, serde_json::Value>()? {
                            *keys.entry(key).or_default() += 1;
                        }
                        Ok(Counted(keys))
                    }
                }
                from.deserialize_map(Keys)
            }
        }
        let repeats = Repeats::default();
        let told = written_as_json(&repeats, || {
            (0..20).for_each(|_| tracing::info!("again"));
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            let telling = tokio::time::timeout;
            let told =
                runtime.block_on(async { telling(Duration::from_millis(50), repeats.clone().tell()).await });
            assert!(told.is_err(), "it tells until dropped");
        });
        let last: Counted = serde_json::from_str(told.last().unwrap()).unwrap();
        assert!(told.last().unwrap().contains("were not written"), "{told:?}");
        assert!(last.0.values().all(|times| *times == 1), "{:?}", last.0);
    }

    #[test]
    fn subjects_without_end_take_bounded_memory() {
        let (repeats, start) = (Repeats::default(), clock::now());
        let about = |subjects: std::ops::Range<u64>, now: Instant| {
            subjects.filter(|subject| repeats.may_write(place(), Some(*subject), now)).count()
        };
        assert_eq!(about(0..10_000, start), MOST_PLACES + IN_A_ROW as usize, "the others share one");
        assert!(repeats.0.places.lock().unwrap().len() <= MOST_PLACES + 1);
        let later = start + ONE_MORE_EVERY * IN_A_ROW;
        assert_eq!(about(20_000..20_100, later), 100, "who wrote nothing lately leaves room");
    }

    /// A place in the code.
    fn place() -> &'static Metadata<'static> {
        struct TestPlace;
        impl tracing::callsite::Callsite for TestPlace {
            fn set_interest(&self, _: tracing::subscriber::Interest) {}
            fn metadata(&self) -> &Metadata<'_> {
                &META
            }
        }
        static PLACE: TestPlace = TestPlace;
        static META: Metadata<'static> = tracing::metadata! {
            name: "test", target: "test", level: tracing::Level::INFO, fields: &[],
            callsite: &PLACE, kind: tracing::metadata::Kind::EVENT
        };
        &META
    }

    #[test]
    fn with_time_a_place_may_write_again() {
        let (repeats, start) = (Repeats::default(), clock::now());
        let written = |after: u64| repeats.may_write(place(), None, start + Duration::from_secs(after));
        assert_eq!((0..100).filter(|_| written(0)).count(), 10);
        assert_eq!((0..100).filter(|_| written(9)).count(), 0);
        assert_eq!((0..100).filter(|_| written(10)).count(), 1);
        assert_eq!((0..100).filter(|_| written(20)).count(), 1);
        assert_eq!((0..100).filter(|_| written(500)).count(), 10, "and no more than at first");
    }
}
