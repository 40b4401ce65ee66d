//! Questions to the server with its whole answers: numbers, headers for one's own answer, a lease.
//!
//! They hold no hits ahead: what a rule lends is decided by [`Client::check`] and [`Key::check`](crate::Key::check).

use std::time::Duration;

use http::HeaderMap;
use tokio::time::{Instant, sleep};

use crate::wire::{self, Attributes, BatchReply, Check, Checked, Refund};
use crate::{Client, Error, Source, random};

/// The headers of an answer that belong to the caller of the service.
const PASSED_ON: [&str; 6] = [
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "ratelimit-policy",
    "ratelimit",
    "retry-after",
];

/// One request to ask for.
///
/// ```
/// use tidegate_client::Request;
///
/// let request = Request::of(&[("user", "42")]).cost(3).id("order-17");
/// ```
#[derive(Clone, Debug)]
pub struct Request {
    attributes: Attributes,
    cost: u64,
    id: Option<String>,
}

/// What the server answered to a request, or the client's policy in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Answer {
    /// Whether the request may pass.
    pub allowed: bool,
    /// Who decided.
    pub source: Source,
    /// The rule that the numbers belong to; none if none matched.
    pub rule: Option<String>,
    /// Its limit.
    pub limit: Option<u64>,
    /// What remains of it.
    pub remaining: Option<u64>,
    /// The time until the full quota is back.
    pub reset_after: Option<Duration>,
    /// The time until the same request would pass; none if it passed, or never will.
    pub retry_after: Option<Duration>,
    /// How long to wait before going on, where a leaky bucket says so.
    pub delay: Duration,
    /// The lease, if a concurrency limit was taken: see [`Client::lease`].
    pub lease: Option<String>,
    /// When hits were spent: give it to [`Client::refund`].
    pub spent: Option<String>,
    /// Rate limit headers for your own answer. Those of a batch have none.
    pub headers: HeaderMap,
    /// Why the client's policy decided.
    pub failure: Option<String>,
}

impl Request {
    /// A request of one hit with these attributes.
    #[must_use]
    pub fn of(attributes: &[(&str, &str)]) -> Self {
        Request { attributes: wire::attributes(attributes), cost: 1, id: None }
    }

    /// What it spends; 0 looks without spending.
    #[must_use]
    pub fn cost(self, hits: u64) -> Self {
        Request { cost: hits, ..self }
    }

    /// Asked again with the same id within a minute, it gets the first answer and is charged once.
    #[must_use]
    pub fn id(self, id: impl Into<String>) -> Self {
        Request { id: Some(id.into()), ..self }
    }
}

impl Client {
    /// Asks the server to decide one request, and returns all that it answers.
    ///
    /// # Errors
    /// As [`Client::check`].
    pub async fn ask(&self, request: &Request) -> Result<Answer, Error> {
        let sent = self.as_sent(request);
        match self.inner.reply_to::<Checked>("/v1/check", wire::check(&sent), self.retries_of(&sent)).await {
            Ok((checked, headers)) => Ok(Answer::of(checked, &headers)),
            Err(error) => self.by_policy(request, error),
        }
    }

    /// Asks for several requests in one message, at most a hundred. Each is decided on its own.
    ///
    /// # Errors
    /// As [`Client::check`]; one request that the server cannot read refuses all, and nothing is spent.
    pub async fn batch(&self, requests: &[Request]) -> Result<Vec<Answer>, Error> {
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        let sent: Vec<Check<'_>> = requests.iter().map(|request| self.as_sent(request)).collect();
        let retries = sent.iter().map(|check| self.retries_of(check)).min().unwrap_or(0);
        let asked = self.inner.reply_to::<BatchReply>("/v1/check/batch", wire::batch(&sent), retries).await;
        let error = match asked {
            Ok((BatchReply { decisions }, _)) if decisions.len() == requests.len() => {
                let none = HeaderMap::new();
                return Ok(decisions.into_iter().map(|one| Answer::of(one, &none)).collect());
            }
            Ok(_) => self.inner.connection.unreachable("it answers with other decisions".into()),
            Err(error) => error,
        };
        let Error::Unreachable { server, why } = error else { return Err(error) };
        let unreachable = || Error::Unreachable { server: server.clone(), why: why.clone() };
        requests.iter().map(|request| self.by_policy(request, unreachable())).collect()
    }

    /// Spends an amount that is known only afterwards, such as the tokens of an answer. Rules with `over: debt` spend it even where
    /// less remains; others refuse, and spend nothing.
    ///
    /// # Errors
    /// As [`Client::check`].
    pub async fn charge(&self, attributes: &[(&str, &str)], amount: u64) -> Result<Answer, Error> {
        self.ask(&Request::of(attributes).cost(amount)).await
    }

    /// Gives back hits that [`Client::ask`] spent; with `spent` of its answer, into the window that was charged.
    ///
    /// # Errors
    /// When the server does not answer, or does not take it: the hits stay spent.
    pub async fn refund(
        &self,
        attributes: &[(&str, &str)],
        amount: u64,
        spent: Option<&str>,
    ) -> Result<(), Error> {
        let (attributes, request_id) = (wire::attributes(attributes), self.inner.new_id());
        let domain = &self.inner.settings.domain;
        let refund = Refund { domain, attributes: &attributes, amount, spent, request_id };
        self.tell("/v1/refund", wire::refund(&refund)).await
    }

    /// Asks until the request is allowed, and waits meanwhile as long as the server says and up to a tenth longer, so that callers
    /// do not come back together. An answer that refuses says that it would take longer than `wait`.
    ///
    /// # Errors
    /// As [`Client::check`].
    pub async fn acquire(&self, request: &Request, wait: Duration) -> Result<Answer, Error> {
        let until = Instant::now() + wait;
        loop {
            let answer = self.ask(request).await?;
            if answer.allowed {
                sleep(answer.delay).await;
                return Ok(answer);
            }
            let Some(pause) = answer.retry_after.map(|after| after.mul_f64(1.0 + 0.1 * random::fraction()))
            else {
                return Ok(answer);
            };
            // A little more, as several may be told the same millisecond.
            let pause = pause + Duration::from_millis(10).mul_f64(random::fraction());
            if Instant::now() + pause > until {
                return Ok(answer);
            }
            sleep(pause).await;
        }
    }

    /// Sends what needs no answer beyond that it was done. It can be sent again.
    pub(crate) async fn tell(&self, path: &'static str, body: Vec<u8>) -> Result<(), Error> {
        let inner = &*self.inner;
        let reply = inner.connection.call_again(path, body.into(), inner.settings.retries).await?;
        inner.done(&reply)
    }

    fn as_sent<'m>(&'m self, request: &'m Request) -> Check<'m> {
        self.inner.as_sent(&request.attributes, request.cost, request.id.as_deref())
    }

    /// One without an id is sent once.
    fn retries_of(&self, sent: &Check<'_>) -> u32 {
        if sent.request_id.is_some() { self.inner.settings.retries } else { 0 }
    }

    fn by_policy(&self, request: &Request, error: Error) -> Result<Answer, Error> {
        if !matches!(error, Error::Unreachable { .. }) {
            return Err(error);
        }
        let allowed = self.inner.policy_allows(&self.slot(&request.attributes), request.cost);
        Ok(Answer { allowed, source: Source::Policy, failure: Some(error.to_string()), ..Answer::none() })
    }
}

impl Answer {
    fn of(checked: Checked, theirs: &HeaderMap) -> Self {
        let mut headers = HeaderMap::new();
        for name in PASSED_ON {
            for value in theirs.get_all(name) {
                headers.append(name, value.clone());
            }
        }
        Answer {
            allowed: checked.allowed,
            rule: checked.rule,
            limit: checked.limit,
            remaining: checked.remaining,
            reset_after: checked.reset_after_ms.map(Duration::from_millis),
            retry_after: checked.retry_after_ms.map(Duration::from_millis),
            delay: Duration::from_millis(checked.delay_ms),
            lease: checked.lease,
            spent: checked.spent,
            headers,
            ..Answer::none()
        }
    }

    /// A refusal that says nothing.
    fn none() -> Self {
        Answer {
            allowed: false,
            source: Source::Server,
            rule: None,
            limit: None,
            remaining: None,
            reset_after: None,
            retry_after: None,
            delay: Duration::ZERO,
            lease: None,
            spent: None,
            headers: HeaderMap::new(),
            failure: None,
        }
    }
}
