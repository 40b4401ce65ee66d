//! Signatures as AWS wants them (Signature Version 4), of requests without a query.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use tidegate_core::Timestamp;

const ALGORITHM: &str = "AWS4-HMAC-SHA256";

/// Where and when a signature holds.
pub(crate) struct Scope<'a> {
    pub(crate) region: &'a str,
    pub(crate) service: &'a str,
    /// As `20150830T123600Z`.
    pub(crate) at: &'a str,
}

impl Scope<'_> {
    fn name(&self) -> String {
        format!("{}/{}/{}/aws4_request", &self.at[..8], self.region, self.service)
    }

    fn key(&self, secret: &str) -> [u8; 32] {
        let day = keyed(format!("AWS4{secret}").as_bytes(), &self.at[..8]);
        [self.region, self.service, "aws4_request"].iter().fold(day, |key, part| keyed(&key, part))
    }

    /// The `Authorization` of a request to `/`, whose headers have lower-case names in ascending order.
    pub(crate) fn authorization(
        &self,
        (id, secret): (&str, &str),
        method: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> String {
        let names: Vec<&str> = headers.iter().map(|(name, _)| *name).collect();
        let names = names.join(";");
        let lines: String = headers.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
        let request = format!("{method}\n/\n\n{lines}\n{names}\n{}", hex::encode(Sha256::digest(body)));
        let scope = self.name();
        let text = format!("{ALGORITHM}\n{}\n{scope}\n{}", self.at, hex::encode(Sha256::digest(&request)));
        let signature = hex::encode(keyed(&self.key(secret), &text));
        format!("{ALGORITHM} Credential={id}/{scope}, SignedHeaders={names}, Signature={signature}")
    }
}

fn keyed(key: &[u8], text: &str) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key of any length is fine");
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().into()
}

/// A time as signatures have it.
pub(crate) fn stamp(now: Timestamp) -> String {
    let seconds = now.as_micros() / 1_000_000;
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

/// The date so many days after 1970 began, in years that begin with March and so end with the leap day.
fn date(days: u64) -> (u64, u64, u64) {
    let since = days + 719_468;
    let (era, day) = (since / 146_097, since % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month < 3), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";

    fn suite<'a>() -> Scope<'a> {
        Scope { region: "us-east-1", service: "service", at: "20150830T123600Z" }
    }

    fn signature(method: &str) -> String {
        let headers = [("host", "example.amazonaws.com"), ("x-amz-date", "20150830T123600Z")];
        let all = suite().authorization(("AKIDEXAMPLE", SECRET), method, &headers, b"");
        all.rsplit_once('=').unwrap().1.to_owned()
    }

    /// The cases `get-vanilla` and `post-vanilla` of AWS's published suite.
    #[test]
    fn requests_are_signed_as_in_the_published_suite() {
        assert_eq!(signature("GET"), "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31");
        assert_eq!(signature("POST"), "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b");
    }

    /// The example of AWS's documentation.
    #[test]
    fn a_key_is_derived_as_in_the_documentation() {
        let scope = Scope { region: "us-east-1", service: "iam", at: "20120215T000000Z" };
        let expected = "f4780e2d9f65fa895f9c67b32ce1baf0b0d8a43505a000a1a9e090d414db404d";
        assert_eq!(hex::encode(scope.key(SECRET)), expected);
    }

    #[test]
    fn times_are_written_as_signatures_have_them() {
        for (seconds, text) in [
            (0, "19700101T000000Z"),
            (951_782_399, "20000228T235959Z"),
            (951_782_400, "20000229T000000Z"),
            (1_440_938_160, "20150830T123600Z"),
            (4_107_542_399, "21000228T235959Z"),
            (4_107_542_400, "21000301T000000Z"),
        ] {
            assert_eq!(stamp(Timestamp::from_micros(seconds * 1_000_000)), text);
        }
    }
}
