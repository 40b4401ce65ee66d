//! The cookie of a session.
//!
//! Browsers keep cookies by host name alone, so all servers at 127.0.0.1 would share one: its name has the port that the
//! browser sees, which may be a tunnel's. `HttpOnly` and `SameSite`: scripts cannot read it, and other sites cannot send it.

use axum::http::header::{COOKIE, HOST};
use axum::http::{HeaderMap, HeaderValue};

/// How the client reached this listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    Http,
    Https,
}

/// The session's secret in the cookies of a request.
pub(crate) fn read(headers: &HeaderMap) -> Option<&str> {
    let own = name(headers);
    let cookies = headers.get_all(COOKIE).iter().filter_map(|cookies| cookies.to_str().ok());
    let mut pairs =
        cookies.flat_map(|cookies| cookies.split(';')).filter_map(|cookie| cookie.trim().split_once('='));
    pairs.find(|(name, _)| *name == own).map(|(_, value)| value)
}

/// A header that sets the cookie, in answer to a request with these headers.
pub(crate) fn set(headers: &HeaderMap, scheme: Scheme, secret: &str, seconds: u64) -> HeaderValue {
    let secure = if scheme == Scheme::Https { "; Secure" } else { "" };
    let name = name(headers);
    let cookie = format!("{name}={secret}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}");
    HeaderValue::from_str(&cookie).expect("a name of ours and hexadecimal digits make a header")
}

fn name(headers: &HeaderMap) -> String {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    match host.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok()) {
        Some(port) => format!("tidegate_session_{port}"),
        None => "tidegate_session".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: &'static str, cookies: &str) -> HeaderMap {
        let cookies = HeaderValue::from_str(cookies).unwrap();
        HeaderMap::from_iter([(HOST, HeaderValue::from_static(host)), (COOKIE, cookies)])
    }

    #[test]
    fn servers_on_other_ports_of_a_host_have_other_cookies() {
        let both = "tidegate_session_8082=one; tidegate_session_9082=two; tidegate_session=three";
        for (host, session) in [
            ("127.0.0.1:8082", "one"),
            ("[::1]:9082", "two"),
            ("limits.example.com", "three"),
            ("[2001:db8::8082]", "three"),
        ] {
            assert_eq!(read(&at(host, both)), Some(session), "{host}");
        }
        assert_eq!(read(&at("127.0.0.1:7082", both)), None);
    }

    #[test]
    fn what_is_set_is_read_again() {
        let set = set(&at("127.0.0.1:8082", ""), Scheme::Http, "tg_1", 60);
        let pair = set.to_str().unwrap().split(';').next().unwrap();
        assert_eq!(read(&at("127.0.0.1:8082", pair)), Some("tg_1"));
    }

    #[test]
    fn a_cookie_that_was_set_over_tls_never_leaves_without() {
        let set = |scheme| set(&HeaderMap::new(), scheme, "tg_1", 60).to_str().unwrap().to_owned();
        assert!(set(Scheme::Https).ends_with("; Secure"), "{}", set(Scheme::Https));
        assert!(!set(Scheme::Http).contains("Secure"), "a browser would not send it");
    }
}
