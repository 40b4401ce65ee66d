//! Access logs in JSON: Envoy's, by the field names of its documentation and of Istio, and Caddy's.

use std::borrow::Cow;

use tidegate_core::{Micros, Timestamp};

use super::json::{self, Raw, Walk};
use super::time::{AnyTime, NO_TIME, any, fraction, whole};
use super::{BadLine, Recorded, Value, address, path};

/// An access log's fields of a request.
#[derive(Default)]
struct Access<'a> {
    at: Option<Timestamp>,
    ip: Option<Value<'a>>,
    method: Option<Value<'a>>,
    target: Option<Value<'a>>,
    host: Option<Value<'a>>,
    user: Option<Value<'a>>,
    status: Option<u64>,
    took: Option<Micros>,
}

impl<'a> Access<'a> {
    fn tell(self, recorded: &mut Recorded<'a>) -> Result<(), BadLine> {
        recorded.at = self.at.ok_or(NO_TIME)?;
        let (Some(method), Some(target)) = (self.method, self.target) else {
            return Err(BadLine("it has no method and path"));
        };
        let ip = self.ip.map(|ip| match ip {
            Cow::Borrowed(text) => address(text).unwrap_or(ip),
            Cow::Owned(text) => Cow::Owned(address(&text).map(Cow::into_owned).unwrap_or(text)),
        });
        let mut put = |name: &'static str, value: Option<Value<'a>>| {
            if let Some(value) = value.filter(given) {
                recorded.attributes.push((Cow::Borrowed(name), value));
            }
        };
        put("ip", ip);
        put("user", self.user);
        put("method", Some(method));
        put("path", Some(path(target)));
        put("host", self.host.map(host));
        recorded.refused = self.status.map(|status| status == 429);
        recorded.took = self.took;
        Ok(())
    }
}

/// As the server normalises hosts: lower case, no port.
fn host(value: Value<'_>) -> Value<'_> {
    let end = match value.first() {
        Some(b'[') => value.len(),
        _ => memchr::memchr(b':', &value).unwrap_or(value.len()),
    };
    if end == value.len() && !value.iter().any(u8::is_ascii_uppercase) {
        return value;
    }
    Cow::Owned(value[..end].to_ascii_lowercase())
}

/// Parses Envoy's lines.
#[derive(Debug, Default)]
pub(super) struct Envoy {
    times: AnyTime,
}

impl Envoy {
    pub(super) fn read<'a>(&mut self, line: &'a [u8], recorded: &mut Recorded<'a>) -> Result<(), BadLine> {
        let (mut access, mut forwarded) = (Access::default(), None);
        json::fields(line, |name, walk| {
            match name {
                b"start_time" | b"time" | b"timestamp" => {
                    access.at = walk.value()?.scalar().and_then(|text| self.times.read(&text)).or(access.at)
                }
                b"method" | b"request_method" | b":method" => access.method = walk.text()?,
                // Rules saw the path as the client requested it.
                b"x_envoy_original_path" => {
                    access.target = walk.text()?.filter(given).or(access.target.take())
                }
                b"path" | b"request_path" | b":path" => {
                    let path = walk.text()?.filter(given);
                    access.target = access.target.take().or(path);
                }
                b"authority" | b"host" | b":authority" => access.host = walk.text()?,
                b"response_code" | b"status" => access.status = integer(walk.value()?),
                b"duration" => access.took = integer(walk.value()?).map(Micros::from_millis),
                b"downstream_remote_address" | b"client_ip" => access.ip = walk.text()?,
                b"x_forwarded_for" => forwarded = walk.text()?,
                _ => walk.ignore()?,
            }
            Ok(())
        })?;
        // Envoy itself appended the last address: that of its peer.
        let last =
            |list: Value<'_>| list.rsplit(|byte| *byte == b',').next().map(|ip| ip.trim_ascii().to_vec());
        if !access.ip.as_ref().is_some_and(given)
            && let Some(ip) = forwarded.and_then(last)
        {
            access.ip = Some(Cow::Owned(ip));
        }
        access.tell(recorded)
    }
}

/// Parses a line of Caddy.
pub(super) fn read_caddy<'a>(line: &'a [u8], recorded: &mut Recorded<'a>) -> Result<(), BadLine> {
    let mut access = Access::default();
    let mut has_request = false;
    json::fields(line, |name, walk| {
        match name {
            b"ts" => access.at = walk.value()?.scalar().and_then(|text| any(&text)),
            b"status" => access.status = integer(walk.value()?),
            b"duration" => access.took = walk.value()?.scalar().and_then(|text| seconds(&text)),
            b"user_id" => access.user = walk.text()?,
            b"request" if walk.is_object() => {
                has_request = true;
                walk.fields(|name, walk| access.caddy_request(name, walk))?;
            }
            _ => walk.ignore()?,
        }
        Ok(())
    })?;
    if !has_request {
        return Err(BadLine("it has no request"));
    }
    // Caddy writes the line, and its time, when the request is done.
    if let (Some(at), Some(took)) = (access.at, access.took) {
        access.at = Some(at.back(took));
    }
    access.tell(recorded)
}

impl<'a> Access<'a> {
    fn caddy_request(&mut self, name: &[u8], walk: &mut Walk<'a>) -> Result<(), BadLine> {
        match name {
            b"client_ip" => self.ip = walk.text()?,
            b"remote_ip" => {
                let peer = walk.text()?;
                self.ip = self.ip.take().or(peer);
            }
            b"method" => self.method = walk.text()?,
            b"uri" => self.target = walk.text()?,
            b"host" => self.host = walk.text()?,
            _ => walk.ignore()?,
        }
        Ok(())
    }
}

/// Whether a value is present: `-` stands for none.
fn given(value: &Value<'_>) -> bool {
    !matches!(&**value, b"" | b"-")
}

/// A whole number, also if written as a string.
fn integer(value: Raw<'_>) -> Option<u64> {
    whole(&value.scalar()?)
}

/// `0.000929675`, perhaps `9.29e-4`.
fn seconds(text: &[u8]) -> Option<Micros> {
    match text.iter().position(|byte| *byte == b'.') {
        Some(point) if text[point + 1..].iter().all(u8::is_ascii_digit) => {
            let whole = whole(&text[..point])?;
            Some(Micros::new(whole.checked_mul(1_000_000)?.checked_add(fraction(&text[point + 1..])?)?))
        }
        _ => {
            let seconds: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
            // Far more than any request takes, and small enough not to overflow a time.
            (0.0..1e9).contains(&seconds).then(|| Micros::new((seconds * 1e6) as u64))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<'a>(
        format: fn(&'a [u8], &mut Recorded<'a>) -> Result<(), BadLine>,
        line: &'a [u8],
    ) -> Result<Recorded<'a>, BadLine> {
        let mut recorded = Recorded::default();
        format(line, &mut recorded).map(|()| recorded)
    }

    fn envoy<'a>(line: &'a [u8], recorded: &mut Recorded<'a>) -> Result<(), BadLine> {
        Envoy::default().read(line, recorded)
    }

    fn caddy<'a>(line: &'a [u8], recorded: &mut Recorded<'a>) -> Result<(), BadLine> {
        read_caddy(line, recorded)
    }

    #[track_caller]
    fn check(recorded: &Recorded<'_>, at: u64, expected: &[(&str, &str)]) {
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        let read: Vec<(String, String)> =
            recorded.attributes.iter().map(|(name, value)| (name.to_string(), text(value))).collect();
        let read: Vec<(&str, &str)> = read.iter().map(|(name, value)| (&**name, &**value)).collect();
        assert_eq!((recorded.at.as_micros(), &read[..]), (at, expected));
    }

    #[test]
    fn a_line_of_caddys_is_read_and_dated_back_to_its_beginning() {
        let line = br#"{"level":"info","ts":1800057600.75,"logger":"http.log.access","msg":"handled request","request":{"remote_ip":"10.0.0.1","remote_port":"41342","client_ip":"203.0.113.7","proto":"HTTP/2.0","method":"GET","host":"Example.com:8443","uri":"/a?b","headers":{"User-Agent":["curl"]}},"user_id":"","duration":0.5,"status":429}"#;
        let recorded = read(caddy, line).unwrap();
        check(
            &recorded,
            1_800_057_600_250_000,
            &[("ip", "203.0.113.7"), ("method", "GET"), ("path", "/a"), ("host", "example.com")],
        );
        assert_eq!((recorded.refused, recorded.took), (Some(true), Some(Micros::from_millis(500))));
    }

    #[test]
    fn a_line_of_envoys_is_read() {
        let line = br#"{"start_time":"2027-01-16T00:00:00.250Z","method":"POST","path":"/v1/items","response_code":200,"duration":12,"authority":"api.example.com","downstream_remote_address":"203.0.113.7:5566","x_forwarded_for":null,"user_agent":"curl"}"#;
        let recorded = read(envoy, line).unwrap();
        let at = 1_800_057_600_250_000;
        check(
            &recorded,
            at,
            &[("ip", "203.0.113.7"), ("method", "POST"), ("path", "/v1/items"), ("host", "api.example.com")],
        );
        assert_eq!((recorded.refused, recorded.took), (Some(false), Some(Micros::from_millis(12))));
        let behind = br#"{"start_time":"2027-01-16T00:00:00.250Z","method":"GET","path":"/x","x_envoy_original_path":"/y","x_forwarded_for":"1.1.1.1, 2.2.2.2"}"#;
        check(&read(envoy, behind).unwrap(), at, &[("ip", "2.2.2.2"), ("method", "GET"), ("path", "/y")]);
    }

    #[test]
    fn lines_that_lack_something_say_what() {
        assert_eq!(read(envoy, b"{}").unwrap_err(), NO_TIME);
        assert_eq!(read(caddy, br#"{"ts":1.0}"#).unwrap_err().0, "it has no request");
        assert_eq!(
            read(envoy, br#"{"start_time":"2027-01-16T00:00:00Z"}"#).unwrap_err().0,
            "it has no method and path"
        );
    }
}
