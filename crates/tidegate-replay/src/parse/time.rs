//! Times as logs write them, in microseconds since the Unix epoch.

use tidegate_core::{Micros, Timestamp};

use super::BadLine;

pub(super) const NO_TIME: BadLine = BadLine("it does not say when the request came");

/// `16/Nov/2026:02:30:16 +0100`, as nginx and Apache write it.
pub(super) fn common(text: &[u8]) -> Option<Timestamp> {
    let text: &[u8; 26] = text.try_into().ok()?;
    let apart = (text[2], text[6], text[11], text[14], text[17], text[20]);
    if apart != (b'/', b'/', b':', b':', b':', b' ') {
        return None;
    }
    let month = match &text[3..6] {
        b"Jan" => 1,
        b"Feb" => 2,
        b"Mar" => 3,
        b"Apr" => 4,
        b"May" => 5,
        b"Jun" => 6,
        b"Jul" => 7,
        b"Aug" => 8,
        b"Sep" => 9,
        b"Oct" => 10,
        b"Nov" => 11,
        b"Dec" => 12,
        _ => return None,
    };
    let (day, year) = (digits(&text[..2])?, digits(&text[7..11])?);
    let clock = (digits(&text[12..14])?, digits(&text[15..17])?, digits(&text[18..20])?);
    let offset = offset(text[21], &text[22..24], &text[24..26])?;
    from_civil((year, month, day), clock, offset, 0)
}

/// `2026-11-16T02:30:16.123456Z` (RFC 3339), any number of digits after the second.
pub(super) fn rfc3339(text: &[u8]) -> Option<Timestamp> {
    let (date, rest) = text.split_at_checked(10)?;
    let (clock, rest) = rest.split_at_checked(9)?;
    let apart = (date[4], date[7], clock[3], clock[6]);
    if apart != (b'-', b'-', b':', b':') || !matches!(clock[0], b'T' | b't' | b' ') {
        return None;
    }
    let date = (digits(&date[..4])?, digits(&date[5..7])?, digits(&date[8..])?);
    let clock = (digits(&clock[1..3])?, digits(&clock[4..6])?, digits(&clock[7..])?);
    let (micros, zone) = match rest.strip_prefix(b".") {
        Some(rest) => {
            let end = rest.iter().position(|byte| !byte.is_ascii_digit())?;
            (fraction(&rest[..end])?, &rest[end..])
        }
        None => (0, rest),
    };
    let offset = match zone {
        b"Z" | b"z" => 0,
        [sign, hours @ .., b':', m1, m2] if hours.len() == 2 => offset(*sign, hours, &[*m1, *m2])?,
        _ => return None,
    };
    from_civil(date, clock, offset, micros)
}

/// A number: seconds, perhaps with a fraction, or milli-, micro- or nanoseconds, distinguished by magnitude.
pub(super) fn number(text: &[u8]) -> Option<Timestamp> {
    let point = text.iter().position(|byte| *byte == b'.');
    let (whole, part) = text.split_at(point.unwrap_or(text.len()));
    let micros = if point.is_some() { fraction(&part[1..])? } else { 0 };
    if whole.len() > 19 {
        return None;
    }
    let whole = digits(whole)?;
    let at = match whole {
        0..100_000_000_000 => whole * 1_000_000 + micros,
        100_000_000_000..100_000_000_000_000 => whole * 1_000 + micros / 1_000,
        100_000_000_000_000..100_000_000_000_000_000 => whole,
        _ => whole / 1_000,
    };
    within(at)
}

/// Any of them: a number, RFC 3339, or nginx's format.
pub(super) fn any(text: &[u8]) -> Option<Timestamp> {
    number(text).or_else(|| rfc3339(text)).or_else(|| common(text))
}

/// Parses any of them. Many lines share a second, so the last one in UTC is cached as text.
#[derive(Debug, Default)]
pub(super) struct AnyTime {
    last: Option<([u8; 19], Timestamp)>,
}

impl AnyTime {
    pub(super) fn read(&mut self, text: &[u8]) -> Option<Timestamp> {
        let Some((second, micros)) = in_utc(text) else { return any(text) };
        if let Some((written, at)) = &self.last
            && written == second
        {
            return Some(*at + micros);
        }
        let at = any(text)?;
        self.last = Some((*second, at.back(micros)));
        Some(at)
    }
}

/// The part of `2026-11-16T02:30:16.123456Z` before the point, as text, and the fraction.
fn in_utc(text: &[u8]) -> Option<(&[u8; 19], Micros)> {
    let (second, rest) = text.split_first_chunk()?;
    match rest {
        b"Z" | b"z" => Some((second, Micros::ZERO)),
        [b'.', part @ .., b'Z' | b'z'] => Some((second, Micros::new(fraction(part)?))),
        _ => None,
    }
}

fn within(micros: u64) -> Option<Timestamp> {
    (micros <= Timestamp::MAX.as_micros()).then(|| Timestamp::from_micros(micros))
}

fn digits(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 19 {
        return None;
    }
    text.iter().try_fold(0u64, |number, byte| {
        byte.is_ascii_digit().then(|| number.wrapping_mul(10).wrapping_add(u64::from(byte - b'0')))
    })
}

/// A whole number, as Rust parses one.
pub(super) fn whole(text: &[u8]) -> Option<u64> {
    match text {
        // Short enough not to overflow.
        [b'0'..=b'9', ..] if text.len() <= 19 => digits(text),
        _ => std::str::from_utf8(text).ok()?.parse().ok(),
    }
}

/// The microseconds in the digits after a decimal point; further digits are truncated.
pub(super) fn fraction(text: &[u8]) -> Option<u64> {
    const UNITS: [u64; 7] = [1_000_000, 100_000, 10_000, 1_000, 100, 10, 1];
    let (kept, cut) = text.split_at(text.len().min(6));
    let kept_digits = digits(kept)?;
    cut.iter().all(u8::is_ascii_digit).then(|| kept_digits * UNITS[kept.len()])
}

/// Seconds east of Greenwich.
fn offset(sign: u8, hours: &[u8], minutes: &[u8]) -> Option<i64> {
    let (hours, minutes) = (digits(hours)?, digits(minutes)?);
    if hours > 23 || minutes > 59 {
        return None;
    }
    let seconds = i64::try_from(hours * 3_600 + minutes * 60).ok()?;
    match sign {
        b'+' => Some(seconds),
        b'-' => Some(-seconds),
        _ => None,
    }
}

fn from_civil(
    (year, month, day): (u64, u64, u64),
    (hour, minute, second): (u64, u64, u64),
    offset: i64,
    micros: u64,
) -> Option<Timestamp> {
    // A leap second is written as 60, and counts with the next second.
    let fits = (1970..=2200).contains(&year)
        && (1..=12).contains(&month)
        && hour < 24
        && minute < 60
        && second <= 60;
    if !fits || day == 0 || day > days_in(year, month) {
        return None;
    }
    let clock = hour * 3_600 + minute * 60 + second;
    let seconds = i64::try_from(days_before(year, month, day) * 86_400 + clock).ok()? - offset;
    within(u64::try_from(seconds).ok()? * 1_000_000 + micros)
}

const DAYS_BEFORE_MONTH: [u64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn days_in(year: u64, month: u64) -> u64 {
    match month {
        2 => 28 + u64::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from 1970-01-01 to this day.
fn days_before(year: u64, month: u64, day: u64) -> u64 {
    // Leap years before `year`, counted from the year 1 on, less those before 1970.
    let leaps = |year: u64| (year - 1) / 4 - (year - 1) / 100 + (year - 1) / 400;
    let this_year = DAYS_BEFORE_MONTH[usize::try_from(month - 1).expect("a month")];
    let leap_day = u64::from(month > 2 && is_leap(year));
    (year - 1970) * 365 + leaps(year) - leaps(1970) + this_year + leap_day + day - 1
}

/// A time as RFC 3339 in UTC, to the second.
pub(crate) fn civil(seconds: u64) -> String {
    let (mut days, clock) = (seconds / 86_400, seconds % 86_400);
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let mut month = 1;
    while days >= days_in(year, month) {
        days -= days_in(year, month);
        month += 1;
    }
    let (hour, minute, second) = (clock / 3_600, clock / 60 % 60, clock % 60);
    format!("{year:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", days + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// jiff is the oracle: it shares nothing with this file.
        #[test]
        fn every_way_to_write_a_moment_is_read_as_jiff_wrote_it(
            micros in 0i64..7_000_000_000_000_000,
            hours in -12i8..=12,
        ) {
            let moment = jiff::Timestamp::from_microsecond(micros).unwrap();
            let zoned = moment.to_zoned(jiff::tz::TimeZone::fixed(jiff::tz::offset(hours)));
            let expected = Some(Timestamp::from_micros(u64::try_from(micros).unwrap()));
            prop_assert_eq!(rfc3339(moment.to_string().as_bytes()), expected);
            let written = zoned.strftime("%Y-%m-%dT%H:%M:%S%.6f%:z").to_string();
            prop_assert_eq!(rfc3339(written.as_bytes()), expected, "{}", written);
            let second = micros / 1_000_000;
            let written = zoned.strftime("%d/%b/%Y:%H:%M:%S %z").to_string();
            let whole = Some(Timestamp::from_micros(u64::try_from(second * 1_000_000).unwrap()));
            prop_assert_eq!(common(written.as_bytes()), whole, "{}", written);
            let whole = jiff::Timestamp::from_second(second).unwrap();
            prop_assert_eq!(civil(u64::try_from(second).unwrap()), whole.to_string());
        }
    }

    #[test]
    fn numbers_are_seconds_or_smaller_units_by_their_size() {
        let at = |text: &str| number(text.as_bytes()).map(Timestamp::as_micros);
        assert_eq!(at("1800057600"), Some(1_800_057_600_000_000));
        assert_eq!(at("1800057600.5241024"), Some(1_800_057_600_524_102));
        assert_eq!(at("1800057600123"), Some(1_800_057_600_123_000));
        assert_eq!(at("1800057600123456"), Some(1_800_057_600_123_456));
        assert_eq!(at("1800057600123456789"), Some(1_800_057_600_123_456));
        assert_eq!([at(""), at("-1"), at("1.x"), at("99999999999999999999")], [None; 4]);
    }

    #[test]
    fn a_time_is_read_the_same_whatever_was_read_before() {
        let texts = [
            "2026-11-16T02:30:16.25Z",
            "2026-11-16T02:30:16.123456789z",
            "2026-11-16T02:30:16Z",
            "2026-11-16 02:30:16.9Z",
            "2026-11-16T02:30:16.25+01:00",
            "2026-11-16T02:30:16.Z",
            "2026-11-16T02:30:16.2x5Z",
            "2026-11-16T02:30:17Z",
            "2026-13-16T02:30:16Z",
            "1800057600.5",
            "16/Nov/2026:02:30:16 +0000",
            "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0Z",
            "",
        ];
        for (before, text) in texts.iter().flat_map(|before| texts.map(|text| (before, text))) {
            let mut times = AnyTime::default();
            times.read(before.as_bytes());
            assert_eq!(times.read(text.as_bytes()), super::any(text.as_bytes()), "{before} {text}");
        }
    }

    #[test]
    fn what_is_no_time_is_none() {
        for text in
            ["", "31/Feb/2026:00:00:00 +0000", "16/Nov/2026:24:00:00 +0000", "16/nov/2026:02:30:16 +0000"]
        {
            assert_eq!(common(text.as_bytes()), None, "{text}");
        }
        for text in [
            "2026-11-16T02:30:16",
            "2026-13-16T02:30:16Z",
            "2026-11-16T02:30:16.Z",
            "2026-11-16T02:30:16+1:00",
        ] {
            assert_eq!(rfc3339(text.as_bytes()), None, "{text}");
        }
    }
}
