//! The usual level of a number that is read once a minute: recently, at this hour of other days, and at this hour of other
//! weeks.
//!
//! A number far from usual does not change the recent level for an hour: an incident must not become usual while it lasts,
//! and a new level must not be an incident for ever. What recurs at its hour is learned either way. No clock is read:
//! minutes are given.

/// Hours of a week.
const SLOTS: usize = 168;
const HOURS: usize = 24;
const MINUTES_A_SLOT: u64 = 60;
/// The weight of one minute in the recent level: its half-life is half an hour.
const LATELY: f64 = 0.023;
/// The weight of one week in an hour of the week, and of one day in an hour of the day.
const RECURRING: f64 = 0.3;
/// Times that an hour of the week must have been seen to be judged without other days.
const WEEKS_THAT_TELL: u32 = 2;
/// Minutes that must have been seen before anything counts as unusual.
const WARM_UP: u32 = 30;
/// Minutes of an unusual level after which it is the new usual one.
const NEW_USUAL: u32 = 60;

/// The usual level of one number.
#[derive(Clone, Debug)]
pub struct Baseline {
    lately: Level,
    weekly: Vec<Season>,
    daily: Vec<Season>,
    seen: u32,
    unusual_for: u32,
    /// The sum of the current hour of the week.
    hour: Hour,
}

#[derive(Clone, Copy, Debug, Default)]
struct Level {
    mean: f64,
    spread: f64,
}

impl Level {
    fn deviation(self, value: f64, noise: impl Fn(f64) -> f64) -> Deviation {
        let spread = self.spread.max(noise(self.mean)).max(f64::MIN_POSITIVE);
        Deviation { expected: self.mean, spread, score: (value - self.mean) / spread }
    }
}

/// One hour of the week, or of the day: the mean over the times that it was seen.
#[derive(Clone, Copy, Debug, Default)]
struct Season {
    mean: f64,
    spread: f64,
    times: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Hour {
    slot: usize,
    sum: f64,
    minutes: u32,
}

impl Season {
    fn level(self) -> Option<Level> {
        (self.times > 0).then_some(Level { mean: self.mean, spread: self.spread })
    }

    /// `within` is the spread of minutes within the hour.
    fn learn(&mut self, mean: f64, within: f64) {
        let first = self.times == 0;
        let share = if first { 1.0 } else { RECURRING };
        let off = if first { within } else { (1.25 * (mean - self.mean).abs()).max(within) };
        self.spread += share * (off - self.spread);
        self.mean += share * (mean - self.mean);
        self.times = self.times.saturating_add(1);
    }
}

/// The deviation of a number from its usual level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Deviation {
    /// The usual level.
    pub expected: f64,
    /// The usual spread around it; at least what chance alone produces.
    pub spread: f64,
    /// The deviation in spreads: above (positive) or below.
    pub score: f64,
}

impl Default for Baseline {
    fn default() -> Self {
        let (weekly, daily) = (vec![Season::default(); SLOTS], vec![Season::default(); HOURS]);
        Baseline { lately: Level::default(), weekly, daily, seen: 0, unusual_for: 0, hour: Hour::default() }
    }
}

impl Baseline {
    /// The deviation of `value` in this minute (since 1970); `None` while too little is known. `noise` is the spread that
    /// chance alone gives a number of that size.
    #[must_use]
    pub fn deviation(&self, minute: u64, value: f64, noise: impl Fn(f64) -> f64) -> Option<Deviation> {
        if self.seen < WARM_UP {
            return None;
        }
        let slot = slot(minute);
        // The level that explains the number best: a rush hour is usual, and so is a new level.
        let deviations = self.usual(slot).map(|level| level.deviation(value, &noise));
        deviations.min_by(|one, other| one.score.abs().total_cmp(&other.score.abs()))
    }

    /// The deviations of `value` from all levels in this minute: recent, at this hour of days, of weeks; the lowest level first.
    /// Empty while too little is known.
    #[must_use]
    pub fn deviations(&self, minute: u64, value: f64, noise: impl Fn(f64) -> f64) -> Vec<Deviation> {
        let known = self.usual(slot(minute)).filter(|_| self.seen >= WARM_UP);
        let mut off: Vec<Deviation> = known.map(|level| level.deviation(value, &noise)).collect();
        off.sort_by(|one, other| one.expected.total_cmp(&other.expected));
        off
    }

    /// The usual levels in an hour of the week. An hour seen in two weeks is judged without other days: a busy Monday says
    /// nothing about Tuesday.
    fn usual(&self, slot: usize) -> impl Iterator<Item = Level> {
        let weekly = self.weekly[slot];
        let daily = self.daily[slot % HOURS].level().filter(|_| weekly.times < WEEKS_THAT_TELL);
        [Some(self.lately), weekly.level(), daily].into_iter().flatten()
    }

    /// Learns from a minute. If it was unusual, the recent level does not learn from it for a while.
    pub fn learn(&mut self, minute: u64, value: f64, unusual: Unusual) {
        self.unusual_for = match unusual {
            Unusual::Yes => self.unusual_for + 1,
            Unusual::No => 0,
        };
        self.learn_hour(slot(minute), value);
        if self.unusual_for > 0 && self.unusual_for < NEW_USUAL {
            return;
        }
        let share = LATELY.max(1.0 / f64::from(self.seen + 1));
        let share = if self.unusual_for >= NEW_USUAL { 0.3 } else { share };
        let off = (value - self.lately.mean).abs();
        self.lately.spread += share * (1.25 * off - self.lately.spread);
        self.lately.mean += share * (value - self.lately.mean);
        self.seen = self.seen.saturating_add(1);
    }

    fn learn_hour(&mut self, slot: usize, value: f64) {
        if slot != self.hour.slot {
            let Hour { slot, sum, minutes } =
                std::mem::replace(&mut self.hour, Hour { slot, ..Hour::default() });
            if minutes >= 30 {
                let mean = sum / f64::from(minutes);
                self.weekly[slot].learn(mean, self.lately.spread);
                self.daily[slot % HOURS].learn(mean, self.lately.spread);
            }
        }
        self.hour.sum += value;
        self.hour.minutes += 1;
    }
}

/// The stored form of a baseline: the recurring levels and the recent one. Numbers are little-endian, and the length is
/// bounded.
impl Baseline {
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend(self.seen.to_le_bytes());
        [self.lately.mean, self.lately.spread].iter().for_each(|number| put(out, *number));
        let seasons = || (0_u8..).zip(self.weekly.iter().chain(&self.daily)).filter(|(_, one)| one.times > 0);
        out.push(u8::try_from(seasons().count()).unwrap_or_default());
        for (place, season) in seasons() {
            out.push(place);
            out.push(u8::try_from(season.times).unwrap_or(u8::MAX));
            put(out, season.mean);
            put(out, season.spread);
        }
    }

    /// Reads one from the beginning of `bytes`, and advances past it. The stored recent level is used only if `is_recent`.
    pub(super) fn read(bytes: &mut &[u8], is_recent: bool) -> Option<Self> {
        let mut baseline = Baseline::default();
        let seen = u32::from_le_bytes(take(bytes)?);
        let lately = Level { mean: number(bytes)?, spread: number(bytes)? };
        let [count] = take(bytes)?;
        for _ in 0..count {
            let [place, times] = take(bytes)?;
            let season = Season { mean: number(bytes)?, spread: number(bytes)?, times: times.into() };
            let place = usize::from(place);
            *match place.checked_sub(SLOTS) {
                None => baseline.weekly.get_mut(place)?,
                Some(hour) => baseline.daily.get_mut(hour)?,
            } = season;
        }
        if is_recent {
            (baseline.seen, baseline.lately) = (seen, lately);
        }
        Some(baseline)
    }
}

fn put(out: &mut Vec<u8>, number: f64) {
    out.extend((number as f32).to_le_bytes());
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*first)
}

fn number(bytes: &mut &[u8]) -> Option<f64> {
    Some(f64::from(f32::from_le_bytes(take(bytes)?))).filter(|number| number.is_finite() && *number >= 0.0)
}

/// Whether a minute was far from usual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Unusual {
    Yes,
    No,
}

fn slot(minute: u64) -> usize {
    usize::try_from(minute / MINUTES_A_SLOT % SLOTS as u64).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taught(minutes: u64, value: impl Fn(u64) -> f64) -> Baseline {
        let mut baseline = Baseline::default();
        (0..minutes).for_each(|minute| baseline.learn(minute, value(minute), Unusual::No));
        baseline
    }

    #[test]
    fn nothing_is_unusual_until_half_an_hour_was_seen() {
        assert_eq!(taught(29, |_| 100.0).deviation(29, 9_999.0, f64::sqrt), None);
        let deviation = taught(30, |_| 100.0).deviation(30, 9_999.0, f64::sqrt).unwrap();
        assert!((deviation.expected - 100.0).abs() < 1e-6 && deviation.score > 100.0, "{deviation:?}");
    }

    #[test]
    fn a_rush_hour_is_usual_in_its_hour_and_unusual_in_another() {
        // Ten times as much in the ninth hour of every day, for a week.
        let rush = |minute: u64| if minute / 60 % 24 == 9 { 1_000.0 } else { 100.0 };
        let baseline = taught(7 * 24 * 60, rush);
        let week = 7 * 24 * 60;
        let score = |hour: u64| baseline.deviation(week + hour * 60, 1_000.0, f64::sqrt).unwrap().score;
        assert!(score(9).abs() < 3.0, "{}", score(9));
        assert!(score(4) > 5.0, "{}", score(4));
    }

    const DAY: u64 = 24 * 60;

    /// Ten times as much all Monday; 1970 began on a Thursday.
    fn mondays(minute: u64) -> f64 {
        if minute / DAY % 7 == 4 { 1_000.0 } else { 100.0 }
    }

    #[test]
    fn a_busy_monday_is_usual_on_the_third_monday_and_unusual_on_the_tuesday_after_it() {
        // Until nine on a day of the third week.
        let score = |day: u64| {
            let nine = (14 + day) * DAY + 9 * 60;
            let known = taught(nine - 9 * 60, mondays);
            let known = (nine - 9 * 60..nine).fold(known, |mut known, minute| {
                // On Monday, nothing is known of that day yet.
                if day != 4 {
                    known.learn(minute, mondays(minute), Unusual::No);
                }
                known
            });
            known.deviation(nine, 1_000.0, f64::sqrt).unwrap().score
        };
        assert!(score(4).abs() < 3.0, "Monday: {}", score(4));
        assert!(score(5) > 6.0, "Tuesday: {}", score(5));
    }

    #[test]
    fn what_was_kept_says_the_same_as_what_was_learned() {
        let learned = taught(16 * DAY, |minute| mondays(minute) + (minute % 7) as f64);
        let mut kept = Vec::new();
        learned.write(&mut kept);
        assert!(kept.len() < 2_000, "{} bytes", kept.len());
        let restored = Baseline::read(&mut kept.as_slice(), true).unwrap();
        for minute in (16 * DAY..23 * DAY).step_by(30) {
            let both = [&learned, &restored].map(|one| one.deviation(minute, 500.0, f64::sqrt).unwrap());
            let same = (both[0].score - both[1].score).abs() < 1e-3 * (1.0 + both[0].score.abs());
            assert!(same, "{both:?} at {minute}");
        }
        let old = Baseline::read(&mut kept.as_slice(), false).unwrap();
        assert_eq!(old.deviation(16 * DAY, 500.0, f64::sqrt), None, "lately is learned anew");
        for length in 0..kept.len() {
            assert!(Baseline::read(&mut &kept[..length], true).is_none(), "cut after {length} bytes");
        }
    }

    #[test]
    fn an_incident_is_not_learned_until_it_has_lasted_an_hour() {
        let mut baseline = taught(120, |_| 100.0);
        (120..170).for_each(|minute| baseline.learn(minute, 900.0, Unusual::Yes));
        assert!((baseline.deviation(170, 900.0, f64::sqrt).unwrap().expected - 100.0).abs() < 1.0);
        (170..200).for_each(|minute| baseline.learn(minute, 900.0, Unusual::Yes));
        assert!(baseline.deviation(200, 900.0, f64::sqrt).unwrap().expected > 800.0);
    }
}
