//! Converts ticks of the processor's counter to microseconds: a straight line, renewed about once a second.
//!
//! A rate measured once, at the start, cannot be trusted. The measurement reads two clocks in turn, and a thread that
//! loses its core in between for 3.4 us of a base of 1 ms is 0.34 % off until the process ends. So every [`Look`] at the
//! clocks measures the rate again, since the previous look, with its error bound; a measurement worse than both
//! [`EXACT_PPM`] and the rate in use is ignored.
//!
//! The next line starts slightly ahead on the last one and meets the wall clock at its end: time neither jumps nor goes
//! back. Only a step of the wall clock, which the monotonic clock reveals, is adopted at once.
//!
//! Nothing here reads a clock.

/// Fraction bits of a rate. A 3 GHz counter has 2^40 / 3,000 units: an error of 3 parts per billion.
const FRACTION_BITS: u32 = 40;
/// A measurement this exact replaces the rate in use. Others do if they are no worse than that rate.
const EXACT_PPM: u64 = 10;
/// The assumed error of the rate at the start.
const START_PPM: u64 = 5_000;
/// The lengths of lines. The first two are short, so that a wrong rate at the start is corrected before it adds up.
const PACES_US: [u64; 3] = [10_000, 100_000, 1_000_000];
/// A line starts this long after its look. Threads that still read the last line until then cannot see a time that the
/// next one has not reached.
const LEAD_US: u64 = 1_000;
/// The wall clock was stepped if it and the monotonic clock diverge by more than this between two looks.
const STEP_NS: u64 = 1_000_000;
/// A counter further off than this has jumped; a gradual correction would take too long.
const JUMP_US: i64 = 100_000;

/// A reading of all clocks at nearly the same time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    /// The counter.
    pub(crate) ticks: u64,
    /// Ticks that passed while the others were read.
    pub(crate) width_ticks: u64,
    /// The wall clock, since 1970.
    pub(crate) wall_ns: u64,
    /// The monotonic clock, from any origin.
    pub(crate) monotonic_ns: u64,
}

/// Microseconds per tick, times 2^40. Never 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate(u64);

impl Rate {
    /// The rate of a counter that makes `ticks` ticks in `ns`.
    pub(crate) fn new(ns: u64, ticks: u64) -> Self {
        let units = (u128::from(ns) << FRACTION_BITS) / (u128::from(ticks.max(1)) * 1_000);
        Rate(u64::try_from(units).unwrap_or(u64::MAX).max(1))
    }

    fn ticks_of(self, us: u64) -> u64 {
        u64::try_from((u128::from(us) << FRACTION_BITS) / u128::from(self.0)).unwrap_or(u64::MAX)
    }

    fn from_units(units: i128, ticks: u64, near: Rate) -> Self {
        let units = units / i128::from(ticks.max(1));
        Rate(u64::try_from(units).unwrap_or(1).clamp(near.0.div_ceil(2), near.0.saturating_mul(2)))
    }
}

/// Maps ticks to time: `us` at `ticks`, from there on at the rate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line {
    pub(crate) ticks: u64,
    pub(crate) us: u64,
    pub(crate) units_per_tick: u64,
    /// The number of ticks for which the line is valid.
    pub(crate) length_ticks: u64,
}

impl Line {
    /// The time at `ticks`; before the line's start, the time of that start.
    #[inline]
    pub(crate) fn at(&self, ticks: u64) -> u64 {
        let passed = u128::from(ticks.saturating_sub(self.ticks)) * u128::from(self.units_per_tick);
        self.us.saturating_add((passed >> FRACTION_BITS) as u64)
    }

    /// The time at `ticks`, in units of 2^-40 us.
    fn units_at(&self, ticks: u64) -> u128 {
        (u128::from(self.us) << FRACTION_BITS)
            + u128::from(ticks.saturating_sub(self.ticks)) * u128::from(self.units_per_tick)
    }

    /// A line through `units` at `ticks`. It starts up to a microsecond earlier, at a whole one.
    fn through(ticks: u64, units: u128, rate: Rate, length_ticks: u64) -> Self {
        let fraction = (units & ((1 << FRACTION_BITS) - 1)) as u64;
        let back = fraction.div_ceil(rate.0);
        Line {
            ticks: ticks.saturating_sub(back),
            us: u64::try_from(units >> FRACTION_BITS).unwrap_or(u64::MAX),
            units_per_tick: rate.0,
            length_ticks: length_ticks.saturating_add(back),
        }
    }

    pub(crate) fn end(&self) -> u64 {
        self.ticks.saturating_add(self.length_ticks)
    }

    /// Whether `ticks` is so far past the end that this line must not be used: its slope corrects an error, and would
    /// overcorrect.
    pub(crate) fn is_stale_at(&self, ticks: u64) -> bool {
        ticks > self.end().saturating_add(self.length_ticks)
    }
}

/// Draws the lines.
#[derive(Debug)]
pub(crate) struct Follower {
    line: Line,
    rate: Rate,
    /// The error bound of `rate`.
    rate_ppm: u64,
    /// The start of the next rate measurement.
    base: Look,
    last: Look,
    lines: usize,
}

impl Follower {
    /// Starts at the wall clock's time, with a rate that is soon replaced.
    pub(crate) fn new(look: Look, rate: Rate) -> Self {
        let line = at_once(look, rate, PACES_US[0]);
        Follower { line, rate, rate_ppm: START_PPM, base: look, last: look, lines: 1 }
    }

    /// The line in use.
    pub(crate) fn line(&self) -> Line {
        self.line
    }

    /// The next line, from a reading of the clocks at the end of the last one.
    pub(crate) fn follow(&mut self, look: Look) -> Line {
        let stepped = was_stepped(&self.last, &look, self.rate);
        if stepped {
            self.base = look;
        } else {
            self.measure(&look);
        }
        self.last = look;

        let pace_us = PACES_US[self.lines.min(PACES_US.len() - 1)];
        self.lines = self.lines.saturating_add(1);
        let shown_us = self.line.at(look.ticks);
        let off_us =
            i64::try_from(look.wall_ns / 1_000).unwrap_or(i64::MAX).saturating_sub_unsigned(shown_us);
        let take_over = stepped || self.line.is_stale_at(look.ticks) || off_us.abs() > JUMP_US;
        self.line = if take_over { at_once(look, self.rate, pace_us) } else { self.gradually(look, pace_us) };
        self.line
    }

    fn measure(&mut self, look: &Look) {
        let ticks = look.ticks.saturating_sub(self.base.ticks);
        let wall_ns = look.wall_ns.saturating_sub(self.base.wall_ns);
        if ticks == 0 || wall_ns == 0 {
            return;
        }
        // A look's error is at most half its width, because its ticks are those of the middle.
        let off_ticks = (look.width_ticks.saturating_add(self.base.width_ticks)).div_ceil(2);
        let ppm = u64::try_from(u128::from(off_ticks) * 1_000_000 / u128::from(ticks)).unwrap_or(u64::MAX);
        if ppm <= self.rate_ppm.max(EXACT_PPM) {
            self.rate = Rate::new(wall_ns, ticks);
            self.rate_ppm = ppm;
            self.base = *look;
        }
    }

    /// Continues from the last line, with a slope that meets the wall clock at the end of this one.
    fn gradually(&self, look: Look, pace_us: u64) -> Line {
        let begin = look.ticks.saturating_add(self.rate.ticks_of(LEAD_US));
        let length = self.rate.ticks_of(pace_us);
        let ahead = u128::from(begin - look.ticks) + u128::from(length);
        let goal = (u128::from(look.wall_ns) << FRACTION_BITS) / 1_000 + ahead * u128::from(self.rate.0);
        let from = self.line.units_at(begin);
        let slope = Rate::from_units(goal as i128 - from as i128, length, self.rate);
        Line::through(begin, from, slope, length)
    }
}

fn at_once(look: Look, rate: Rate, pace_us: u64) -> Line {
    let units = (u128::from(look.wall_ns) << FRACTION_BITS) / 1_000;
    Line::through(look.ticks, units, rate, rate.ticks_of(pace_us))
}

/// Both clocks run at the same rate, even while the system slews its time. They diverge when the wall clock is set, and
/// when the machine slept.
fn was_stepped(last: &Look, look: &Look, rate: Rate) -> bool {
    let wall = i128::from(look.wall_ns) - i128::from(last.wall_ns);
    let monotonic = i128::from(look.monotonic_ns) - i128::from(last.monotonic_ns);
    let width_ticks = u128::from(look.width_ticks) + u128::from(last.width_ticks);
    let width_ns = (width_ticks * u128::from(rate.0) * 1_000) >> FRACTION_BITS;
    (wall - monotonic).unsigned_abs() > u128::from(STEP_NS) + width_ns
}
