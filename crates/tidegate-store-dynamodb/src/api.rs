//! Calls of DynamoDB, signed, and what its errors mean.

use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::Value;
use tidegate_core::Timestamp;
use tidegate_store_items::{Deadline, Failure, ServerClock};

use crate::credentials::Credentials;
use crate::http_client::HttpClient;
use crate::sign::{Scope, stamp};
use crate::url::DynamoDbUrl;

const VERSION: &str = "DynamoDB_20120810";
const CONTENT: &str = "application/x-amz-json-1.0";

/// A table, and who calls.
pub(crate) struct Api {
    pub(crate) url: DynamoDbUrl,
    pub(crate) client: Arc<HttpClient>,
    pub(crate) credentials: Credentials,
    /// What the answers say of DynamoDB's clock.
    pub(crate) clock: ServerClock,
}

/// Whether a call may change something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Reads,
    Writes,
}

/// What DynamoDB answers instead of doing it.
#[derive(Debug)]
pub(crate) struct Refused {
    status: u16,
    /// The error's name.
    pub(crate) code: String,
    message: String,
    /// Why each part of a transaction was refused.
    reasons: Vec<String>,
}

impl Api {
    /// Makes a call: its answer, or why it was refused.
    pub(crate) async fn call(
        &self,
        what: &str,
        body: &Value,
        deadline: Deadline,
    ) -> Result<Result<Value, Refused>, Failure> {
        let key = self.credentials.key(deadline).await?;
        let (at, target, host) =
            (stamp(self.clock.now()), format!("{VERSION}.{what}"), self.client.server().authority());
        let body = serde_json::to_vec(body).expect("it is JSON");
        let mut headers = vec![("content-type", CONTENT), ("host", &host), ("x-amz-date", &at)];
        headers.extend(key.token.as_deref().map(|token| ("x-amz-security-token", token)));
        headers.push(("x-amz-target", &target));
        let scope = Scope { region: &self.url.region, service: "dynamodb", at: &at };
        let authorization = scope.authorization((&key.id, &key.secret), "POST", &headers, &body);
        let request = Request::post("/").header("authorization", authorization);
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let invalid = |error: http::Error| Failure::NotApplied("not_allowed", error.to_string().into());
        let request = request.body(Full::new(Bytes::from(body))).map_err(invalid)?;
        let answer = self.client.call(request, deadline).await?;
        if let Some((second, from, to)) = answer.date {
            self.clock.read(second, from, to);
        }
        let told: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        if answer.status.is_success() && told.is_object() {
            return Ok(Ok(told));
        }
        Ok(Err(Refused::read(answer.status.as_u16(), &told)))
    }

    /// Makes a call that changes nothing, again if its answer is lost: its answer, or why there is none.
    pub(crate) async fn read(&self, what: &str, body: &Value, deadline: Deadline) -> Result<Value, Failure> {
        const MOST_LOST: usize = 2;
        let mut lost = 0;
        loop {
            match self.call(what, body, deadline).await {
                Ok(Ok(told)) => return Ok(told),
                Ok(Err(refused)) => return Err(self.failure(&refused, Kind::Reads, deadline)),
                Err(Failure::Lost(_)) if lost < MOST_LOST && tokio::time::Instant::now() < deadline.at => {
                    lost += 1
                }
                Err(failure) => return Err(failure.of_a_read()),
            }
        }
    }

    /// What an answer means for the caller, in one line that says what to do.
    pub(crate) fn failure(&self, refused: &Refused, kind: Kind, deadline: Deadline) -> Failure {
        let Refused { status, code, message, .. } = refused;
        if refused.is_throttled() {
            return Failure::Busy(deadline.span);
        }
        let not_applied = |reason, why: String| Failure::NotApplied(reason, why.into());
        match code.as_str() {
            "ResourceNotFoundException" => not_applied("other", self.missing()),
            "ResourceInUseException" => {
                not_applied("other", format!("the table `{}` is being created", self.url.table))
            }
            "UnrecognizedClientException"
            | "InvalidSignatureException"
            | "AccessDeniedException"
            | "MissingAuthenticationTokenException"
            | "IncompleteSignatureException"
            | "ExpiredTokenException"
            | "MissingAuthenticationToken"
            | "InvalidClientTokenId" => {
                let who = self.credentials.source();
                not_applied("not_allowed", format!("{code}: {message} (the key comes from {who})"))
            }
            _ if *status >= 500 && kind == Kind::Writes => {
                Failure::Lost(format!("{status} {code}: {message}").into())
            }
            "ValidationException" if message.contains("Item size") => {
                Failure::TooLarge(format!("{code}: {message}").into())
            }
            // What the table's keys are, it says in many words.
            "ValidationException" => not_applied(
                "other",
                format!("{code}: {message} (the table `{}` needs one key, `k`, of type S)", self.url.table),
            ),
            "" => not_applied(
                "other",
                format!(
                    "{} does not answer as DynamoDB does: status {status}",
                    self.client.server().authority()
                ),
            ),
            _ => not_applied("other", format!("{code}: {message}")),
        }
    }

    /// What to do about a missing table.
    fn missing(&self) -> String {
        let DynamoDbUrl { table, region, .. } = &self.url;
        format!(
            "there is no table `{table}` in {region}: add `&create=true` to the url, or run `aws dynamodb create-table --region {region} \
             --table-name {table} --attribute-definitions AttributeName=k,AttributeType=S --key-schema AttributeName=k,KeyType=HASH \
             --billing-mode PAY_PER_REQUEST && aws dynamodb wait table-exists --region {region} --table-name {table} && aws dynamodb \
             update-time-to-live --region {region} --table-name {table} --time-to-live-specification Enabled=true,AttributeName=ttl`"
        )
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }
}

impl Refused {
    fn read(status: u16, told: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let kind = text(&told["__type"]);
        let code = kind.rsplit('#').next().unwrap_or_default().to_owned();
        let message = text(if told["message"].is_null() { &told["Message"] } else { &told["message"] });
        let reasons = told["CancellationReasons"].as_array().into_iter().flatten();
        let mut reasons: Vec<String> = reasons.map(|reason| text(&reason["Code"])).collect();
        if reasons.is_empty() && code == "TransactionCanceledException" {
            // Its message lists them, too.
            let list = message
                .split_once('[')
                .and_then(|(_, rest)| rest.split_once(']'))
                .map_or("", |(list, _)| list);
            reasons = list.split(", ").map(str::to_owned).collect();
        }
        Refused { status, code, message, reasons }
    }

    /// Whether somebody else was quicker, and nothing was applied.
    pub(crate) fn is_overtaken(&self) -> bool {
        let is_overtaken = |name: &str| {
            matches!(
                name,
                "ConditionalCheckFailed"
                    | "ConditionalCheckFailedException"
                    | "TransactionConflict"
                    | "TransactionConflictException"
            )
        };
        is_overtaken(&self.code)
            || (self.reasons.iter().any(|reason| is_overtaken(reason)) && !self.is_throttled())
    }

    /// Whether there is too much to do: nothing was applied.
    pub(crate) fn is_throttled(&self) -> bool {
        const NAMES: [&str; 6] = [
            "ProvisionedThroughputExceeded",
            "ProvisionedThroughputExceededException",
            "ThrottlingError",
            "ThrottlingException",
            "RequestLimitExceeded",
            "TooManyRequestsException",
        ];
        NAMES.contains(&self.code.as_str())
            || self.reasons.iter().any(|reason| NAMES.contains(&reason.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn answers_are_known_by_their_names() {
        let read = |told: Value| {
            let refused = Refused::read(400, &told);
            (refused.is_overtaken(), refused.is_throttled())
        };
        let cancelled = "com.amazonaws.dynamodb.v20120810#TransactionCanceledException";
        for (told, expected) in [
            (
                json!({ "__type": "com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException" }),
                (true, false),
            ),
            (
                json!({ "__type": "com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException" }),
                (false, true),
            ),
            (
                json!({ "__type": cancelled, "CancellationReasons": [{ "Code": "None" }, { "Code": "TransactionConflict" }] }),
                (true, false),
            ),
            (
                json!({ "__type": cancelled, "Message": "cancelled [None, ConditionalCheckFailed]" }),
                (true, false),
            ),
            (
                json!({ "__type": cancelled, "CancellationReasons": [{ "Code": "ConditionalCheckFailed" }, { "Code": "ThrottlingError" }] }),
                (false, true),
            ),
            (json!({ "__type": "com.amazon.coral.service#AccessDeniedException" }), (false, false)),
            (Value::Null, (false, false)),
        ] {
            assert_eq!(read(told.clone()), expected, "{told}");
        }
    }
}
