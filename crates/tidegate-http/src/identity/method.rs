//! The methods that a request may have for the server behind.
//!
//! Servers answer HEAD by running GET, and many frameworks let a header (or, in a POST, `_method`) name another method: such
//! a request is counted under both. A lower-case method is POST to Flask and invalid to Node: it is rejected.

use std::borrow::Cow;

use http::HeaderName;
use smallvec::{SmallVec, smallvec};

use super::{RequestHead, fields};
use crate::problem::{Kind, Problem};

/// Headers by which frameworks let a client override the method.
const OVERRIDES: [&str; 3] = ["x-http-method-override", "x-http-method", "x-method-override"];

/// Usually one, or two with an override.
pub(super) type Methods<'a> = SmallVec<[Cow<'a, [u8]>; 2]>;

/// Every method that some server may see in the request, the actual one first.
pub(super) fn readings<'a>(head: &RequestHead<'a>) -> Result<Methods<'a>, Problem> {
    let sent = head.method.as_str();
    if !is_known(sent.as_bytes()) {
        return Err(wrong("method", "a method is written in capitals"));
    }
    let mut methods: Methods<'a> = smallvec![Cow::Borrowed(sent.as_bytes())];
    if sent == "HEAD" {
        methods.push(Cow::Borrowed(b"GET"));
    }
    for header in OVERRIDES {
        if let Some(named) = fields::single(head.headers, &HeaderName::from_static(header))? {
            add(&mut methods, named, header)?;
        }
    }
    if sent == "POST" {
        let named = fields::query(head.uri, "_method")?;
        named.iter().try_for_each(|named| add(&mut methods, named, "query"))?;
    }
    Ok(methods)
}

fn add(methods: &mut Methods<'_>, named: &[u8], field: &'static str) -> Result<(), Problem> {
    let named = named.to_ascii_uppercase();
    if !is_known(&named) {
        return Err(wrong(field, "this is no method"));
    }
    if !methods.iter().any(|known| **known == *named) {
        methods.push(Cow::Owned(named));
    }
    Ok(())
}

fn is_known(method: &[u8]) -> bool {
    (1..=32).contains(&method.len()) && method.iter().all(|byte| byte.is_ascii_uppercase() || *byte == b'-')
}

fn wrong(field: &'static str, problem: &'static str) -> Problem {
    Problem::new(Kind::MalformedRequest, problem).at(field).hint("such as GET, POST or PROPFIND")
}
