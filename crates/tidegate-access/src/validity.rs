//! Reads when a certificate expires: the one X.509 field that an operator must be warned of.
//!
//! It walks to `validity` and reads nothing else. For anything that it does not understand, the expiry is unknown.

/// The expiry of a DER certificate, in seconds since 1970.
pub(crate) fn not_after(certificate: &[u8]) -> Option<u64> {
    let (_, certificate, _) = element(certificate)?;
    let (_, mut fields, _) = element(certificate)?;
    // The version is optional; then follow serial number, algorithm and issuer.
    if fields.first() == Some(&CONTEXT_0) {
        fields = element(fields)?.2;
    }
    for _ in 0..3 {
        fields = element(fields)?.2;
    }
    let (_, validity, _) = element(fields)?;
    let (_, _, after_begin) = element(validity)?;
    let (kind, end, _) = element(after_begin)?;
    time(kind, end)
}

const CONTEXT_0: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// The first element: its tag, its content, and the rest.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

/// `YYMMDDhhmmssZ` or `YYYYMMDDhhmmssZ`.
fn time(kind: u8, text: &[u8]) -> Option<u64> {
    let digits = text.strip_suffix(b"Z")?;
    let pair = |at: usize| -> Option<u64> {
        let two = digits.get(at..at + 2)?;
        two.iter().all(u8::is_ascii_digit).then(|| u64::from(two[0] - b'0') * 10 + u64::from(two[1] - b'0'))
    };
    let (year, at) = match kind {
        UTC_TIME => (pair(0).map(|year| if year < 50 { 2000 + year } else { 1900 + year })?, 2),
        GENERALIZED_TIME => (pair(0)? * 100 + pair(2)?, 4),
        _ => return None,
    };
    let (month, day) = (pair(at)?, pair(at + 2)?);
    let (hour, minute, second) = (pair(at + 4)?, pair(at + 6)?, pair(at + 8)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || year < 1970 {
        return None;
    }
    Some(((days(year, month) + day - 1) * 24 + hour) * 3600 + minute * 60 + second)
}

/// Days from 1970 to the first of a month.
fn days(year: u64, month: u64) -> u64 {
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let of_years: u64 = (1970..year).map(|year| 365 + u64::from(is_leap(year))).sum();
    let of_months = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    of_years + (1..month).zip(of_months).map(|(_, days)| days).sum::<u64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_time_are_read() {
        assert_eq!(time(UTC_TIME, b"700101000000Z"), Some(0));
        assert_eq!(time(UTC_TIME, b"260716012345Z"), Some(1_784_165_025));
        assert_eq!(time(GENERALIZED_TIME, b"20500301000000Z"), Some(2_529_705_600));
        for bad in [&b"2607160123Z"[..], b"26071601234aZ", b"261316012345Z", b"260716012345", b""] {
            assert_eq!(time(UTC_TIME, bad), None);
        }
    }

    #[test]
    fn nonsense_has_no_end() {
        for bad in
            [&b""[..], b"\x30", b"\x30\x80\x00\x00", b"\x30\x85\x01\x01\x01\x01\x01", b"\x30\x02\x30\x00"]
        {
            assert_eq!(not_after(bad), None);
        }
    }
}
