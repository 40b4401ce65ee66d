//! Vulnerabilities of other projects, one test for each: by the advisory's number if it has one.
//!
//! Those that are not about the identity of a client are tested elsewhere:
//!
//! - eviction that resets an over-limit counter (GHSA-2vgg-9h6w-m454): the memory store's
//!   `a_caller_over_its_limit_is_not_freed_by_a_flood_of_others`
//! - unbounded keys: its `a_flood_of_new_keys_stays_within_the_bound_and_is_counted`
//! - YAML bombs: the rules' `aliases_that_multiply_are_stopped_early`
//! - RESP length headers that allocate: the server's
//!   `lengths_beyond_the_bounds_end_the_connection_before_anything_is_kept`

use http::HeaderValue;
use tidegate_http::identity::{ForwardedPath, hash_secret};
use tidegate_rules::{Descriptor, Format, Matches, RuleSet, Source};

use super::ambiguous::ANONYMOUS;
use super::tokens;
use super::{Ask, get, identity, some};

#[test]
fn x_forwarded_for_spoof_tower_governor_the_leftmost_entry_is_never_believed() {
    let identity = identity("trusted_proxies: [10.0.0.0/8]");
    let ask = get("/").from("10.0.0.1").with("x-forwarded-for", "1.1.1.1, 198.51.100.7, 10.0.0.2");
    assert_eq!(ask.read(&identity, "ip"), some("198.51.100.7"));
}

#[test]
fn x_forwarded_for_spoof_ghsa_246p_cpwv_v3jq_a_stranger_cannot_choose_its_bucket() {
    let identity = identity("{}");
    for forged in ["1.1.1.1", "2.2.2.2", "127.0.0.1", "::1", "nonsense"] {
        let ask = get("/").with("x-forwarded-for", forged).with("x-real-ip", forged);
        let ask = ask.with("forwarded", &format!("for={forged}"));
        assert_eq!(ask.read(&identity, "client"), some("ip=203.0.113.9"), "{forged}");
    }
}

#[test]
fn x_forwarded_for_spoof_cve_2025_59152_rotating_the_header_makes_no_new_client_behind_a_proxy() {
    // The proxy appends the address that it sees, in a separate line as some do.
    let identity = identity("trusted_proxies: [10.0.0.1]");
    for forged in ["1.1.1.1", "2.2.2.2, 3.3.3.3", "10.0.0.1", "[::1]:80", ","] {
        let ask = get("/").from("10.0.0.1").with("x-forwarded-for", forged);
        let ask = ask.with("x-forwarded-for", "198.51.100.7");
        assert_eq!(ask.read(&identity, "client"), some("ip=198.51.100.7"), "{forged}");
    }
}

#[test]
fn x_forwarded_for_spoof_with_hops_entries_beyond_them_do_not_count() {
    let identity = identity("hops: 2");
    let ask = |forwarded: &str| get("/").from("192.0.2.1").with("x-forwarded-for", forwarded);
    assert_eq!(ask("1.1.1.1, 198.51.100.7, 192.0.2.2").read(&identity, "ip"), some("198.51.100.7"));
    // A client that bypasses a proxy counts as the furthest address that a proxy saw.
    assert_eq!(ask("198.51.100.7").read(&identity, "ip"), some("198.51.100.7"));
}

#[test]
fn x_forwarded_for_that_cannot_be_read_leaves_the_proxy_responsible() {
    let identity = identity("trusted_proxies: [10.0.0.0/8]");
    for garbage in ["unknown", "", "1.2.3", "999.1.1.1", "_hidden", "1.1.1.1, \u{7f}"] {
        let Ok(value) = HeaderValue::from_bytes(garbage.as_bytes()) else { continue };
        let ask = get("/").from("10.0.0.1").with("x-forwarded-for", value.to_str().unwrap());
        assert_eq!(ask.read(&identity, "ip"), some("10.0.0.1"), "{garbage}");
    }
}

#[test]
fn ipv6_rotation_within_a_subscribers_network_is_one_client() {
    let identity = identity("{}");
    let one = get("/").from("2001:db8:1:2::1").read(&identity, "ip");
    assert_eq!(one, some("2001:db8:1:2::/64"));
    assert_eq!(get("/").from("2001:db8:1:2:ffff:ffff:ffff:ffff").read(&identity, "ip"), one);
    assert_ne!(get("/").from("2001:db8:1:3::1").read(&identity, "ip"), one);
}

#[test]
fn ipv6_rotation_the_prefix_can_be_chosen() {
    let ask = get("/").from("2001:db8:1:2::1");
    assert_eq!(ask.read(&identity("ipv6_prefix: 56"), "ip"), some("2001:db8:1::/56"));
    assert_eq!(ask.read(&identity("ipv6_prefix: 128"), "ip"), some("2001:db8:1:2::1"));
}

#[test]
fn ipv4_mapped_cve_2026_30827_mapped_addresses_are_not_masked_into_one_bucket() {
    let identity = identity("ipv6_prefix: 56");
    assert_eq!(get("/").from("::ffff:198.51.100.1").read(&identity, "ip"), some("198.51.100.1"));
    assert_eq!(get("/").from("::ffff:198.51.100.2").read(&identity, "ip"), some("198.51.100.2"));
}

#[test]
fn ipv4_mapped_ghsa_5847_rm3g_23mw_both_ways_to_write_an_address_are_one_bucket() {
    let identity = identity("trusted_proxies: ['::ffff:10.0.0.0/104']");
    let direct = |peer: &str| get("/").from(peer).read(&identity, "client");
    assert_eq!(direct("::ffff:198.51.100.1"), direct("198.51.100.1"));
    let proxied =
        |entry: &str| get("/").from("10.0.0.1").with("x-forwarded-for", entry).read(&identity, "client");
    assert_eq!(proxied("::ffff:198.51.100.1"), direct("198.51.100.1"));
    assert_eq!(proxied("[::ffff:c633:6401]:4711"), direct("198.51.100.1"));
    assert_eq!(proxied("198.51.100.1:80"), direct("198.51.100.1"));
}

#[test]
fn path_variants_ghsa_24q2_59hm_rh9r_case_and_a_final_slash_make_no_new_path() {
    check_one_path(&["/Login", "/LOGIN", "/login/", "/login//"]);
}

#[test]
fn path_variants_ghsa_x732_6j76_qmhm_doubled_slashes_and_dots_make_no_new_path() {
    check_one_path(&["//login", "/./login", "/x/../login", "/.//login", "/..//login", "/%2e/login"]);
}

#[test]
fn path_variants_cve_2026_27587_escapes_make_no_new_path() {
    check_one_path(&["/%6cogin", "/%6Cogin", "/%4cOGIN", "/x/%2e%2e/login"]);
}

/// Each of `variants` is `/login` to rules, whatever template or glob they match it with.
fn check_one_path(variants: &[&str]) {
    let identity = identity("paths: [/login]");
    for variant in variants {
        assert_eq!(get(variant).read(&identity, "path"), some("/login"), "{variant}");
        assert_eq!(get(variant).read(&identity, "route"), some("/login"), "{variant}");
    }
}

#[test]
fn header_aliases_x_auth_user_with_underscores_does_not_count() {
    let identity = identity("{ headers: { user: x-auth-user }, api_key: { header: x-api-key } }");
    let ask = get("/").with("x_auth_user", "victim").with("x_api_key", "stolen");
    assert_eq!(ask.read(&identity, "user"), None);
    assert_eq!(ask.read(&identity, "client"), some("ip=203.0.113.9"));
}

#[test]
fn keys_joined_by_text_do_not_collide() {
    let identity = identity("{ query: { a: a, b: b }, composites: { both: [a, b] } }");
    let read = |uri: &str| get(uri).read(&identity, "both").unwrap();
    assert_ne!(read("/?a=x_y&b=z"), read("/?a=x&b=y_z"));
    assert_ne!(read("/?a=1:x&b=y"), read("/?a=1&b=x1:y"));
    // And as the key of a rule, through the rules themselves.
    let rules = "{ domain: d, rules: [{ name: r, key: [a, b], limits: [1/minute] }] }";
    let source = Source { name: "r.yaml".to_owned(), text: rules.to_owned() };
    let rules = RuleSet::compile(&[source], Format::Native).unwrap();
    let key = |a: &[u8], b: &[u8]| {
        let mut found = Matches::new();
        let entries = [("a", a), ("b", b)];
        rules.matches("d", &[Descriptor { entries: &entries }], super::at_second(0), &mut found).unwrap();
        found[0].key.clone()
    };
    assert_ne!(key(b"x_y", b"z"), key(b"x", b"y_z"));
}

#[test]
fn plaintext_api_keys_never_become_values() {
    let identity = identity("{ api_key: { header: authorization }, cookies: { session: sid } }");
    let ask = get("/").with("authorization", "Basic c2VjcmV0").with("cookie", "sid=s3cr3t");
    assert_eq!(ask.read(&identity, "api_key"), Some(hash_secret("c2VjcmV0")));
    assert_eq!(ask.read(&identity, "client"), Some(format!("api_key={}", hash_secret("c2VjcmV0"))));
    assert_eq!(ask.read(&identity, "session"), Some(hash_secret("s3cr3t")));
}

#[test]
fn plaintext_api_keys_scheme_in_any_case_is_the_same_key() {
    let identity = identity("api_key: { header: authorization }");
    let key = |value: &str| get("/").with("authorization", value).read(&identity, "api_key");
    assert_eq!(key("ApiKey k1"), key("APIKEY  k1"));
    assert_ne!(key("ApiKey k1"), key("ApiKey k2"));
}

#[test]
fn unverified_ids_as_keys_a_forged_token_cannot_lock_its_victim_out() {
    let identity = identity(&format!("jwt: {{ secret: {} }}", tokens::SECRET));
    for forged in [tokens::NONE, tokens::HS256_WITH_OTHER_CLAIMS, "a.b.c", ""] {
        let ask = get("/").bearing(forged);
        assert_eq!(ask.read(&identity, "user"), some(ANONYMOUS), "{forged}");
        assert_eq!(ask.read(&identity, "client"), some("ip=203.0.113.9"), "{forged}");
    }
}

#[test]
fn unbounded_keys_a_value_that_is_too_long_to_be_matched_whole_is_refused() {
    let identity = identity("{ query: { q: q }, headers: { tenant: x-tenant } }");
    let long = "a".repeat(9_000);
    let status = |ask: Ask| ask.refused(&identity, ForwardedPath::Normalised).kind().status().as_u16();
    assert_eq!(status(get(&format!("/{long}"))), 414);
    assert_eq!(status(get(&format!("/?q={long}"))), 414);
    assert_eq!(status(get("/").with("x-tenant", &long)), 431);
}
