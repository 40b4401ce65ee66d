//! Whose key signs, as AWS's own tools find it: the environment, the shared file, the container's endpoint, the instance's (IMDSv2).
//!
//! A key is asked for again every few minutes, and before it ends, while calls go on with the one that is known. (Profiles that assume a
//! role, single sign-on and web identity tokens are not read.)

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::Full;
use parking_lot::Mutex;
use serde_json::Value;
use tidegate_core::{Micros, Timestamp};
use tidegate_store::{Clock, SystemClock};
use tidegate_store_items::{Deadline, Failure};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::config::Login;
use crate::http_client::HttpClient;
use crate::sign::stamp;
use crate::url::Server;

/// How long a key is used before it is looked for again: it may have been replaced.
const KNOWN_FOR: Duration = Duration::from_secs(240);
/// A key that ends within this is looked for again.
const RENEWED_BEFORE: Micros = Micros::from_secs(300);
/// After a look that found none, none is made for so long.
const PAUSE: Duration = Duration::from_secs(1);
/// The time that an endpoint has.
const ASKED_FOR: Duration = Duration::from_secs(2);

/// A key to sign with.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) id: String,
    pub(crate) secret: String,
    pub(crate) token: Option<String>,
    /// When it ends, as signatures have it.
    ends: Option<String>,
    /// Where it comes from.
    source: &'static str,
}

/// The key of this process.
pub(crate) struct Credentials {
    login: Login,
    state: Arc<Mutex<State>>,
    news: Arc<Notify>,
    clock: SystemClock,
}

#[derive(Default)]
struct State {
    key: Option<Arc<Key>>,
    looked: Option<Instant>,
    is_looking: bool,
    /// Why the last look found none.
    failed: Option<String>,
}

impl Credentials {
    pub(crate) fn new(login: Login) -> Self {
        Credentials { login, state: Arc::default(), news: Arc::default(), clock: SystemClock::new() }
    }

    /// Where the key comes from.
    pub(crate) fn source(&self) -> &'static str {
        match &self.login {
            Login::Key { .. } => "the configuration",
            Login::Found => self.state.lock().key.as_ref().map_or("nowhere", |key| key.source),
        }
    }

    /// The key, which is looked for if none is known.
    pub(crate) async fn key(&self, deadline: Deadline) -> Result<Arc<Key>, Failure> {
        if let Login::Key { id, secret } = &self.login {
            let (id, secret) = (id.clone(), secret.clone());
            return Ok(Arc::new(Key { id, secret, token: None, ends: None, source: "the configuration" }));
        }
        loop {
            // Before the first look, so that no news is missed.
            let news = self.news.notified();
            if let Some(known) = self.known()? {
                return Ok(known);
            }
            if timeout_at(deadline.at, news).await.is_err() {
                return Err(Failure::TooLate(deadline.span));
            }
        }
    }

    /// The key, if one is known. Begins to look where that is due.
    fn known(&self) -> Result<Option<Arc<Key>>, Failure> {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let ends_by = |key: &Key, at: Timestamp| key.ends.as_ref().is_some_and(|ends| *ends <= stamp(at));
        let known = state.key.clone().filter(|key| !ends_by(key, now));
        let is_stale = known.as_ref().is_none_or(|key| ends_by(key, now + RENEWED_BEFORE))
            || state.looked.is_none_or(|at| at.elapsed() >= KNOWN_FOR);
        let may_look = state.looked.is_none_or(|at| at.elapsed() >= PAUSE);
        if is_stale && may_look && !state.is_looking {
            state.is_looking = true;
            let looking = Looking { state: Arc::clone(&self.state), news: Arc::clone(&self.news) };
            tokio::spawn(async move { looking.look().await });
        }
        match (&known, &state.failed) {
            (None, Some(why)) if !state.is_looking => {
                Err(Failure::NotApplied("not_allowed", why.clone().into()))
            }
            _ => Ok(known),
        }
    }
}

/// A look for a key; whoever waits hears of its end, also where its runtime ends first.
struct Looking {
    state: Arc<Mutex<State>>,
    news: Arc<Notify>,
}

impl Looking {
    async fn look(self) {
        let found = find(&|name| std::env::var(name).ok().filter(|value| !value.is_empty())).await;
        let mut state = self.state.lock();
        state.looked = Some(Instant::now());
        match found {
            Ok(key) => (state.key, state.failed) = (Some(Arc::new(key)), None),
            Err(why) => state.failed = Some(why),
        }
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        self.state.lock().is_looking = false;
        self.news.notify_waiters();
    }
}

type Environment<'a> = &'a (dyn Fn(&str) -> Option<String> + Send + Sync);

/// The first key there is; or what was tried.
async fn find(environment: Environment<'_>) -> Result<Key, String> {
    if let (Some(id), Some(secret)) = (environment("AWS_ACCESS_KEY_ID"), environment("AWS_SECRET_ACCESS_KEY"))
    {
        let token = environment("AWS_SESSION_TOKEN");
        return Ok(Key { id, secret, token, ends: None, source: "the environment" });
    }
    if let Some(key) = in_file(environment) {
        return Ok(key);
    }
    let in_container = of_container(environment).await?;
    if let Some(key) = in_container {
        return Ok(key);
    }
    let said = if environment("AWS_EC2_METADATA_DISABLED").is_some_and(|value| value == "true") {
        "the instance's endpoint is switched off".to_owned()
    } else {
        match of_instance(environment).await {
            Ok(key) => return Ok(key),
            Err(why) => why,
        }
    };
    Err(format!(
        "no AWS credentials: not in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, not in the shared file (~/.aws/credentials), no \
         container names an endpoint, and {said}"
    ))
}

/// The key of a profile in the shared file.
fn in_file(environment: Environment<'_>) -> Option<Key> {
    let usual = || Some(format!("{}/.aws/credentials", environment("HOME")?));
    let path = environment("AWS_SHARED_CREDENTIALS_FILE").or_else(usual)?;
    let text = std::fs::read_to_string(path).ok()?;
    let profile = environment("AWS_PROFILE").unwrap_or_else(|| "default".to_owned());
    let mut lines = text.lines().map(str::trim);
    lines.find(|line| *line == format!("[{profile}]"))?;
    let own: Vec<(&str, &str)> = lines
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (name.trim(), value.trim()))
        .collect();
    let value =
        |wanted: &str| own.iter().find(|(name, _)| *name == wanted).map(|(_, value)| (*value).to_owned());
    Some(Key {
        id: value("aws_access_key_id")?,
        secret: value("aws_secret_access_key")?,
        token: value("aws_session_token"),
        ends: None,
        source: "the shared file",
    })
}

/// The key that the container's endpoint gives; none if no endpoint is named.
async fn of_container(environment: Environment<'_>) -> Result<Option<Key>, String> {
    let address = match environment("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") {
        Some(path) => format!("http://169.254.170.2{path}"),
        None => match environment("AWS_CONTAINER_CREDENTIALS_FULL_URI") {
            Some(address) => address,
            None => return Ok(None),
        },
    };
    let named = |why: String| format!("the container's endpoint gives no key: {why}");
    let place = Place::read(&address).map_err(named)?;
    if !place.may_hear_secrets() {
        return Err(named(format!("`{address}` would send a key in the clear")));
    }
    let token = match environment("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE") {
        Some(path) => {
            Some(std::fs::read_to_string(&path).map_err(|error| named(format!("{path}: {error}")))?)
        }
        None => environment("AWS_CONTAINER_AUTHORIZATION_TOKEN"),
    };
    let headers: Vec<(&str, &str)> =
        token.as_deref().map(|token| ("authorization", token.trim())).into_iter().collect();
    let told = place.ask(Method::GET, &place.path, &headers).await.map_err(named)?;
    key_in(&told, "the container's endpoint").map(Some).map_err(named)
}

/// The key of the role of this instance.
async fn of_instance(environment: Environment<'_>) -> Result<Key, String> {
    const ROLES: &str = "/latest/meta-data/iam/security-credentials/";
    let named = |why: String| format!("the instance's endpoint gives none: {why}");
    let address = environment("AWS_EC2_METADATA_SERVICE_ENDPOINT")
        .unwrap_or_else(|| "http://169.254.169.254".to_owned());
    let place = Place::read(&address).map_err(named)?;
    let lives = [("x-aws-ec2-metadata-token-ttl-seconds", "21600")];
    let session = place.ask(Method::PUT, "/latest/api/token", &lives).await.map_err(named)?;
    let session = [("x-aws-ec2-metadata-token", session.trim())];
    let roles = place.ask(Method::GET, ROLES, &session).await.map_err(named)?;
    let role = roles.lines().next().unwrap_or_default().trim();
    let told = place.ask(Method::GET, &format!("{ROLES}{role}"), &session).await.map_err(named)?;
    key_in(&told, "the instance's endpoint").map_err(named)
}

/// The key in an answer of either endpoint.
fn key_in(told: &str, source: &'static str) -> Result<Key, String> {
    let told: Value = serde_json::from_str(told).map_err(|_| "it does not answer JSON".to_owned())?;
    let text = |name: &str| told[name].as_str().map(str::to_owned);
    let missing = |name: &str| format!("its answer has no {name}");
    // As in signatures: `2026-11-19T12:00:00Z` is `20261119T120000Z`.
    let ends = text("Expiration").map(|text| text.replace(['-', ':'], ""));
    Ok(Key {
        id: text("AccessKeyId").ok_or_else(|| missing("AccessKeyId"))?,
        secret: text("SecretAccessKey").ok_or_else(|| missing("SecretAccessKey"))?,
        token: text("Token"),
        ends,
        source,
    })
}

/// An endpoint that gives keys.
struct Place {
    server: Server,
    path: String,
}

impl Place {
    fn read(address: &str) -> Result<Self, String> {
        let start = address.find("://").map_or(0, |at| at + 3);
        let path = address[start..].find('/').map_or(address.len(), |at| start + at);
        let server = address[..path].parse().map_err(|error: crate::UrlError| error.problem)?;
        Ok(Place {
            server,
            path: if address[path..].is_empty() { "/".to_owned() } else { address[path..].to_owned() },
        })
    }

    /// Whether a key from there crosses no network unencrypted: this machine, or the addresses that AWS gives to containers.
    fn may_hear_secrets(&self) -> bool {
        let of_aws = ["169.254.170.2", "169.254.170.23", "fd00:ec2::23"];
        self.server.is_encrypted
            || of_aws.contains(&self.server.host.as_str())
            || self.server.host == "localhost"
            || self.server.host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }

    async fn ask(&self, method: Method, path: &str, headers: &[(&str, &str)]) -> Result<String, String> {
        let client = Arc::new(HttpClient::new(self.server.clone(), ASKED_FOR, 1));
        let request = Request::builder().method(method).uri(path).header("host", self.server.authority());
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let request = request.header("content-length", "0").body(Full::new(Bytes::new()));
        let request = request.map_err(|error| error.to_string())?;
        let answer = client.call(request, Deadline::from_now(ASKED_FOR, Duration::ZERO)).await;
        let answer = answer.map_err(|failure| match failure {
            Failure::NotApplied(_, why) | Failure::Lost(why) => why.to_string(),
            _ => format!("no answer within {ASKED_FOR:?}"),
        })?;
        if !answer.status.is_success() {
            return Err(format!("it answers {}", answer.status));
        }
        String::from_utf8(answer.body.to_vec()).map_err(|_| "it does not answer text".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    fn environment(values: &[(&str, &str)]) -> impl Fn(&str) -> Option<String> + Send + Sync + use<> {
        let values: HashMap<String, String> =
            values.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        move |name| values.get(name).cloned()
    }

    /// An endpoint that gives these answers to these beginnings of requests, which must have what stands after them.
    fn endpoint(answers: &'static [(&str, &str, &str)]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for (begins, has, answer) in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let (mut asked, mut part) = (Vec::new(), [0; 1024]);
                while !asked.ends_with(b"\r\n\r\n") {
                    let read = stream.read(&mut part).unwrap();
                    asked.extend(&part[..read]);
                }
                let asked = String::from_utf8(asked).unwrap();
                let fits = asked.starts_with(begins) && asked.contains(has);
                let (status, answer) = if fits { ("200 OK", *answer) } else { ("400 Bad Request", "") };
                write!(
                    stream,
                    "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{answer}",
                    answer.len()
                )
                .unwrap();
            }
        });
        address
    }

    const KEY: &str = r#"{ "AccessKeyId": "I", "SecretAccessKey": "S", "Token": "T", "Expiration": "2026-11-19T12:00:00Z" }"#;

    #[tokio::test]
    async fn the_environment_comes_first_then_the_profile_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("credentials");
        let text = "[default]\naws_access_key_id = A\naws_secret_access_key = B\n\n[other]\naws_access_key_id=C\naws_secret_access_key=D\n\
                    aws_session_token=E\n";
        std::fs::write(&path, text).unwrap();
        let path = path.to_str().unwrap();
        let file = ("AWS_SHARED_CREDENTIALS_FILE", path);
        let found = find(&environment(&[file])).await.unwrap();
        assert_eq!(
            (&*found.id, &*found.secret, found.token, found.source),
            ("A", "B", None, "the shared file")
        );
        let found = find(&environment(&[file, ("AWS_PROFILE", "other")])).await.unwrap();
        assert_eq!((&*found.id, &*found.secret, found.token.as_deref()), ("C", "D", Some("E")));
        let own = [file, ("AWS_ACCESS_KEY_ID", "F"), ("AWS_SECRET_ACCESS_KEY", "G")];
        assert_eq!(find(&environment(&own)).await.unwrap().id, "F");
    }

    #[tokio::test]
    async fn a_container_asks_its_endpoint_with_its_token() {
        let address = endpoint(&[("GET /keys ", "authorization: secret\r\n", KEY)]) + "/keys";
        let own = [
            ("AWS_CONTAINER_CREDENTIALS_FULL_URI", &*address),
            ("AWS_CONTAINER_AUTHORIZATION_TOKEN", "secret"),
        ];
        let found = find(&environment(&own)).await.unwrap();
        assert_eq!(
            (&*found.id, found.token.as_deref(), found.ends.as_deref()),
            ("I", Some("T"), Some("20261119T120000Z"))
        );
    }

    #[tokio::test]
    async fn a_container_sends_no_key_over_a_network_in_the_clear() {
        let own = [("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://keys.example/keys")];
        let why = find(&environment(&own)).await.err().unwrap();
        assert!(why.contains("would send a key in the clear"), "{why}");
    }

    #[tokio::test]
    async fn an_instance_is_asked_with_a_session() {
        let address = endpoint(&[
            ("PUT /latest/api/token ", "x-aws-ec2-metadata-token-ttl-seconds: 21600\r\n", "session"),
            (
                "GET /latest/meta-data/iam/security-credentials/ ",
                "x-aws-ec2-metadata-token: session\r\n",
                "role\n",
            ),
            (
                "GET /latest/meta-data/iam/security-credentials/role ",
                "x-aws-ec2-metadata-token: session\r\n",
                KEY,
            ),
        ]);
        let found = find(&environment(&[("AWS_EC2_METADATA_SERVICE_ENDPOINT", &address)])).await.unwrap();
        assert_eq!((&*found.id, &*found.secret, found.source), ("I", "S", "the instance's endpoint"));
    }

    #[tokio::test]
    async fn without_any_the_line_says_where_it_looked() {
        let why = find(&environment(&[("AWS_EC2_METADATA_DISABLED", "true")])).await.err().unwrap();
        assert!(why.starts_with("no AWS credentials: not in AWS_ACCESS_KEY_ID"), "{why}");
    }
}
