//! Tokens: which are accepted, and their claims.

use std::io::Write;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use tidegate_core::Micros;
use tidegate_http::identity::{Identity, keep_jwks_fresh};
use tidegate_limiter::{Runtime, Task};

use super::tokens;
use super::{get, identity, some};

fn with_secret(more: &str) -> Identity {
    identity(&format!("jwt: {{ secret: {}{more} }}", tokens::SECRET))
}

/// Identity with the key set in a file.
fn with_jwks(more: &str) -> Identity {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(tokens::JWKS.as_bytes()).unwrap();
    identity(&format!("jwt: {{ jwks: '{}'{more} }}", file.path().display()))
}

fn user(identity: &Identity, token: &str) -> Option<String> {
    get("/").bearing(token).vouched(identity, "user")
}

#[test]
fn a_token_that_holds_says_who_its_bearer_is() {
    assert_eq!(user(&with_secret(""), tokens::HS256), some("alice"));
    assert_eq!(user(&with_jwks(""), tokens::RS256), some("alice"));
    assert_eq!(user(&with_jwks(""), tokens::ES256), some("alice"));
    let ask = get("/").bearing(tokens::RS256);
    assert_eq!(ask.read(&with_jwks(""), "client"), some("user=alice"));
}

#[test]
fn claims_become_attributes_by_name_or_path() {
    let identity = with_secret(", claims: { tenant: org.id, plan: plan, whole: org, absent: x.y }");
    let ask = get("/").bearing(tokens::HS256);
    assert_eq!(ask.read(&identity, "tenant"), some("7"));
    assert_eq!(ask.read(&identity, "plan"), some("pro"));
    assert_eq!(ask.read(&identity, "whole"), None);
    assert_eq!(ask.read(&identity, "absent"), None);
    assert_eq!(ask.read(&identity, "client"), some("tenant=7"));
    assert_eq!(ask.read(&with_secret(", claims: [plan, sub]"), "sub"), some("alice"));
}

#[test]
fn a_token_holds_from_its_beginning_to_its_end_give_or_take_the_leeway() {
    let strict = with_secret(", leeway: 0s");
    let lenient = with_secret("");
    let user =
        |identity: &Identity, second| get("/").bearing(tokens::HS256).at(second).vouched(identity, "user");
    for (second, in_strict, in_lenient) in [
        (999_999_990, false, false),
        (999_999_999, false, true),
        (1_000_000_000, true, true),
        (1_999_999_999, true, true),
        (2_000_000_000, false, true),
        (2_000_000_005, false, false),
    ] {
        assert_eq!(user(&strict, second).is_some(), in_strict, "{second}");
        assert_eq!(user(&lenient, second).is_some(), in_lenient, "{second}");
    }
}

#[test]
fn a_token_may_never_end_but_its_end_must_be_a_number() {
    assert_eq!(user(&with_secret(""), tokens::HS256_WITHOUT_EXPIRY), some("robot"));
    assert_eq!(user(&with_secret(""), tokens::HS256_EXPIRY_AS_TEXT), None);
}

#[test]
fn a_public_key_is_never_taken_for_a_secret() {
    assert_eq!(user(&with_jwks(""), tokens::HS256_WITH_THE_PUBLIC_KEY), None);
    assert_eq!(user(&with_jwks(""), tokens::HS256_WITH_THE_SET_S_SECRET), None);
}

#[test]
fn a_token_without_a_signature_is_never_believed() {
    for identity in [with_secret(""), with_jwks("")] {
        assert_eq!(user(&identity, tokens::NONE), None);
        assert_eq!(user(&identity, tokens::NONE_IN_CAPITALS), None);
    }
}

#[test]
fn only_keys_for_signatures_verify_and_only_the_one_that_is_named() {
    let identity = with_jwks("");
    assert_eq!(user(&identity, tokens::RS256_AS_ENC_KEY), None);
    assert_eq!(user(&identity, tokens::RS256_UNKNOWN_KID), None);
    assert_eq!(user(&identity, tokens::RS256_WITHOUT_KID), None);
    assert_eq!(user(&identity, tokens::RS256_CRITICAL), None);
}

#[test]
fn a_token_that_names_no_key_means_the_only_one() {
    assert_eq!(user(&with_jwks(", algorithms: [RS256]"), tokens::RS256_WITHOUT_KID), some("alice"));
    assert_eq!(user(&with_jwks(", algorithms: [ES256]"), tokens::RS256_WITHOUT_KID), None);
}

#[test]
fn issuer_and_audience_must_be_the_ones_asked_for() {
    for (more, believed) in [
        (", issuer: 'https://issuer.example', audience: web", true),
        (", issuer: 'https://other.example'", false),
        (", audience: we", false),
    ] {
        assert_eq!(user(&with_secret(more), tokens::HS256).is_some(), believed, "{more}");
    }
    assert_eq!(user(&with_secret(", audience: web"), tokens::HS256_WITHOUT_EXPIRY), None);
}

#[test]
fn a_token_is_read_from_the_header_that_was_chosen() {
    let identity = with_secret(", header: x-token");
    assert_eq!(user(&identity, tokens::HS256), None);
    assert_eq!(get("/").with("x-token", tokens::HS256).read(&identity, "user"), some("alice"));
}

#[test]
fn a_secret_may_be_in_a_file() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "{}", tokens::SECRET).unwrap();
    let identity = identity(&format!("jwt: {{ secret_file: '{}' }}", file.path().display()));
    assert_eq!(user(&identity, tokens::HS256), some("alice"));
}

#[test]
fn published_keys_are_used_once_they_are_there_and_survive_a_bad_fetch() {
    let identity = identity("jwt: { jwks: 'https://issuer.example/keys' }");
    assert_eq!(user(&identity, tokens::RS256), None);
    assert!(identity.wants_jwks());
    assert_eq!(identity.set_jwks(tokens::JWKS.as_bytes()).unwrap(), 2);
    assert!(!identity.wants_jwks());
    assert!(identity.set_jwks(b"<html>").is_err());
    assert!(identity.set_jwks(br#"{"keys":[]}"#).is_err());
    assert_eq!(user(&identity, tokens::RS256), some("alice"));
}

#[test]
fn a_key_of_an_unknown_kind_does_not_hide_those_beside_it() {
    let identity = identity("jwt: { jwks: 'https://issuer.example/keys' }");
    let strange =
        r#"{"keys": [{"kty":"EC","crv":"secp256k1","x":"a","y":"b"}, {"kty":"AKP","alg":"ML-DSA-44"}, 7, "#;
    let document = tokens::JWKS.replacen(
        r#"{
  "keys": ["#,
        strange,
        1,
    );
    assert!(document.contains("secp256k1"));
    assert_eq!(identity.set_jwks(document.as_bytes()).unwrap(), 2);
    assert_eq!(user(&identity, tokens::ES256), some("alice"));
}

/// A clock that advances only by sleeping, up to an end.
#[derive(Default)]
struct Slept(AtomicUsize);

impl Runtime for Slept {
    fn spawn(&self, _: Task) {}

    fn sleep(&self, span: Micros) -> Task {
        let before = self.0.fetch_add(span.get() as usize, Ordering::SeqCst);
        if before >= 1_000_000_000 {
            Box::pin(std::future::pending())
        } else {
            Box::pin(std::future::ready(()))
        }
    }
}

/// The seconds, within 1000, at which keys are fetched if bearers of unknown keys keep coming after the first fetch.
fn fetches(attacked: bool) -> Vec<usize> {
    let identity = Arc::new(identity("jwt: { jwks: 'https://issuer.example/keys' }"));
    let world = Arc::new(Slept::default());
    let fetched = Mutex::new(Vec::new());
    let work = keep_jwks_fresh(
        identity.clone(),
        world.clone(),
        |url| {
            assert_eq!(url, "https://issuer.example/keys");
            fetched.lock().unwrap().push(world.0.load(Ordering::SeqCst) / 1_000_000);
            std::future::ready(Ok(tokens::JWKS.as_bytes().to_vec()))
        },
        |told| {
            assert_eq!(told, Ok(2));
            if attacked {
                assert_eq!(user(&identity, tokens::RS256_UNKNOWN_KID), None);
            }
        },
    );
    let mut work = std::pin::pin!(work);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(work.as_mut().poll(&mut context).is_pending());
    fetched.lock().unwrap().clone()
}

#[test]
fn published_keys_are_fetched_every_five_minutes() {
    assert_eq!(fetches(false), [0, 300, 600, 900]);
}

#[test]
fn unknown_keys_bring_a_fetch_forward_but_never_more_than_one_in_ten_seconds() {
    assert_eq!(fetches(true), (0..=1000).step_by(10).collect::<Vec<_>>());
}
