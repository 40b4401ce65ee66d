//! A client of the admin API: the token, the address, one request at a time.
//!
//! A token comes from the environment or from the file that `tidegate login` wrote, never from an argument: every user of
//! the machine can see arguments.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::args::AdminArgs;
use crate::endpoint::Endpoint;
use crate::failure::Failure;
use crate::settings::env;

/// The largest reply: a set of documents may be large.
const LONGEST_REPLY: usize = 64 << 20;
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct AdminClient {
    endpoint: Endpoint,
    token: Option<String>,
    runtime: tokio::runtime::Runtime,
}

/// A successful reply.
pub(crate) struct Reply {
    pub(crate) body: Value,
    pub(crate) etag: Option<String>,
}

impl AdminClient {
    pub(crate) fn new(args: &AdminArgs) -> Result<Self, Failure> {
        AdminClient::at(args.admin.parse()?)
    }

    pub(crate) fn at(endpoint: Endpoint) -> Result<Self, Failure> {
        let token = given_token()?.or_else(|| saved_token(&endpoint));
        Ok(AdminClient { endpoint, token, runtime: runtime()? })
    }

    /// Whether there is a token.
    pub(crate) fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Waits.
    pub(crate) fn wait(&self, span: Duration) {
        // Timers must be created within the runtime: outside, they panic.
        self.runtime.block_on(async { tokio::time::sleep(span).await });
    }

    pub(crate) fn get(&self, path: &str) -> Result<Reply, Failure> {
        self.ask(&Method::GET, path, None, &Value::Null)
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Result<Reply, Failure> {
        self.ask(&Method::POST, path, None, body)
    }

    /// Sends a request; for a change, with the version that it was made on.
    pub(crate) fn ask(
        &self,
        method: &Method,
        path: &str,
        on: Option<&str>,
        body: &Value,
    ) -> Result<Reply, Failure> {
        let token = self.token.as_ref().ok_or_else(|| {
            Failure::new("you are not logged in").hint("run `tidegate login --keep` where the server runs, `tidegate login LINK`, or set TIDEGATE_TOKEN")
        })?;
        let mut request = Request::builder()
            .method(method)
            .uri(self.endpoint.path(&format!("/admin/v1{path}")))
            .header(header::HOST, self.endpoint.authority().as_str())
            .header(header::AUTHORIZATION, format!("Bearer {token}"))
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(on) = on {
            request = request.header(header::IF_MATCH, on);
        }
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let request = request.body(Full::from(body)).map_err(|error| Failure::new(error.to_string()))?;
        self.runtime.block_on(exchange(&self.endpoint, request)).and_then(|(status, etag, _, body)| {
            read(&self.endpoint, status, &body).map(|body| Reply { body, etag })
        })
    }
}

pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

type Exchanged = (StatusCode, Option<String>, Option<String>, Bytes);

async fn exchange(endpoint: &Endpoint, request: Request<Full<Bytes>>) -> Result<Exchanged, Failure> {
    let unreachable = |error: io::Error| {
        Failure::new(format!("cannot connect to {endpoint}: {error}"))
            .hint("start a server with `tidegate serve`, or name its admin listener with --admin")
    };
    let broken = |error: String| Failure::new(format!("no answer from {endpoint}: {error}"));
    let talk = async {
        let stream = TcpStream::connect(endpoint.resolve()?).await.map_err(unreachable)?;
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|error| broken(error.to_string()))?;
        tokio::spawn(connection);
        let response = sender.send_request(request).await.map_err(|error| broken(error.to_string()))?;
        let status = response.status();
        let text =
            |name| response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let (etag, cookie) = (text(header::ETAG), text(header::SET_COOKIE));
        let body = Limited::new(response.into_body(), LONGEST_REPLY).collect().await;
        Ok((status, etag, cookie, body.map_err(|error| broken(error.to_string()))?.to_bytes()))
    };
    tokio::time::timeout(PATIENCE, talk)
        .await
        .unwrap_or_else(|_| Err(broken(format!("not within {PATIENCE:?}"))))
}

fn read(endpoint: &Endpoint, status: StatusCode, body: &[u8]) -> Result<Value, Failure> {
    let reply: Value = serde_json::from_slice(body).unwrap_or_default();
    if status.is_success() {
        return Ok(reply);
    }
    let told = |member: &str| reply[member].as_str();
    let Some(detail) = told("detail") else {
        return Err(Failure::new(format!("{endpoint} answered {status}"))
            .hint("--admin must name tidegate's admin listener"));
    };
    let found = reply["diagnostics"].as_array().map_or(&[][..], Vec::as_slice);
    // The detail repeats the first of them.
    let mut text = if found.is_empty() { detail } else { "the rules have mistakes" }.to_owned();
    for found in found {
        let told = |member: &str| found[member].as_str().unwrap_or_default();
        let place = format!("{}:{}:{}", told("file"), found["line"], found["column"]);
        text += &format!("\n  {place}: {}", told("message"));
        if !told("hint").is_empty() {
            text += &format!("\n    hint: {}", told("hint"));
        }
    }
    for document in reply["diff"]["documents"].as_array().into_iter().flatten() {
        text += &format!("\n{}", document["unified"].as_str().unwrap_or_default());
    }
    let failure = Failure::new(text);
    Err(match told("hint") {
        Some(hint) => failure.hint(hint),
        None => failure,
    })
}

/// Exchanges a log-in link for a token of this machine, and stores it where only this user can read it.
pub(crate) fn log_in(link: &str) -> Result<String, Failure> {
    let (server, code) = link.split_once("/#/login?code=").ok_or_else(|| {
        Failure::new("this is no log-in link")
            .hint("`tidegate login` makes one: http://127.0.0.1:8082/#/login?code=tg_…")
    })?;
    let endpoint: Endpoint = server.parse()?;
    let runtime = runtime()?;
    let post = |path: &str, headers: &[(&str, &str)], body: Value| {
        let mut request = Request::post(endpoint.path(&format!("/admin/v1{path}")))
            .header(header::HOST, endpoint.authority().as_str())
            .header(header::CONTENT_TYPE, "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(Full::from(body.to_string())).map_err(|error| Failure::new(error.to_string()))
    };
    let (status, _, cookie, body) =
        runtime.block_on(exchange(&endpoint, post("/session", &[], json!({ "token": code }))?))?;
    let session = read(&endpoint, status, &body)?;
    let (cookie, csrf) =
        (cookie.unwrap_or_default(), session["csrf"].as_str().unwrap_or_default().to_owned());
    let cookie = cookie.split(';').next().unwrap_or_default().to_owned();
    let name = format!("{} on {}", session["name"].as_str().unwrap_or("cli"), machine());
    let wanted = json!({ "name": name, "role": session["role"], "expires_in": "30d" });
    let request = post("/tokens", &[("cookie", &cookie), ("x-csrf-token", &csrf)], wanted)?;
    let (status, _, _, body) = runtime.block_on(exchange(&endpoint, request))?;
    let made = read(&endpoint, status, &body)?;
    let token = made["token"].as_str().ok_or_else(|| Failure::new("the server made no token"))?;
    save_token(&endpoint, token)?;
    Ok(format!("logged in at {endpoint} as {}, for 30 days", session["role"].as_str().unwrap_or_default()))
}

/// The token in the environment, or in the file that it names.
fn given_token() -> Result<Option<String>, Failure> {
    if let Ok(token) = std::env::var(env::TOKEN) {
        return Ok(Some(token));
    }
    let Some(file) = std::env::var_os(env::TOKEN_FILE) else { return Ok(None) };
    let text = fs::read_to_string(&file).map_err(|error| {
        let (file, name) = (file.display(), env::TOKEN_FILE);
        Failure::new(format!("cannot read {file}, named by {name}: {error}"))
    })?;
    Ok(Some(text.trim().to_owned()))
}

fn machine() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname")
        .map_or("this machine".into(), |name| name.trim().to_owned())
}

/// The file of tokens: one line per server.
fn token_file() -> Option<PathBuf> {
    let home = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".config")))?;
    Some(home.join("tidegate").join("tokens"))
}

fn saved_token(endpoint: &Endpoint) -> Option<String> {
    let text = fs::read_to_string(token_file()?).ok()?;
    let own = format!("{endpoint} ");
    text.lines().find_map(|line| line.strip_prefix(&own)).map(str::to_owned)
}

fn save_token(endpoint: &Endpoint, token: &str) -> Result<(), Failure> {
    let file = token_file().ok_or_else(|| Failure::new("there is no home directory to keep the token in"))?;
    let cannot = |error: io::Error| Failure::new(format!("cannot write {}: {error}", file.display()));
    fs::create_dir_all(file.parent().expect("it is in a directory")).map_err(cannot)?;
    let own = format!("{endpoint} ");
    let before = fs::read_to_string(&file).unwrap_or_default();
    let others: String =
        before.lines().filter(|line| !line.starts_with(&own)).map(|line| format!("{line}\n")).collect();
    let new = file.with_extension("new");
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let written = options.open(&new).and_then(|mut to| writeln!(to, "{others}{own}{token}"));
    written.and_then(|()| fs::rename(&new, &file)).map_err(cannot)
}
