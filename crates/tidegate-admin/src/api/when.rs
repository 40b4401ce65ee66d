//! Times as the API writes them: RFC 3339, in UTC.

use tidegate_rules::{Timestamp, parse_duration};

use super::problem::{Answer, Problem};

pub(crate) fn text(at: Timestamp) -> String {
    let micros = i64::try_from(at.as_micros()).unwrap_or(i64::MAX);
    jiff::Timestamp::from_microsecond(micros).unwrap_or(jiff::Timestamp::MAX).to_string()
}

/// Parses a time of a request.
pub(crate) fn parse(text: &str, field: &str) -> Answer<Timestamp> {
    let moment: Result<jiff::Timestamp, _> = text.parse();
    let moment = moment.map_err(|_| {
        Problem::field(field, "this is not a time").hint("write date, time and zone: 2027-01-01T00:00:00Z")
    })?;
    Ok(Timestamp::from_micros(u64::try_from(moment.as_microsecond()).unwrap_or(0)))
}

/// Parses a duration of a request, such as `15m`.
pub(crate) fn span_us(text: &str, field: &str) -> Answer<u64> {
    let span = parse_duration(text)
        .map_err(|error| Problem::field(field, error.to_string()).hint("such as 15m, 1h or 30d"))?;
    Ok(span.get())
}

/// A time, or a duration from now. One too late to be stored is refused: it would end earlier than requested.
pub(crate) fn moment_or_ahead(text: &str, now: Timestamp, field: &str) -> Answer<Timestamp> {
    let moment = match parse_duration(text) {
        Ok(ahead) => Timestamp::from_micros(now.as_micros().saturating_add(ahead.get())),
        Err(_) => parse(text, field)?,
    };
    if moment >= Timestamp::MAX {
        let last = self::text(Timestamp::MAX);
        return Err(Problem::field(field, format!("it is too late: {last} is the latest that can be kept")));
    }
    Ok(moment)
}

/// A time, or a duration back from now.
pub(crate) fn moment_or_back(text: &str, now: Timestamp, field: &str) -> Answer<Timestamp> {
    match parse_duration(text) {
        Ok(back) => Ok(Timestamp::from_micros(now.as_micros().saturating_sub(back.get()))),
        Err(_) => parse(text, field).map_err(|problem| {
            problem.hint("write date, time and zone, such as 2027-01-01T00:00:00Z, or how far back: 15m")
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_that_is_too_late_to_be_kept_is_refused_and_the_latest_is_named() {
        let now = Timestamp::from_micros(1_800_000_000_000_000);
        let refused = moment_or_ahead("2999-01-01T00:00:00Z", now, "until").unwrap_err();
        assert!(format!("{refused:?}").contains("2255-06-05"), "{refused:?}");
        assert!(moment_or_ahead("2254-01-01T00:00:00Z", now, "until").is_ok());
        assert_eq!(
            moment_or_ahead("1s", now, "until").ok(),
            Some(Timestamp::from_micros(1_800_000_001_000_000))
        );
    }
}
