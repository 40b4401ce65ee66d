//! Requests that can be read in two ways: refused, or counted under both.

use tidegate_http::identity::{ForwardedPath, Identity};

use super::{Ask, get, identity, some, tokens};

/// What stands for the address of [`get`] where a credential cannot be read.
pub(crate) const ANONYMOUS: &str = "\u{fffd}203.0.113.9";

fn all(values: &[&str]) -> Vec<Option<String>> {
    values.iter().map(|value| some(value)).collect()
}

#[track_caller]
fn check_refused(ask: &Ask, identity: &Identity, field: &str) {
    let problem = ask.refused(identity, ForwardedPath::AsWritten);
    assert_eq!(
        (problem.kind().status().as_u16(), problem.field.as_deref()),
        (400, Some(field)),
        "{problem:?}"
    );
}

#[test]
fn a_method_in_lower_case_is_refused() {
    for method in ["post", "Post", "pOST", "PO_ST", "GET1"] {
        check_refused(&get("/login").method(method), &identity("{}"), "method");
    }
    for method in ["PROPFIND", "VERSION-CONTROL"] {
        assert_eq!(get("/").method(method).read(&identity("{}"), "method"), some(method));
    }
}

#[test]
fn a_method_that_servers_take_for_another_counts_as_both() {
    let methods = |ask: Ask| ask.read_all(&identity("{}"), "method");
    assert_eq!(methods(get("/").method("HEAD")), all(&["HEAD", "GET"]));
    let overridden = get("/").method("POST").with("x-http-method-override", "delete");
    assert_eq!(methods(overridden), all(&["POST", "DELETE"]));
    assert_eq!(methods(get("/?_method=put").method("POST")), all(&["POST", "PUT"]));
    assert_eq!(methods(get("/?_method=put")), all(&["GET"]));
    let twice = get("/").method("POST").with("x-http-method", "PUT").with("x-http-method", "GET");
    check_refused(&twice, &identity("{}"), "x-http-method");
}

#[test]
fn credentials_sent_twice_are_refused() {
    let by_key = identity("api_key: { header: x-api-key }");
    check_refused(&get("/").with("x-api-key", "k1").with("x-api-key", "k2"), &by_key, "x-api-key");
    let by_token = identity(&format!("jwt: {{ secret: {} }}", tokens::SECRET));
    let twice = get("/").bearing(tokens::HS256).bearing("a.b.c");
    check_refused(&twice, &by_token, "authorization");
}

#[test]
fn credentials_that_cannot_be_read_count_by_address_and_never_as_nobody() {
    let by_token = identity(&format!("jwt: {{ secret: {}, claims: [sub, plan] }}", tokens::SECRET));
    for value in ["a.b.c", tokens::NONE] {
        let ask = get("/").bearing(value);
        assert_eq!(ask.read(&by_token, "sub"), some(ANONYMOUS), "{value}");
        assert_eq!(ask.read(&by_token, "plan"), some(ANONYMOUS), "{value}");
        assert_eq!(ask.read(&by_token, "client"), some("ip=203.0.113.9"), "{value}");
    }
    let basic = get("/").with("authorization", "Basic dXNlcjpwdw==");
    assert_eq!(basic.read(&by_token, "sub"), some(ANONYMOUS));
    // A request without a credential is anonymous, as before: whether that is limited depends on the rule.
    assert_eq!(get("/").read(&by_token, "sub"), None);
}

#[test]
fn credentials_that_only_a_lenient_server_reads_count_as_both() {
    let by_token = identity(&format!("jwt: {{ secret: {} }}", tokens::SECRET));
    for other in [format!("Bearer {}=", tokens::HS256), format!("JWT {}", tokens::HS256)] {
        let ask = get("/").with("authorization", &other);
        assert_eq!(ask.read_all(&by_token, "user"), all(&["alice", ANONYMOUS]), "{other}");
        assert_eq!(ask.read_all(&by_token, "client"), all(&["user=alice", "ip=203.0.113.9"]), "{other}");
    }
    let by_key = identity("api_key: { header: authorization }");
    let basic = |text: &str| get("/").with("authorization", text).read_all(&by_key, "api_key");
    let known = basic("Basic dXNlcjpwdw==");
    assert_eq!(basic("Basic dXNlcjpwdw="), [known, all(&[ANONYMOUS])].concat());
}

#[test]
fn keys_with_blanks_beyond_ascii_count_as_both() {
    let identity = identity("{ api_key: { header: x-api-key }, headers: { tenant: x-tenant } }");
    let read = |name: &str, value: &[u8], attribute: &str| {
        let mut ask = get("/");
        let value = http::HeaderValue::from_bytes(value).unwrap();
        ask.headers.insert(http::HeaderName::try_from(name).unwrap(), value);
        ask.read_all(&identity, attribute)
    };
    let key = read("x-api-key", b"k1", "api_key");
    assert_eq!(read("x-api-key", b"k1\xa0", "api_key")[1..], key);
    assert_eq!(read("x-api-key", "\u{2003}k1".as_bytes(), "api_key")[1..], key);
    assert_eq!(read("x-tenant", b"acme\x85", "tenant")[1..], all(&["acme"]));
}

#[test]
fn parameters_that_only_some_server_reads_count_as_both() {
    let identity = identity("query: { user: to.ken }");
    let read = |query: &str| get(&format!("/?{query}")).read_all(&identity, "user");
    for alias in ["+to.ken=1", "to.ken%00x=1", "to_ken=1", "to[ken=1", "[to.ken]=1", "To.Ken=1"] {
        assert_eq!(read(alias), all(&["1"]), "{alias}");
        assert_eq!(read(&format!("{alias}&to.ken=2")), all(&["2", "1"]), "{alias}");
    }
    assert_eq!(read("to.ken=1%20"), all(&["1 ", "1"]));
    assert_eq!(read("token=1"), [None]);
}

#[test]
fn a_cookie_is_one_however_it_is_spelled_and_two_count_as_both() {
    let identity = identity("cookies: { session: sid }");
    let read = |cookie: &str| get("/").with("cookie", cookie).read_all(&identity, "session");
    let one = read("sid=s1");
    for spelling in ["sid =s1", "sid\t=s1", "sid= s1", "sid=%731", "sid=\"s1\"", "a=b; sid=s1"] {
        assert_eq!(read(spelling), one, "{spelling}");
    }
    assert_eq!(read("sid=s1; sid=s2"), [read("sid=s1"), read("sid=s2")].concat());
}

#[test]
fn headers_and_parameters_sent_twice_are_refused() {
    let identity = identity("{ headers: { tenant: x-tenant }, query: { user: u } }");
    check_refused(&get("/").with("x-tenant", "a").with("x-tenant", "a"), &identity, "x-tenant");
    for query in ["/?u=1&u=2", "/?u=1;u=2", "/?u[]=1&u[]=2"] {
        check_refused(&get(query), &identity, "query");
    }
    check_refused(&get("/").with("host", "a").with("host", "b"), &identity, "host");
}

#[test]
fn a_header_that_is_another_to_cgi_is_refused_where_others_forward_it() {
    let identity = identity("{ headers: { tenant: x-tenant }, api_key: { header: x-api-key } }");
    for alias in ["x_tenant", "x_api-key", "x.tenant", "x_forwarded_for"] {
        check_refused(&get("/").with(alias, "evil"), &identity, alias);
        assert_eq!(get("/").with(alias, "evil").read(&identity, "tenant"), None);
    }
    assert_eq!(get("/").with("unrelated_one", "1").read(&identity, "tenant"), None);
}

#[test]
fn a_path_that_servers_read_differently_counts_under_every_reading() {
    let identity = identity("paths: ['/files/{name}', '/files/{dir}/{name}']");
    let ask = get("/files/a%2Fb");
    assert_eq!(ask.read_all(&identity, "path"), all(&["/files/a/b", "/files/a%2fb"]));
    assert_eq!(ask.read_all(&identity, "route"), all(&["/files/{dir}/{name}", "/files/{name}"]));
}

#[test]
fn what_can_be_read_in_too_many_ways_is_refused() {
    let identity = identity("cookies: { a: a, b: b, c: c }");
    let cookies = "a=1; a=2; b=1; b=2; c=1; c=2";
    let ask = get("/x%2Fy;z").method("HEAD").with("cookie", cookies);
    assert_eq!(ask.refused(&identity, ForwardedPath::Normalised).kind().status(), 400);
}
