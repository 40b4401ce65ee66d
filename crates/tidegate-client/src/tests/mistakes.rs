//! Settings that are wrong and servers that are not what they should be: a clear error, in time.

use std::net::TcpListener;
use std::time::Duration;

use tempfile::TempDir;
use tidegate_testkit::{Certificates, in_three_tries};
use tokio::runtime::Runtime;
use tokio::time::Instant;

use super::{Wants, World};
use crate::{Client, Error, OnFailure, Source};

const RULES: &str = "
domain: api
rules: [{ name: all, limits: [100/minute] }]
";
/// Long enough for a busy machine.
const PATIENT: Duration = Duration::from_secs(20);

#[tokio::test]
async fn mistakes_are_answered_with_what_is_wrong_and_a_way_out() {
    let world = World::new(RULES);
    let domain = Client::to(world.url()).domain("ape").connect().await.err().unwrap().to_string();
    assert!(domain.contains("422") && domain.contains("known domains: api"), "{domain}");
    for (url, says) in [
        ("127.0.0.1:8080", "http://HOST:PORT"),
        ("ftp://127.0.0.1", "neither http:// nor https://"),
        ("http://", "not a URL"),
    ] {
        let error = Client::to(url).start().err().unwrap().to_string();
        assert!(error.contains(says), "{url}: {error}");
    }
    let token = Client::to(world.url()).token("a\nb").start().err().unwrap().to_string();
    assert!(token.starts_with("token:"), "{token}");
    let pem = Client::to("https://127.0.0.1:1").authorities("nothing").start().err().unwrap().to_string();
    assert!(pem.starts_with("authorities: there is no certificate"), "{pem}");
    // A server that does not speak TLS has no certificate that would do.
    let tls = Client::to(world.url().replace("http:", "https:")).timeout(PATIENT);
    let tls = tls.connect().await.err().unwrap().to_string();
    assert!(tls.contains("TLS: "), "{tls}");
}

#[tokio::test]
async fn a_token_that_is_refused_is_named_with_a_way_out() {
    let wants = Wants { token: Some("a-token-of-the-tests-0001"), tls: None };
    let world = World::that(RULES, &wants);
    let to = || Client::to(world.url()).domain("api").timeout(PATIENT);
    assert!(to().token("a-token-of-the-tests-0001").connect().await.is_ok());
    for client in [to(), to().token("another-token-of-the-tests")] {
        let error = client.clone().connect().await.err().unwrap();
        assert!(matches!(error, Error::Refused { status: 401, .. }), "{error}");
        assert!(error.to_string().contains("under `access`"), "{error}");
        // Not hidden by a policy: nobody could tell that nothing is limited.
        let open = client.on_failure(OnFailure::Open).start().unwrap();
        let error = open.check(&[("user", "42")]).await.unwrap_err();
        assert!(matches!(error, Error::Refused { status: 401, .. }), "{error}");
    }
}

#[tokio::test]
async fn a_certificate_of_another_is_an_error() {
    let (folder, another) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let certificates = Certificates::for_loopback(folder.path());
    let another = Certificates::for_loopback(another.path());
    let trusted = std::fs::read(&certificates.ca).unwrap();
    let not_trusted = std::fs::read(&another.ca).unwrap();
    let world = World::that(RULES, &Wants { token: None, tls: Some(certificates) });
    let to = || Client::to(world.url().replace("http:", "https:")).domain("api").timeout(PATIENT);
    let client = to().authorities(trusted).connect().await.unwrap();
    assert_eq!(client.check(&[]).await.unwrap().source, Source::Server);
    let error = to().authorities(not_trusted).connect().await.err().unwrap();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains("TLS: ") && error.to_string().contains("certificate"), "{error}");
}

#[test]
fn a_server_that_never_answers_is_an_error_within_the_time_out() {
    const TIME_OUT: Duration = Duration::from_millis(500);
    // Connections wait in its queue for ever.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let runtime = Runtime::new().unwrap();
    for scheme in ["http", "https"] {
        let url = format!("{scheme}://{}", silent.local_addr().unwrap());
        in_three_tries(|| {
            let begun = Instant::now();
            let connected = runtime.block_on(Client::to(&url).timeout(TIME_OUT).retries(2).connect());
            let took = begun.elapsed();
            let error = connected.err().unwrap().to_string();
            assert!(error.contains("no answer within 500ms"), "{error}");
            if took < TIME_OUT * 3 / 2 { Ok(()) } else { Err(format!("{scheme}: {took:?}")) }
        });
    }
    let decision = runtime.block_on(async {
        let url = format!("http://{}", silent.local_addr().unwrap());
        let client = Client::to(url).timeout(TIME_OUT).on_failure(OnFailure::Open).start().unwrap();
        client.check(&[("user", "42")]).await.unwrap()
    });
    assert_eq!((decision.allowed, decision.source), (true, Source::Policy));
}
