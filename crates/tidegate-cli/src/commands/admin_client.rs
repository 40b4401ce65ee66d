//! A client of the admin API: the token, the address, one request at a time.
//!
//! A token comes from the environment or from the file that `tidegate login` wrote, never from an argument: every user of
//! the machine can see arguments.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::{Method, StatusCode, header};
use serde_json::{Value, json};

use crate::args::AdminArgs;
use crate::endpoint::{AskLimits, Endpoint};
use crate::failure::Failure;
use crate::settings::env;

/// The largest reply: a set of documents may be large.
const LONGEST_REPLY: usize = 64 << 20;
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct AdminClient {
    endpoint: Endpoint,
    ca: Option<PathBuf>,
    token: Option<String>,
}

/// A successful reply.
pub(crate) struct Reply {
    pub(crate) body: Value,
    pub(crate) etag: Option<String>,
}

impl AdminClient {
    pub(crate) fn new(args: &AdminArgs) -> Result<Self, Failure> {
        AdminClient::at(args.admin.parse()?, args.ca.clone())
    }

    pub(crate) fn at(endpoint: Endpoint, ca: Option<PathBuf>) -> Result<Self, Failure> {
        let token = given_token()?.or_else(|| saved_token(&endpoint));
        Ok(AdminClient { endpoint, ca, token })
    }

    /// Whether there is a token.
    pub(crate) fn has_token(&self) -> bool {
        self.token.is_some()
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
        let token = self.token.as_ref().ok_or_else(|| Failure::new("you are not signed in").hint(SIGN_IN))?;
        let mut request = self.endpoint.request(method, &format!("/admin/v1{path}"));
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        if let Some(on) = on {
            request = request.header(header::IF_MATCH, on);
        }
        let answer = self.endpoint.ask(request, body, &limits(self.ca.as_deref()))?;
        let etag =
            answer.headers().get(header::ETAG).and_then(|value| value.to_str().ok()).map(str::to_owned);
        if answer.status() == StatusCode::UNAUTHORIZED {
            let why = format!("{} does not accept this token: it is wrong, or has ended", self.endpoint);
            return Err(Failure::new(why).hint(SIGN_IN));
        }
        let body = read(&self.endpoint, answer.status(), answer.body())?;
        Ok(Reply { body, etag })
    }
}

/// How a token is had. The server's own hint is for programs, which send one as a header.
const SIGN_IN: &str = "run `tidegate login --keep` where the server runs, `tidegate login -` with a link, or set TIDEGATE_TOKEN";

pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

fn limits(ca: Option<&Path>) -> AskLimits<'_> {
    AskLimits {
        ca,
        within: PATIENCE,
        most_bytes: LONGEST_REPLY,
        if_slow: "the server or its database may be busy: try again",
        if_absent: "start a server with `tidegate serve`, or name its admin listener with --admin",
    }
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

/// Exchanges a sign-in link for a token of this machine, and stores it where only this user can read it. The link is used only
/// once everything else is known to work.
pub(crate) fn log_in(link: &str, ca: Option<&Path>) -> Result<String, Failure> {
    let (server, code) = link.split_once("/#/login?code=").ok_or_else(|| {
        Failure::new("this is no sign-in link")
            .hint("`tidegate login` makes one: http://127.0.0.1:8082/#/login?code=tg_…")
    })?;
    let endpoint: Endpoint = server.parse()?;
    let file = TokenFile::open()?;
    let wanted = json!({ "code": code, "name": format!("cli on {}", machine()) });
    let request = endpoint.request(&Method::POST, "/admin/v1/session/token");
    let answer = endpoint.ask(request, &wanted, &limits(ca))?;
    let made = read(&endpoint, answer.status(), answer.body())?;
    let told = |member: &str| made[member].as_str().unwrap_or_default();
    file.save(&endpoint, told("token"))?;
    Ok(format!("signed in at {endpoint} as {}, until {}", told("role"), told("expires_at")))
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

/// The next file of tokens, which takes the place of the last one.
struct TokenFile {
    path: PathBuf,
    next: fs::File,
}

impl TokenFile {
    fn open() -> Result<Self, Failure> {
        let path =
            token_file().ok_or_else(|| Failure::new("there is no home directory to keep the token in"))?;
        fs::create_dir_all(path.parent().expect("it is in a directory")).map_err(cannot_write(&path))?;
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let next = options.open(path.with_extension("new")).map_err(cannot_write(&path))?;
        Ok(TokenFile { path, next })
    }

    fn save(mut self, endpoint: &Endpoint, token: &str) -> Result<(), Failure> {
        let own = format!("{endpoint} ");
        let before = fs::read_to_string(&self.path).unwrap_or_default();
        let others: String =
            before.lines().filter(|line| !line.starts_with(&own)).map(|line| format!("{line}\n")).collect();
        let written = writeln!(self.next, "{others}{own}{token}");
        let moved = written.and_then(|()| fs::rename(self.path.with_extension("new"), &self.path));
        moved.map_err(cannot_write(&self.path))
    }
}

fn cannot_write(path: &Path) -> impl FnOnce(io::Error) -> Failure {
    move |error| Failure::new(format!("cannot write {}: {error}", path.display()))
}
