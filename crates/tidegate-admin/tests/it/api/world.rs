//! A node with its control plane, assembled as in the binary.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tidegate_access::{SecretDigest, TokenSource};
use tidegate_admin::{
    Admin, Alone, ConfiguredToken, ControlConfig, ControlPlane, DecisionLog, DecisionLogConfig, EventCounts,
    RuleSource,
};
use tidegate_limiter::{CheckRequest, Decision, DescriptorAsk, Limiter, LimiterConfig};
use tidegate_metrics::{Metrics, Registry, StoreUsage};
use tidegate_rules::{Format, RuleSet, Source, Timestamp};
use tidegate_rulestore::{
    Actor, Document, DocumentSet, Grant, NewToken, Origin, Publication, Role, RuleStore, TokenKind,
};
use tidegate_store::{Clock as _, MemoryConfig, MemoryStore, SystemClock};
use tidegate_testkit::OpenApi;
use tidegate_testkit::http::{self, Response};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

pub(crate) const RULES: &str = "\
# Limits of the API.
domain: api
rules:
  # Each user.
  - name: per-user
    key: [user]
    limits: [3/minute]

  - { name: everybody, limits: [1000/s] }
";

/// The token from the configuration.
pub(crate) const CONFIGURED: &str = "a-token-of-the-configuration";

pub(crate) struct Node {
    pub(crate) address: SocketAddr,
    api: OpenApi,
    pub(crate) limiter: Arc<Limiter>,
    pub(crate) store: RuleStore,
    tokens: Arc<TokenSource>,
    longest_turn: Arc<AtomicU64>,
    runtime: Runtime,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    dir: TempDir,
}

impl Node {
    /// A node with an embedded database that holds [`RULES`] as version 1.
    pub(crate) fn start() -> Node {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", dir.path().join("rules.db").display());
        Node::on(&url, RuleSource::Database, dir)
    }

    /// A node that has these rules from files.
    pub(crate) fn with_files() -> Node {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", dir.path().join("rules.db").display());
        Node::on(&url, RuleSource::Files(vec!["rules.yaml".to_owned()]), dir)
    }

    /// A node that keeps every decision, in clear.
    pub(crate) fn keeping_decisions() -> Node {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", dir.path().join("rules.db").display());
        let clear = tidegate_admin::Clear::All;
        let config = DecisionLogConfig { admissions_one_in: Some(1), clear, ..DecisionLogConfig::default() };
        let log = DecisionLog::open(config, Arc::new(SystemClock::new())).unwrap();
        Node::start_with(&url, RuleSource::Database, dir, Some(Arc::new(log)))
    }

    pub(crate) fn on(url: &str, source: RuleSource, dir: TempDir) -> Node {
        Node::start_with(url, source, dir, None)
    }

    fn start_with(url: &str, source: RuleSource, dir: TempDir, log: Option<Arc<DecisionLog>>) -> Node {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let store = runtime.block_on(async { RuleStore::open(&url.parse().unwrap()).unwrap() });
        let files = source != RuleSource::Database;
        runtime.block_on(async {
            // An unavailable database comes later.
            if store.migrate().await.is_ok() && !files && store.head().await.unwrap().version == 0 {
                first_version(&store).await;
            }
        });
        let metrics = Arc::new(Metrics::new());
        if let Some(log) = &log {
            metrics.pass_decisions_to(log.clone());
        }
        let rules = match files {
            true => RuleSet::compile(&[Source::new("rules.yaml", RULES)], Format::Native).unwrap(),
            false => RuleSet::default(),
        };
        let cells = Arc::new(MemoryStore::new(MemoryConfig::new().max_cells(100_000).max_log_bytes(1 << 20)));
        let limiter = Arc::new(Limiter::new(LimiterConfig::new(rules, cells, metrics.clone())));
        std::fs::write(dir.path().join("tokens"), "").unwrap();
        let tokens = Arc::new(TokenSource::load(Vec::new(), Some(dir.path().join("tokens"))).unwrap());
        let own_tokens = tokens.clone();
        let event_counts = Arc::<EventCounts>::default();
        let config = |store| ControlConfig {
            limiter: limiter.clone(),
            metrics: metrics.clone(),
            decisions: log,
            event_counts: event_counts.clone(),
            store: Some(store),
            source,
            fleet: Arc::new(Alone::default()),
            clock: Arc::new(SystemClock::new()),
            tokens: vec![ConfiguredToken {
                name: "configured".into(),
                role: Role::Admin,
                digest: SecretDigest::of(CONFIGURED.as_bytes()),
            }],
            admin_tokens: Some(own_tokens),
            environment: "test".into(),
            node: "node-1".into(),
            layout: "1".into(),
            region: Some("here".into()),
            usage: Arc::new(StoreUsage::default),
            apart: Arc::new(Vec::new),
            busy: Arc::new(|| 0.0),
            store_kind: "memory",
            store_cost: Arc::new(|_| None),
        };
        let admin = Admin::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = admin.address();
        let (stop, stopped) = oneshot::channel();
        let (ready, is_ready) = std::sync::mpsc::channel();
        // As in the binary: one thread for the whole control plane.
        let control_thread = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let own_store = control_thread.block_on(async { RuleStore::open(&url.parse().unwrap()).unwrap() });
        let control = ControlPlane::new(config(own_store));
        if files {
            control.rules().take_files(vec![(Source::new("rules.yaml", RULES), Format::Native)]).unwrap();
        }
        let registry = Registry::new(metrics).with(move || event_counts.clone());
        let longest_turn = Arc::new(AtomicU64::new(0));
        let turns = longest_turn.clone();
        let thread = std::thread::spawn(move || {
            control_thread.block_on(async {
                tokio::spawn(watch_turns(turns));
                control.start().await;
                ready.send(()).unwrap();
                let maintaining = tokio::spawn(control.clone().maintain());
                let stopped = async { drop(stopped.await) };
                admin.serve_with(registry, control, stopped).await.unwrap();
                maintaining.abort();
            });
        });
        is_ready.recv().unwrap();
        Node {
            address,
            api: OpenApi::new(http::get(address, "/admin/v1/openapi.json").json()),
            limiter,
            store,
            tokens,
            longest_turn,
            runtime,
            stop: Some(stop),
            thread: Some(thread),
            dir,
        }
    }

    /// Replaces the tokens of `tokens_file`.
    pub(crate) fn configure(&self, tokens: &[&str]) {
        std::fs::write(self.dir.path().join("tokens"), tokens.join("\n")).unwrap();
        self.tokens.reload().unwrap();
    }

    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// A token of this role; one that ended a second ago, if it is to be expired.
    pub(crate) fn token(&self, role: Role, expired: bool) -> String {
        let now = SystemClock::new().now();
        let expires = expired.then(|| Timestamp::from_micros(now.as_micros() - 1_000_000));
        self.secret(TokenKind::Token, role, expires)
    }

    pub(crate) fn secret(&self, kind: TokenKind, role: Role, expires: Option<Timestamp>) -> String {
        let (now, by) = (SystemClock::new().now(), Actor { name: "test".into(), role: Role::Admin });
        let (name, long) = (role.name().to_owned(), Duration::from_secs(86_400));
        let from = Grant { origin: Origin::Operator, session: None, name, role, until: expires };
        let made = self.block_on(async {
            match kind {
                TokenKind::Token => {
                    let token = NewToken { name: role.name().into(), role, expires };
                    self.store.create_token(&token, &by, now).await.map(Some)
                }
                TokenKind::Session => self.store.open_session(&from, "127.0.0.1", long, now).await,
                TokenKind::LogIn => self.store.make_link(&from, long, now).await,
            }
        });
        made.unwrap().unwrap().1.reveal().to_owned()
    }

    /// Asks as the configured admin.
    #[track_caller]
    pub(crate) fn ask(&self, method: &str, path: &str, body: &Value) -> Response {
        self.ask_as(CONFIGURED, method, path, &[], body)
    }

    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> Value {
        let answer = self.ask("GET", path, &Value::Null);
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()
    }

    #[track_caller]
    pub(crate) fn ask_as(
        &self,
        token: &str,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> Response {
        let bearer = format!("Bearer {token}");
        let own = [("authorization", &*bearer), ("content-type", "application/json")];
        let headers: Vec<(&str, &str)> = own.into_iter().chain(headers.iter().copied()).collect();
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let target = format!("/admin/v1{path}");
        let answer = http::request(self.address, method, &target, &headers, body.as_bytes()).unwrap();
        // Every answer of every test is one that the document describes.
        self.api.expect_describes(method, &target, &answer);
        answer
    }

    /// Publishes one document as `api`, made on `on`.
    #[track_caller]
    pub(crate) fn publish(&self, on: u64, text: &str) -> Response {
        let body = json!({ "documents": [{ "domain": "api", "text": text }], "reason": "a test" });
        self.ask_as(CONFIGURED, "PUT", "/rules", &[("if-match", &format!("\"{on}\""))], &body)
    }

    /// The most CPU time that the control plane's thread used between two looks at its timers, since the last call.
    pub(crate) fn longest_turn(&self) -> Duration {
        Duration::from_nanos(self.longest_turn.swap(0, Ordering::Relaxed))
    }

    /// Decides one request of a user.
    pub(crate) fn check(&self, user: &str) -> Decision {
        let entries = [("user", user.as_bytes())];
        let descriptors = [DescriptorAsk::one(&entries)];
        let request = CheckRequest::new("api", &descriptors);
        self.block_on(self.limiter.check(&request)).unwrap()
    }

    /// How many of these requests of a user pass.
    pub(crate) fn passing(&self, user: &str, requests: usize) -> usize {
        (0..requests).filter(|_| self.check(user).allowed).count()
    }
}

/// CPU time, so that a busy machine does not count.
async fn watch_turns(longest: Arc<AtomicU64>) {
    let used = || {
        let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        schedstat.split_whitespace().next().unwrap().parse::<u64>().unwrap()
    };
    let mut before = used();
    loop {
        tokio::time::sleep(Duration::from_millis(2)).await;
        let now = used();
        longest.fetch_max(now - before, Ordering::Relaxed);
        before = now;
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn first_version(store: &RuleStore) {
    let documents = DocumentSet::new([Document { domain: "api".into(), text: RULES.into() }]);
    let by = Actor { name: "system".into(), role: Role::Admin };
    let publication = Publication {
        on: 0,
        documents: &documents,
        by: &by,
        at: SystemClock::new().now(),
        reason: "the first",
        action: "publish",
    };
    // Another node may have been first.
    let _ = store.publish(&publication).await;
}
