//! Whether a body is declared as JSON.

use http::HeaderMap;
use http::header::CONTENT_TYPE;

use crate::problem::{Kind, Problem};

/// Rejects a body that is declared as something other than JSON. Without a declaration it is taken for JSON.
pub(super) fn check(headers: &HeaderMap) -> Result<(), Problem> {
    let Some(declared) = headers.get(CONTENT_TYPE) else { return Ok(()) };
    let essence = declared.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    let is_json = essence.eq_ignore_ascii_case(b"application/json")
        || essence.len() > 5 && essence[essence.len() - 5..].eq_ignore_ascii_case(b"+json");
    if is_json {
        return Ok(());
    }
    let found = String::from_utf8_lossy(essence).into_owned();
    Err(Problem::new(Kind::UnsupportedMediaType, format!("the body is declared as `{found}`"))
        .at("content-type")
        .hint("send it with `Content-Type: application/json`"))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn json_in_any_spelling_or_undeclared_is_read_and_anything_else_is_not() {
        let passes = |kind: &'static str| {
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(kind))]);
            check(&headers).is_ok()
        };
        assert!(check(&HeaderMap::new()).is_ok());
        for kind in ["application/json", "Application/JSON; charset=utf-8", "application/ld+json"] {
            assert!(passes(kind), "{kind}");
        }
        for kind in ["text/plain", "application/x-www-form-urlencoded", "+json", "", "json"] {
            assert!(!passes(kind), "{kind}");
        }
    }
}
