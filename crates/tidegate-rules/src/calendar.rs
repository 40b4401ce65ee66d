//! Calendar windows: when a day, week, month or year begins in a time zone.
//!
//! Boundaries are computed once per unit and zone, from 1970 to 2100, and shared by every limit that uses them. Zone data is
//! built in: a node's own may be missing or old, and nodes must agree.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::ToSpan;
use jiff::civil::{Date, Weekday, date};
use jiff::tz::TimeZone;
use tidegate_core::Timestamp;

/// A unit whose length depends on the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CalendarUnit {
    Day,
    /// From Monday to Sunday.
    Week,
    Month,
    Year,
}

impl CalendarUnit {
    pub(crate) const NAMES: [&str; 4] = ["day", "week", "month", "year"];

    pub(crate) fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "day" => CalendarUnit::Day,
            "week" => CalendarUnit::Week,
            "month" => CalendarUnit::Month,
            "year" => CalendarUnit::Year,
            _ => return None,
        })
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            CalendarUnit::Day => "day",
            CalendarUnit::Week => "week",
            CalendarUnit::Month => "month",
            CalendarUnit::Year => "year",
        }
    }

    /// The first day of the unit that contains `day`.
    fn first_day(self, day: Date) -> Date {
        match self {
            CalendarUnit::Day => day,
            CalendarUnit::Week => {
                day.tomorrow().and_then(|next| next.nth_weekday(-1, Weekday::Monday)).unwrap_or(day)
            }
            CalendarUnit::Month => day.first_of_month(),
            CalendarUnit::Year => day.first_of_year(),
        }
    }

    fn next(self, day: Date) -> Option<Date> {
        let step = match self {
            CalendarUnit::Day => 1.day(),
            CalendarUnit::Week => 7.days(),
            CalendarUnit::Month => 1.month(),
            CalendarUnit::Year => 1.year(),
        };
        day.checked_add(step).ok()
    }
}

/// An existing time zone.
#[derive(Clone, Debug)]
pub(crate) struct Zone(TimeZone);

impl Zone {
    pub(crate) fn utc() -> Self {
        Zone(TimeZone::UTC)
    }

    /// The zone with that name, or similar names.
    pub(crate) fn find(name: &str) -> Result<Self, Vec<String>> {
        if let Ok(zone) = TimeZone::get(name) {
            return Ok(Zone(zone));
        }
        Err(jiff::tz::db().available().map(|name| name.to_string()).collect())
    }

    /// Its name as spelled in the zone data.
    pub(crate) fn name(&self) -> &str {
        self.0.iana_name().unwrap_or("UTC")
    }
}

const FIRST_DAY: Date = date(1970, 1, 1);
const LAST_DAY: Date = date(2100, 1, 1);

/// The most calendars in a set of rules: each takes up to 400 kB.
pub(crate) const MOST_CALENDARS: usize = 64;

/// The boundaries computed so far.
#[derive(Default)]
pub(crate) struct Calendars(HashMap<(CalendarUnit, String), Arc<[Timestamp]>>);

impl Calendars {
    /// When each `unit` begins in `zone`; `None` if that would exceed the bound on calendars.
    pub(crate) fn boundaries(&mut self, unit: CalendarUnit, zone: &Zone) -> Option<Arc<[Timestamp]>> {
        let wanted = (unit, zone.name().to_owned());
        if self.0.len() >= MOST_CALENDARS && !self.0.contains_key(&wanted) {
            return None;
        }
        Some(Arc::clone(self.0.entry(wanted).or_insert_with(|| boundaries(unit, zone))))
    }
}

fn boundaries(unit: CalendarUnit, zone: &Zone) -> Arc<[Timestamp]> {
    let days = std::iter::successors(Some(unit.first_day(FIRST_DAY)), |day| unit.next(*day));
    let mut moments: Vec<Timestamp> = days
        .take_while(|day| *day <= LAST_DAY)
        // If midnight does not exist, the day begins after the clocks are set forward.
        .filter_map(|day| day.to_zoned(zone.0.clone()).ok())
        .filter_map(|midnight| u64::try_from(midnight.timestamp().as_microsecond()).ok())
        .map(Timestamp::from_micros)
        .collect();
    // A zone that moves across the date line skips a day, which then begins when the next one does.
    moments.dedup();
    moments.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starts(unit: CalendarUnit, zone: &str) -> Arc<[Timestamp]> {
        Calendars::default().boundaries(unit, &Zone::find(zone).unwrap()).unwrap()
    }

    fn moment(text: &str) -> Timestamp {
        let moment: jiff::Timestamp = text.parse().unwrap();
        Timestamp::from_micros(u64::try_from(moment.as_microsecond()).unwrap())
    }

    #[test]
    fn a_month_begins_at_local_midnight_in_winter_and_summer() {
        let months = starts(CalendarUnit::Month, "Europe/Paris");
        assert!(months.contains(&moment("2026-01-31T23:00:00Z")));
        assert!(months.contains(&moment("2026-07-31T22:00:00Z")));
    }

    #[test]
    fn a_week_begins_on_monday() {
        let weeks = starts(CalendarUnit::Week, "UTC");
        assert!(weeks.contains(&moment("2026-11-09T00:00:00Z")));
        assert!(!weeks.contains(&moment("2026-11-08T00:00:00Z")));
    }

    #[test]
    fn days_change_length_with_the_clocks() {
        let days = starts(CalendarUnit::Day, "Europe/Paris");
        let at = days.iter().position(|day| *day == moment("2026-03-28T23:00:00Z")).unwrap();
        assert_eq!(days[at + 1], moment("2026-03-29T22:00:00Z"));
    }

    #[test]
    fn boundaries_ascend_even_where_a_day_was_skipped_or_midnight_does_not_exist() {
        for zone in ["Pacific/Apia", "America/Sao_Paulo", "Asia/Beirut", "Pacific/Kiritimati"] {
            let days = starts(CalendarUnit::Day, zone);
            assert!(days.is_sorted_by(|a, b| a < b), "{zone}");
        }
    }
}
