//! Errors as RFC 9457 `application/problem+json`, naming the field and a hint.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};
use serde::Serialize;
use std::borrow::Cow;

/// The media type of a problem.
pub const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");

/// A problem document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    kind: Kind,
    status: StatusCode,
    /// What happened in this case.
    pub detail: Cow<'static, str>,
    /// The field at fault, as a path: `checks[3].attributes.user`.
    pub field: Option<String>,
    /// What to do about it.
    pub hint: Option<Cow<'static, str>>,
    /// The policies that a refused request violated (draft 11 of the rate limit headers).
    pub violated_policies: Vec<String>,
}

/// A problem as clients read it: the members of RFC 9457, and `error` and `message` for clients that look there.
#[derive(Serialize)]
struct Document<'p> {
    #[serde(rename = "type")]
    kind: Kind,
    title: &'static str,
    status: u16,
    detail: &'p str,
    error: &'static str,
    message: &'p str,
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<&'p str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<&'p str>,
    #[serde(rename = "violated-policies", skip_serializing_if = "<[String]>::is_empty")]
    violated_policies: &'p [String],
}

/// The kinds of problem, each a stable identifier with its usual status and one title.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub enum Kind {
    /// The body is not JSON.
    #[serde(rename = "urn:tidegate:problem:malformed-json")]
    MalformedJson,
    /// The body is JSON, but a field is missing, unknown, doubled, of the wrong type or out of range.
    #[serde(rename = "urn:tidegate:problem:invalid-field")]
    InvalidField,
    /// The body is larger than the server reads.
    #[serde(rename = "urn:tidegate:problem:body-too-large")]
    BodyTooLarge,
    /// The body did not arrive in time.
    #[serde(rename = "urn:tidegate:problem:body-too-slow")]
    BodyTooSlow,
    /// The body is not declared as JSON.
    #[serde(rename = "urn:tidegate:problem:unsupported-media-type")]
    UnsupportedMediaType,
    /// No token was given, or one that is not known.
    #[serde(rename = "urn:tidegate:problem:unauthorized")]
    Unauthorized,
    /// No such path.
    #[serde(rename = "urn:tidegate:problem:not-found")]
    NotFound,
    /// The path exists, with another method.
    #[serde(rename = "urn:tidegate:problem:method-not-allowed")]
    MethodNotAllowed,
    /// A request that a rule refused, where the client gets no other body.
    #[serde(rename = "https://iana.org/assignments/http-problem-types#quota-exceeded")]
    QuotaExceeded,
    /// The caller is banned.
    #[serde(rename = "https://iana.org/assignments/http-problem-types#abnormal-usage-detected")]
    AbnormalUsage,
    /// A request id was used for another request, or for one that is still being decided.
    #[serde(rename = "urn:tidegate:problem:conflict")]
    Conflict,
    /// A lease to renew has ended.
    #[serde(rename = "urn:tidegate:problem:lease-ended")]
    LeaseEnded,
    /// A rule that must not decide without its store has none.
    #[serde(rename = "urn:tidegate:problem:store-unavailable")]
    StoreUnavailable,
    /// A request that cannot be parsed.
    #[serde(rename = "urn:tidegate:problem:malformed-request")]
    MalformedRequest,
    /// The target is longer than rules can match whole.
    #[serde(rename = "urn:tidegate:problem:target-too-long")]
    TargetTooLong,
    /// A header is longer than rules can match whole.
    #[serde(rename = "urn:tidegate:problem:header-too-large")]
    HeaderTooLarge,
    /// The proxy has as many requests in flight as it may have.
    #[serde(rename = "urn:tidegate:problem:overloaded")]
    Overloaded,
    /// The service behind is overloaded, and this request matters less than others.
    #[serde(rename = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity")]
    Shed,
    /// No upstream server could be reached, or it closed the connection.
    #[serde(rename = "urn:tidegate:problem:bad-gateway")]
    BadGateway,
    /// The upstream server did not answer in time.
    #[serde(rename = "urn:tidegate:problem:gateway-timeout")]
    GatewayTimeout,
    /// The rules do not have the domain that a proxy or a middleware was configured with.
    #[serde(rename = "urn:tidegate:problem:unknown-domain")]
    UnknownDomain,
    /// The server in front of the middleware does not provide the peer's address.
    #[serde(rename = "urn:tidegate:problem:no-peer-address")]
    NoPeer,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 22] = [
        Self::MalformedJson,
        Self::InvalidField,
        Self::BodyTooLarge,
        Self::BodyTooSlow,
        Self::UnsupportedMediaType,
        Self::Unauthorized,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::QuotaExceeded,
        Self::AbnormalUsage,
        Self::Conflict,
        Self::LeaseEnded,
        Self::StoreUnavailable,
        Self::MalformedRequest,
        Self::TargetTooLong,
        Self::HeaderTooLarge,
        Self::Overloaded,
        Self::Shed,
        Self::BadGateway,
        Self::GatewayTimeout,
        Self::UnknownDomain,
        Self::NoPeer,
    ];

    /// The status of this kind.
    #[must_use]
    pub fn status(self) -> StatusCode {
        match self {
            Self::MalformedJson => StatusCode::BAD_REQUEST,
            Self::InvalidField => StatusCode::UNPROCESSABLE_ENTITY,
            Self::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::BodyTooSlow => StatusCode::REQUEST_TIMEOUT,
            Self::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::QuotaExceeded | Self::AbnormalUsage => StatusCode::TOO_MANY_REQUESTS,
            Self::Conflict => StatusCode::CONFLICT,
            Self::LeaseEnded => StatusCode::GONE,
            Self::StoreUnavailable | Self::Overloaded | Self::Shed => StatusCode::SERVICE_UNAVAILABLE,
            Self::MalformedRequest => StatusCode::BAD_REQUEST,
            Self::TargetTooLong => StatusCode::URI_TOO_LONG,
            Self::HeaderTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::BadGateway => StatusCode::BAD_GATEWAY,
            Self::GatewayTimeout => StatusCode::GATEWAY_TIMEOUT,
            Self::UnknownDomain | Self::NoPeer => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// The kind in a word, the same on every surface: `error` in the document.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::MalformedJson => "malformed_json",
            Self::InvalidField => "invalid_field",
            Self::BodyTooLarge => "body_too_large",
            Self::BodyTooSlow => "body_too_slow",
            Self::UnsupportedMediaType => "unsupported_media_type",
            Self::Unauthorized => "unauthorized",
            Self::NotFound => "not_found",
            Self::MethodNotAllowed => "method_not_allowed",
            Self::QuotaExceeded | Self::AbnormalUsage => "rate_limit_exceeded",
            Self::Conflict => "conflict",
            Self::LeaseEnded => "lease_ended",
            Self::StoreUnavailable => "store_unavailable",
            Self::MalformedRequest => "malformed_request",
            Self::TargetTooLong => "target_too_long",
            Self::HeaderTooLarge => "header_too_large",
            Self::Overloaded => "overloaded",
            Self::Shed => "load_shed",
            Self::BadGateway => "bad_gateway",
            Self::GatewayTimeout => "gateway_timeout",
            Self::UnknownDomain => "unknown_domain",
            Self::NoPeer => "no_peer_address",
        }
    }

    /// The title of this kind, in a sentence.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::MalformedJson => "The body is not valid JSON",
            Self::InvalidField => "A field is not valid",
            Self::BodyTooLarge => "The body is too large",
            Self::BodyTooSlow => "The body did not arrive in time",
            Self::UnsupportedMediaType => "The body must be JSON",
            Self::Unauthorized => "A token is needed",
            Self::NotFound => "There is nothing here",
            Self::MethodNotAllowed => "The method is not allowed here",
            Self::QuotaExceeded => "The quota is exceeded",
            Self::AbnormalUsage => "The caller was found to use the service abnormally",
            Self::Conflict => "The request conflicts with an earlier one",
            Self::LeaseEnded => "The lease has ended",
            Self::StoreUnavailable => "The limit cannot be checked now",
            Self::NoPeer => "The client is not known",
            Self::MalformedRequest => "The request is not valid",
            Self::TargetTooLong => "The target is too long",
            Self::HeaderTooLarge => "A header is too large",
            Self::Overloaded => "Too many requests are in flight",
            Self::Shed => "The service sheds load",
            Self::BadGateway => "The upstream server cannot be reached",
            Self::GatewayTimeout => "The upstream server did not answer in time",
            Self::UnknownDomain => "The domain has no rules",
        }
    }
}

impl Problem {
    /// A problem with its detail; add a field or a hint if there is one.
    #[must_use]
    pub fn new(kind: Kind, detail: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind,
            status: kind.status(),
            detail: detail.into(),
            field: None,
            hint: None,
            violated_policies: Vec::new(),
        }
    }

    /// Answers with another status than is usual for this kind.
    #[must_use]
    pub(crate) fn with_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    /// Names the field at fault.
    #[must_use]
    pub fn at(mut self, field: impl Into<String>) -> Self {
        self.field = Some(field.into());
        self
    }

    /// Says what to do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<Cow<'static, str>>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The kind of problem.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The status of the answer.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The document itself.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        let Problem { kind, status, detail, field, hint, violated_policies } = self;
        let document = Document {
            kind: *kind,
            title: kind.title(),
            status: status.as_u16(),
            detail,
            error: kind.code(),
            message: detail,
            field: field.as_deref(),
            hint: hint.as_deref(),
            violated_policies,
        };
        serde_json::to_vec(&document).expect("strings and numbers always serialise")
    }

    /// The response with this document, its status and media type.
    #[must_use]
    pub fn to_response<B: From<Bytes>>(&self) -> Response<B> {
        let mut response = Response::new(B::from(self.to_json().into()));
        *response.status_mut() = self.status;
        response.headers_mut().insert(CONTENT_TYPE, PROBLEM_JSON);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn document(problem: &Problem) -> serde_json::Value {
        serde_json::from_slice(&problem.to_json()).unwrap()
    }

    #[test]
    fn a_problem_has_the_members_of_rfc_9457_and_ours() {
        let problem =
            Problem::new(Kind::InvalidField, "expected a string").at("attributes.user").hint("quote it");
        assert_eq!(
            document(&problem),
            json!({
                "type": "urn:tidegate:problem:invalid-field",
                "title": "A field is not valid",
                "status": 422,
                "detail": "expected a string",
                "error": "invalid_field",
                "message": "expected a string",
                "field": "attributes.user",
                "hint": "quote it",
            })
        );
    }

    #[test]
    fn a_refusal_lists_the_policies_it_violated() {
        let mut problem = Problem::new(Kind::QuotaExceeded, "100 requests per minute");
        problem.violated_policies = vec!["per-user".to_owned()];
        assert_eq!(document(&problem)["violated-policies"], json!(["per-user"]));
    }

    #[test]
    fn a_problem_travels_with_its_status_and_media_type() {
        let response: Response<Bytes> = Problem::new(Kind::BodyTooLarge, "more than 1 byte").to_response();
        assert_eq!(response.status(), 413);
        assert_eq!(response.headers()[CONTENT_TYPE], "application/problem+json");
    }
}
