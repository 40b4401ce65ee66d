//! Makes connections: TCP or TLS, login, and a first answer, all within one timeout.
//!
//! It does not keep connections; `link` does. A server that accepts but never answers is not connected.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::time::Duration;

use redis::aio::{MultiplexedConnection, PubSub};
use redis::{AsyncConnectionConfig, Cmd, RedisConnectionInfo, Value};
use tidegate_store::BoxError;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::config::{ConfigError, RedisConfig};
use crate::tls::Tls;
use crate::url::{Credentials, Endpoint, StoreUrl, Transport};

/// The most commands queued for writing; beyond that, callers wait.
const WAITING_COMMANDS: usize = 1_024;

/// How connections are made.
pub(crate) struct Dialer {
    tls: Option<Tls>,
    login: RedisConnectionInfo,
    timeout: Duration,
    /// How often any core has connected to a server.
    reached: watch::Sender<u64>,
}

/// A connection, and the future that must run for it to answer.
pub(crate) struct Dialed {
    pub(crate) connection: MultiplexedConnection,
    pub(crate) driver: ConnectionDriver,
}

pub(crate) type ConnectionDriver = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The check that a server must pass to count as connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Greeting {
    /// It answers.
    Answer,
    /// It is a master.
    Master,
}

impl Dialer {
    pub(crate) fn new(url: &StoreUrl, config: &RedisConfig) -> Result<Self, ConfigError> {
        let tls = match url.transport {
            Transport::Plain => None,
            Transport::Tls => Some(Tls::new(&config.tls)?),
        };
        let login = login(&url.credentials).set_db(i64::from(url.database));
        Ok(Dialer { tls, login, timeout: config.connect_timeout, reached: watch::Sender::new(0) })
    }

    /// The same for sentinels, with their own credentials and no database.
    pub(crate) fn for_sentinels(&self, credentials: &Credentials) -> Self {
        Dialer {
            tls: self.tls.clone(),
            login: login(credentials),
            timeout: self.timeout,
            reached: watch::Sender::new(0),
        }
    }

    pub(crate) fn times_reached(&self) -> u64 {
        *self.reached.borrow()
    }

    /// Changes whenever a connection is made.
    pub(crate) fn reached(&self) -> watch::Receiver<u64> {
        self.reached.subscribe()
    }

    pub(crate) async fn dial(&self, endpoint: &Endpoint, greeting: Greeting) -> Result<Dialed, BoxError> {
        let dialed = async {
            let mut dialed = match &self.tls {
                None => self.multiplex(tcp(endpoint).await?).await?,
                Some(tls) => self.multiplex(tls.wrap(endpoint, tcp(endpoint).await?).await?).await?,
            };
            tokio::select! {
                greeted = greet(&mut dialed.connection, greeting) => greeted.map(|()| dialed),
                () = &mut dialed.driver => Err("the server hung up".into()),
            }
        };
        let dialed = tokio::time::timeout(self.timeout, dialed)
            .await
            .unwrap_or_else(|_| Err(format!("no connection within {:?}", self.timeout).into()));
        if dialed.is_ok() {
            self.reached.send_modify(|times| *times += 1);
        }
        dialed
    }

    /// A pub/sub connection, subscribed to `channel`.
    pub(crate) async fn listen(&self, endpoint: &Endpoint, channel: &str) -> Result<PubSub, BoxError> {
        let listening = async {
            let mut pubsub = match &self.tls {
                None => PubSub::new(&self.login, tcp(endpoint).await?).await?,
                Some(tls) => {
                    PubSub::new(&self.login, tls.wrap(endpoint, tcp(endpoint).await?).await?).await?
                }
            };
            pubsub.subscribe(channel).await?;
            Ok(pubsub)
        };
        tokio::time::timeout(self.timeout, listening)
            .await
            .unwrap_or_else(|_| Err(format!("no connection within {:?}", self.timeout).into()))
    }

    async fn multiplex<S>(&self, stream: S) -> Result<Dialed, BoxError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        // The caller sets the timeout, because it knows what a timeout means.
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            .set_connection_timeout(None)
            .set_pipeline_buffer_size(WAITING_COMMANDS);
        let (connection, driver) =
            MultiplexedConnection::new_with_config(&self.login, stream, config).await?;
        Ok(Dialed { connection, driver: Box::pin(driver) })
    }
}

fn login(credentials: &Credentials) -> RedisConnectionInfo {
    let mut login = RedisConnectionInfo::default().set_skip_set_lib_name();
    if let Some(user) = &credentials.user {
        login = login.set_username(user);
    }
    if let Some(password) = &credentials.password {
        login = login.set_password(password);
    }
    login
}

async fn greet(connection: &mut MultiplexedConnection, greeting: Greeting) -> Result<(), BoxError> {
    let command = match greeting {
        Greeting::Answer => "PING",
        Greeting::Master => "ROLE",
    };
    let mut words = Cmd::new();
    words.arg(command);
    let answer = connection.send_packed_command(&words).await?.extract_error()?;
    match (greeting, answer) {
        (Greeting::Answer, _) => Ok(()),
        (Greeting::Master, Value::Array(role))
            if role.first() == Some(&Value::BulkString(b"master".to_vec())) =>
        {
            Ok(())
        }
        (Greeting::Master, _) => Err("the server is not a master".into()),
    }
}

async fn tcp(endpoint: &Endpoint) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((endpoint.host.as_str(), endpoint.port)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

impl std::fmt::Debug for Dialer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dialer").field("tls", &self.tls.is_some()).finish_non_exhaustive()
    }
}
