//! Invalid configurations.

use tidegate_http::identity::{Identity, IdentityConfig};

use super::parse;

#[track_caller]
fn check_refused(yaml: &str, field: &str, problem: &str) {
    let error = Identity::new(&parse(yaml)).unwrap_err();
    assert_eq!(error.field, field, "{error}");
    assert!(error.problem.contains(problem), "{error}");
    assert!(!error.hint.is_empty());
}

#[test]
fn a_field_that_makes_no_sense_is_named() {
    check_refused("trusted_proxies: [10.0.0.0/8, localhost]", "trusted_proxies[1]", "localhost");
    check_refused("{ trusted_proxies: [10.0.0.0/8], hops: 1 }", "hops", "combined");
    check_refused("ipv6_prefix: 129", "ipv6_prefix", "longer");
    check_refused("ipv6_prefix: 0", "ipv6_prefix", "every IPv6 client");
    check_refused("api_key: { header: 'x key' }", "api_key.header", "no header");
    check_refused("api_key: { header: x_api_key }", "api_key.header", "x-api-key");
    check_refused("headers: { who: authorization }", "headers.who", "secrets");
    check_refused("paths: [users]", "paths[0]", "slash");
    check_refused("client: [user]", "client", "`user`");
    check_refused("composites: { a: [b] }", "composites.a", "`b`");
    check_refused("jwt: {}", "jwt", "no key");
    check_refused("jwt: { secret: a, jwks: b }", "jwt", "more than one");
    check_refused("jwt: { secret: a, algorithms: [RS256] }", "jwt.algorithms", "shared secret");
    check_refused("jwt: { secret: a, algorithms: [none] }", "jwt.algorithms", "`none`");
    check_refused("jwt: { secret: a, leeway: soon }", "jwt.leeway", "soon");
    check_refused("jwt: { secret: '' }", "jwt.secret", "empty");
    check_refused("jwt: { secret_file: /does/not/exist }", "jwt.secret_file", "/does/not/exist");
    check_refused("jwt: { jwks: /does/not/exist }", "jwt.jwks", "/does/not/exist");
}

#[test]
fn an_attribute_has_one_source() {
    check_refused("{ headers: { user: x-user }, query: { user: u } }", "query.user", "already");
    check_refused("{ jwt: { secret: a }, headers: { user: x-user } }", "headers.user", "already");
    check_refused("headers: { ip: x-real-ip }", "headers.ip", "already");
}

#[test]
fn an_unknown_or_doubled_field_is_an_error() {
    for yaml in [
        "trusted_proxy: []",
        "jwt: { key: a }",
        "api_key: { headers: a }",
        "headers: { a: b, a: c }",
        "jwt: { claims: { a: b, a: c } }",
    ] {
        assert!(serde_saphyr::from_str::<IdentityConfig>(yaml).is_err(), "{yaml}");
    }
}

#[test]
fn a_secret_is_not_shown_with_its_configuration() {
    let config = parse("jwt: { secret: hunter2 }");
    assert!(!format!("{config:?} {:?}", Identity::new(&config).unwrap()).contains("hunter2"));
}

#[test]
fn files_are_beside_the_file_that_names_them() {
    let mut config = parse("jwt: { jwks: keys.json, secret_file: s }");
    config.resolve_against("/etc/tidegate".as_ref());
    let jwt = config.jwt.unwrap();
    assert_eq!(jwt.jwks.as_deref(), Some("/etc/tidegate/keys.json"));
    assert_eq!(jwt.secret_file.unwrap(), std::path::Path::new("/etc/tidegate/s"));
    let mut published = parse("jwt: { jwks: 'https://issuer.example/keys' }");
    published.resolve_against("/etc".as_ref());
    assert_eq!(published.jwt.unwrap().jwks.as_deref(), Some("https://issuer.example/keys"));
}

#[test]
fn the_schema_knows_every_field() {
    let schema = serde_json::to_value(schemars::schema_for!(IdentityConfig)).unwrap();
    let fields = schema["properties"].as_object().unwrap();
    for field in ["trusted_proxies", "hops", "api_key", "jwt", "ipv6_prefix", "composites"] {
        assert!(fields.contains_key(field), "{field}");
    }
}

#[test]
fn the_guide_shows_every_field_and_only_those() {
    let guide = include_str!("../../../src/identity/guide.md");
    let yaml = guide.split("```yaml").nth(1).unwrap().split("```").next().unwrap();
    let mut config = parse(yaml);
    let schema = serde_json::to_value(schemars::schema_for!(IdentityConfig)).unwrap();
    for field in schema["properties"].as_object().unwrap().keys() {
        assert!(yaml.contains(&format!("\n{field}:")), "{field}");
    }
    // Valid, except for the two that exclude each other, and keys that are elsewhere.
    config.hops = None;
    assert!(Identity::new(&config).is_ok());
}
