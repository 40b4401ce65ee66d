//! Requests of honest clients.

use super::{get, identity, some};

#[test]
fn every_request_has_method_path_host_address_and_client() {
    let identity = identity("{}");
    let ask = get("/v1/items?x=1").with("host", "API.example.com.:8443");
    let read = |name| ask.read(&identity, name);
    assert_eq!(read("method"), some("GET"));
    assert_eq!(read("path"), some("/v1/items"));
    assert_eq!(read("host"), some("api.example.com"));
    assert_eq!(read("ip"), some("203.0.113.9"));
    assert_eq!(read("client"), some("ip=203.0.113.9"));
    assert_eq!(read("route"), None);
}

#[test]
fn the_host_of_the_target_counts_before_the_header() {
    let identity = identity("{}");
    let ask = get("http://user@[2001:db8::1]:80/x").with("host", "other");
    assert_eq!(ask.read(&identity, "host"), some("2001:db8::1"));
}

#[test]
fn header_cookie_query_and_template_become_attributes() {
    let identity = identity(
        "{ headers: { tenant: x-tenant }, query: { page: p }, cookies: { session: sid }, \
           paths: ['/users/{id}'], composites: { tenant_page: [tenant, page] } }",
    );
    let ask = get("/USERS/42/?p=3").with("x-tenant", "acme").with("cookie", "sid=1");
    let read = |name| ask.read(&identity, name);
    assert_eq!(read("tenant"), some("acme"));
    assert_eq!(read("page"), some("3"));
    assert!(read("session").is_some());
    assert_eq!(read("route"), some("/users/{id}"));
    assert_eq!(read("path.id"), some("42"));
    assert_eq!(read("tenant_page"), some("4:acme1:3"));
}

#[test]
fn a_composite_needs_all_its_parts() {
    let identity = identity("{ headers: { tenant: x-tenant }, composites: { both: [tenant, path] } }");
    assert_eq!(get("/").read(&identity, "both"), None);
}

#[test]
fn a_proxy_on_this_machine_is_trusted_without_being_named() {
    let identity = identity("{}");
    for local in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
        let ask = get("/").from(local).with("x-forwarded-for", "1.1.1.1, 198.51.100.7");
        assert_eq!(ask.read(&identity, "ip"), some("198.51.100.7"), "{local}");
    }
}

#[test]
fn the_client_is_whatever_comes_first_in_its_list() {
    let identity = identity("{ headers: { tenant: x-tenant }, client: [tenant, ip] }");
    assert_eq!(get("/").with("x-tenant", "acme").read(&identity, "client"), some("tenant=acme"));
    assert_eq!(get("/").read(&identity, "client"), some("ip=203.0.113.9"));
}

#[test]
fn nobody_is_believed_where_there_are_no_hops() {
    let identity = identity("hops: 0");
    let ask = get("/").from("127.0.0.1").with("x-forwarded-for", "1.1.1.1");
    assert_eq!(ask.read(&identity, "ip"), some("127.0.0.1"));
    assert!(!identity.trusts(Some("127.0.0.1".parse().unwrap())));
}
