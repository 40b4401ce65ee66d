//! Durations and rates as people write them: `200ms`, `5m`, `1h30m`, `day`; `10/s`, `100/minute`, `5/10s`.
//!
//! No fractions (write `1500ms`, not `1.5s`), no months or years (they differ in length: a calendar window is for those),
//! and nothing that overflows.

use std::fmt;

use tidegate_core::{LimitError, Micros, Rate};

/// Why a text is not a duration, rate or number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuantityError {
    /// What is wrong with it.
    pub problem: String,
    /// What to write instead.
    pub hint: String,
}

impl QuantityError {
    fn new(problem: impl Into<String>, hint: impl Into<String>) -> Self {
        QuantityError { problem: problem.into(), hint: hint.into() }
    }
}

impl fmt::Display for QuantityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem)
    }
}

impl std::error::Error for QuantityError {}

impl From<LimitError> for QuantityError {
    fn from(error: LimitError) -> Self {
        QuantityError { problem: error.problem, hint: error.hint }
    }
}

/// Longer texts are not quantities, and would only make messages long.
const LONGEST_TEXT: usize = 64;

const DURATION_HINT: &str = "write a whole number and a unit, such as 200ms, 1s, 5m, 1h or 7d";
const RATE_HINT: &str = "write hits per time, such as 10/s, 100/minute or 5/10s";

/// Parses a duration: whole numbers with units (`1h30m`), or one unit alone (`minute`).
///
/// ```
/// use tidegate_core::Micros;
/// use tidegate_rules::parse_duration;
///
/// assert_eq!(parse_duration("90s")?, Micros::from_secs(90));
/// assert_eq!(parse_duration("1h30m")?, parse_duration("90 minutes")?);
/// # Ok::<(), tidegate_rules::QuantityError>(())
/// ```
///
/// # Errors
/// It is not of that form, or too long to count.
pub fn parse_duration(text: &str) -> Result<Micros, QuantityError> {
    check_length(text)?;
    let text = text.trim();
    if text.is_empty() {
        return Err(QuantityError::new("there is no duration", DURATION_HINT));
    }
    if text.starts_with('-') {
        return Err(QuantityError::new(format!("`{text}` is negative"), DURATION_HINT));
    }
    if !text.starts_with(|c: char| c.is_ascii_digit()) {
        return unit_in_micros(text).map(Micros::new);
    }
    let mut total: u64 = 0;
    let mut rest = text;
    while !rest.is_empty() {
        let (count, after) = leading_number(rest)?;
        let after = after.trim_start();
        let unit_ends = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let unit = after[..unit_ends].trim_end();
        if unit.is_empty() {
            return Err(QuantityError::new(
                format!("`{text}` has no unit"),
                format!("such as `{text}ms`, `{text}s` or `{text}m`"),
            ));
        }
        total =
            unit_in_micros(unit)?.checked_mul(count).and_then(|part| total.checked_add(part)).ok_or_else(
                || QuantityError::new(format!("`{text}` is too long to count"), "use at most 3660d"),
            )?;
        rest = &after[unit_ends..];
    }
    Ok(Micros::new(total))
}

/// Parses a rate: hits, a slash, and a duration.
///
/// # Errors
/// It is not of that form, or a rate that [`Rate`] rejects.
pub fn parse_rate(text: &str) -> Result<Rate, QuantityError> {
    let (count, period) = count_per_period(text)?;
    Ok(Rate::new(count, period)?)
}

/// The two parts of a rate; zero is allowed, because a window's limit of zero is a ban.
pub(crate) fn count_per_period(text: &str) -> Result<(u64, Micros), QuantityError> {
    check_length(text)?;
    let Some((count, period)) = text.split_once('/') else {
        return Err(QuantityError::new(format!("`{text}` is not a rate"), RATE_HINT));
    };
    let period = parse_duration(period)?;
    match parse_count(count.trim()) {
        Err(error) => Err(in_whole_hits(count.trim(), period).map_or(error, |rate| {
            QuantityError::new(format!("`{count}` is not a whole number of hits"), format!("write {rate}"))
        })),
        Ok(count) => Ok((count, period)),
    }
}

/// The same rate in whole hits, for one such as `0.5/s`.
fn in_whole_hits(count: &str, period: Micros) -> Option<String> {
    let (whole, parts) = count.split_once('.')?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(parts) || whole.len() > 9 || parts.len() > 6 {
        return None;
    }
    let scale = 10u64.pow(u32::try_from(parts.len()).ok()?);
    let hits = whole.parse::<u64>().ok()? * scale + parts.parse::<u64>().ok()?;
    let common = gcd(hits, scale);
    let (hits, times) = (hits / common, scale / common);
    (hits > 0).then_some(())?;
    Some(format!("{hits}/{}", Micros::new(period.get().checked_mul(times)?)))
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// A whole number, perhaps with underscores between its digits: `10_000`.
pub(crate) fn parse_count(text: &str) -> Result<u64, QuantityError> {
    check_length(text)?;
    if text.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit())) {
        return Err(QuantityError::new(format!("{text} is negative"), "use zero or more"));
    }
    let grouped: Vec<&str> = text.split(',').collect();
    let is_group = |group: &&str| group.len() == 3 && group.bytes().all(|byte| byte.is_ascii_digit());
    if grouped.len() > 1 && grouped[1..].iter().all(is_group) {
        let hint = format!("write {}", grouped.concat());
        return Err(QuantityError::new(format!("`{text}` has commas"), hint));
    }
    let (count, rest) = leading_number(text)?;
    if rest.is_empty() {
        return Ok(count);
    }
    Err(QuantityError::new(format!("`{text}` is not a whole number"), "write digits alone, such as 100"))
}

/// The number at the start of `text`, and the rest.
fn leading_number(text: &str) -> Result<(u64, &str), QuantityError> {
    let ends = text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
    let (digits, rest) = text.split_at(ends);
    if !digits.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(QuantityError::new(
            format!("`{text}` is not a whole number"),
            "write digits, such as 100",
        ));
    }
    if rest.starts_with(['.', ',']) {
        let hint = "use whole numbers, in a smaller unit if need be: 1500ms rather than 1.5s";
        return Err(QuantityError::new(format!("`{text}` is not a whole number"), hint));
    }
    let digits: String = digits.chars().filter(|c| *c != '_').collect();
    let too_large = |_| QuantityError::new(format!("{digits} is too large to count"), "use a smaller number");
    Ok((digits.parse().map_err(too_large)?, rest))
}

fn unit_in_micros(unit: &str) -> Result<u64, QuantityError> {
    const SECOND: u64 = 1_000_000;
    Ok(match unit.to_ascii_lowercase().as_str() {
        "us" | "µs" => 1,
        "ms" | "millisecond" | "milliseconds" => 1_000,
        "s" | "sec" | "secs" | "second" | "seconds" => SECOND,
        "m" | "min" | "mins" | "minute" | "minutes" => 60 * SECOND,
        "h" | "hr" | "hrs" | "hour" | "hours" => 3_600 * SECOND,
        "d" | "day" | "days" => 86_400 * SECOND,
        "w" | "week" | "weeks" => 7 * 86_400 * SECOND,
        "mo" | "month" | "months" | "y" | "year" | "years" => {
            let hint = "use days, such as 30d, or a calendar: { algorithm: fixed_window, limit: 1000, window: month }";
            return Err(QuantityError::new(format!("a {unit} has no fixed length"), hint));
        }
        other => {
            let problem = format!("`{other}` is not a unit of time");
            return Err(QuantityError::new(
                problem,
                "units are us, ms, s, m, h, d, w and their full names; a fixed_window also takes day, week, month and year",
            ));
        }
    })
}

fn check_length(text: &str) -> Result<(), QuantityError> {
    if text.len() > LONGEST_TEXT {
        let problem = format!("{} characters are too many for a number or duration", text.len());
        return Err(QuantityError::new(problem, DURATION_HINT));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(text: &str) -> u64 {
        parse_duration(text).unwrap().get()
    }

    #[test]
    fn every_way_to_write_a_unit_means_the_same() {
        for (texts, expected) in [
            (&["1us", "1µs"][..], 1),
            (&["200ms", "200 milliseconds"], 200_000),
            (&["1s", "1sec", "1 second", "second", "s"], 1_000_000),
            (&["5m", "5min", "5 minutes"], 300_000_000),
            (&["1h", "1hr", "hour", "60m", "0h60m"], 3_600_000_000),
            (&["7d", "1w", "week", "7 days", "168h"], 604_800_000_000),
            (&["1h30m", "1h 30m", "90m"], 5_400_000_000),
        ] {
            for text in texts {
                assert_eq!(micros(text), expected, "{text}");
            }
        }
    }

    #[test]
    fn what_is_no_duration_says_why() {
        for (text, problem) in [
            ("", "there is no duration"),
            ("10", "`10` has no unit"),
            ("-1s", "`-1s` is negative"),
            ("1.5s", "`1.5s` is not a whole number"),
            ("1 fortnight", "`fortnight` is not a unit of time"),
            ("1month", "a month has no fixed length"),
            ("99999999999999999999s", "99999999999999999999 is too large to count"),
            ("18446744073709551615d", "`18446744073709551615d` is too long to count"),
        ] {
            assert_eq!(parse_duration(text).unwrap_err().problem, problem, "{text}");
        }
    }

    #[test]
    fn a_rate_is_hits_per_duration() {
        for (text, count, period) in [
            ("10/s", 10, 1_000_000),
            ("100/minute", 100, 60_000_000),
            ("5/10s", 5, 10_000_000),
            ("1_000 / day", 1_000, 86_400_000_000),
        ] {
            let rate = parse_rate(text).unwrap();
            assert_eq!((rate.count(), rate.period().get()), (count, period), "{text}");
        }
    }

    #[test]
    fn what_is_no_rate_says_why() {
        for (text, problem) in [
            ("100", "`100` is not a rate"),
            ("0/s", "a rate of zero admits nothing, ever"),
            ("-5/s", "-5 is negative"),
            ("many/s", "`many` is not a whole number"),
            ("10/0s", "the period is zero"),
        ] {
            assert_eq!(parse_rate(text).unwrap_err().problem, problem, "{text}");
        }
    }
}
