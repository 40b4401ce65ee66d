//! Errors as `application/problem+json`, naming the field and what to do.

use axum::Json;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};
use tidegate_rules::Diagnostics;

use crate::jobs::{CallerLeft, TooManyJobs};

/// A problem, and the status of its answer.
#[derive(Debug)]
pub(crate) struct Problem {
    status: StatusCode,
    body: Map<String, Value>,
    retry_after_s: Option<u64>,
}

/// What handlers return.
pub(crate) type Answer<T> = Result<T, Problem>;

impl Problem {
    fn new(status: StatusCode, kind: &str, title: &str, detail: impl Into<String>) -> Self {
        let body = json!({
            "type": format!("urn:tidegate:problem:{kind}"),
            "title": title,
            "status": status.as_u16(),
            "detail": detail.into(),
        });
        let Value::Object(body) = body else { unreachable!("an object was written") };
        Problem { status, body, retry_after_s: None }
    }

    /// Adds a field.
    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.body.insert(name.to_owned(), value.into());
        self
    }

    pub(crate) fn hint(self, hint: &str) -> Self {
        self.with("hint", hint)
    }

    pub(crate) fn not_found(detail: impl Into<String>) -> Self {
        Problem::new(StatusCode::NOT_FOUND, "not-found", "There is nothing here", detail)
    }

    pub(crate) fn method_not_allowed() -> Self {
        let title = "The method is not allowed here";
        Problem::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method-not-allowed",
            title,
            "this route takes other methods",
        )
    }

    pub(crate) fn field(field: &str, detail: impl Into<String>) -> Self {
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        Problem::new(status, "invalid-field", "A field is not valid", detail).with("field", field)
    }

    pub(crate) fn malformed(detail: impl Into<String>) -> Self {
        Problem::new(StatusCode::BAD_REQUEST, "malformed-json", "The body is not valid JSON", detail)
    }

    pub(crate) fn not_json() -> Self {
        let (status, title) = (StatusCode::UNSUPPORTED_MEDIA_TYPE, "The body must be JSON");
        let detail = "send it with `content-type: application/json`";
        Problem::new(status, "unsupported-media-type", title, detail)
    }

    pub(crate) fn too_large() -> Self {
        let (status, title) = (StatusCode::PAYLOAD_TOO_LARGE, "The body is too large");
        Problem::new(status, "body-too-large", title, "the body is larger than this route reads")
    }

    pub(crate) fn too_slow() -> Self {
        let (status, title) = (StatusCode::REQUEST_TIMEOUT, "The body did not arrive in time");
        Problem::new(status, "body-too-slow", title, "the body took longer than 30 s")
    }

    pub(crate) fn unauthorized(detail: &str) -> Self {
        let title = "You are not signed in";
        Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", title, detail)
            .hint("send `authorization: Bearer TOKEN`; `tidegate login` gets one")
    }

    pub(crate) fn forbidden(detail: impl Into<String>) -> Self {
        Problem::new(StatusCode::FORBIDDEN, "forbidden", "You may not do this", detail)
    }

    pub(crate) fn too_many(wait_s: u64) -> Self {
        let detail = "too many wrong tokens came from your address";
        let title = "Too many failed sign-ins";
        let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "too-many-log-ins", title, detail);
        Problem { retry_after_s: Some(wait_s), ..problem }
    }

    pub(crate) fn unavailable(detail: impl Into<String>) -> Self {
        let title = "A dependency is unavailable";
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", title, detail)
            .hint("limits keep working; try again in a moment")
    }

    pub(crate) fn too_many_uploads(detail: impl Into<String>) -> Self {
        let title = "Too many uploads at once";
        let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too-many-uploads", title, detail);
        Problem { retry_after_s: Some(1), ..problem }.hint("nothing was read; try again in a moment")
    }

    pub(crate) fn read_only(files: &[String]) -> Self {
        let detail = "rules come from files, so they cannot be published here";
        Problem::new(StatusCode::CONFLICT, "read-only", "Rules are read-only here", detail)
            .with("edit_at", files.to_vec())
            .hint("edit the files, or start with `rules.source: database`")
    }

    pub(crate) fn no_database() -> Self {
        let detail = "this node has no database";
        Problem::new(StatusCode::CONFLICT, "no-database", "There is no database here", detail)
            .hint("ask a node that has one, or set `admin.database`")
    }

    pub(crate) fn follows() -> Self {
        let detail = "the fleet follows another node's database, so changes are made there";
        Problem::new(StatusCode::CONFLICT, "follows-another", "Changes are made at another node", detail)
            .hint(
                "GET /admin/v1/nodes says which one `leads`; if it is gone, or this node's database should be the fleet's: \
                 POST /admin/v1/nodes/lead",
            )
    }

    pub(crate) fn if_match_missing() -> Self {
        let status = StatusCode::PRECONDITION_REQUIRED;
        let detail = "If-Match must name the version that the change was made on";
        Problem::new(status, "if-match-missing", "The version is missing", detail)
            .hint("send the ETag of GET /admin/v1/rules, such as `if-match: \"42\"`")
    }

    pub(crate) fn conflict(detail: impl Into<String>) -> Self {
        let status = StatusCode::PRECONDITION_FAILED;
        Problem::new(status, "version-conflict", "Somebody else published first", detail)
            .hint("look at `diff`, make the change again on that version, and publish")
    }

    pub(crate) fn invalid_rules(found: &Diagnostics) -> Self {
        let first = found.iter().next().map(ToString::to_string).unwrap_or_default();
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        let diagnostics = serde_json::to_value(found).unwrap_or_default();
        Problem::new(status, "invalid-rules", "The rules have mistakes", first)
            .with("diagnostics", diagnostics)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(Value::Object(self.body))).into_response();
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if self.status == StatusCode::UNAUTHORIZED {
            let challenge = HeaderValue::from_static("Bearer realm=\"tidegate admin\"");
            response.headers_mut().insert("www-authenticate", challenge);
        }
        if let Some(wait) = self.retry_after_s {
            response.headers_mut().insert(RETRY_AFTER, wait.into());
        }
        response
    }
}

impl From<TooManyJobs> for Problem {
    fn from(error: TooManyJobs) -> Self {
        match error {
            TooManyJobs::Own(most) => {
                Problem::unavailable(format!("{most} requests of yours that take long wait already"))
                    .hint("wait for their answers")
            }
            TooManyJobs::All(most) => {
                Problem::unavailable(format!("{most} requests that take long wait already"))
                    .hint("try again in a moment")
            }
        }
    }
}

impl From<CallerLeft> for Problem {
    fn from(_: CallerLeft) -> Self {
        Problem::unavailable("nobody waits for the answer")
    }
}

impl From<tidegate_rulestore::Error> for Problem {
    fn from(error: tidegate_rulestore::Error) -> Self {
        match error {
            tidegate_rulestore::Error::Full { .. } => Problem::field("", error.to_string()),
            tidegate_rulestore::Error::TokenOfToken => Problem::field("code", error.to_string())
                .hint("open it in a browser, make the link with another token, or ask an admin for a token"),
            // The database's own error, such as a full disk; not the error of the connection to it, which may name hosts.
            tidegate_rulestore::Error::Unavailable { source } => match source.as_database_error() {
                Some(told) => Problem::unavailable(format!("the database refuses it: {}", told.message())),
                None => Problem::unavailable("the database does not answer"),
            },
            tidegate_rulestore::Error::InDoubt { .. } => Problem::unavailable(error.to_string()).with(
                "hint",
                "look at what is in force before you ask again: GET /admin/v1/rules, or the audit log",
            ),
            tidegate_rulestore::Error::NewerSchema { .. } => Problem::unavailable(error.to_string())
                .with("hint", "change it at a node of the newer release"),
            _ => Problem::unavailable(error.to_string()),
        }
    }
}
