//! What people type who know another limiter, and the way out they are told: one row each.

use std::fs;

use crate::tidegate;

/// What a row is written into, or given to.
#[derive(Clone, Copy)]
enum Typed {
    /// A line of a rule.
    Rule(&'static str),
    /// A line of a limit.
    Limit(&'static str),
    /// A file given to a command.
    File(&'static str, &'static [&'static str]),
}
use Typed::{File, Limit, Rule};

const RULES: &str = "{ domain: api, rules: [{ name: a, key: [user], limits: [5/s] }] }";
const CONFIG: &str = "listen: { http: 127.0.0.1:0 }";
const ENVOY: &str = "{ domain: edge, descriptors: [{ key: path }] }";

const LIMITADOR: &str = "- { namespace: api, max_value: 10, seconds: 60, conditions: [], variables: [user] }";

/// What the same mistakes were answered with once, and what says nothing to whoever reads it.
const OLD_TEXTS: [&str; 7] = [
    "expected mapping start",
    "cannot be read",
    "/^/v",
    "did you mean `a`?",
    "write it as 10000",
    "invalid digit found",
    "cannot be used with",
];

const ROWS: &[(Typed, &str)] = &[
    (
        File(RULES, &["serve", "--config", "file.yaml"]),
        "give it to --rules, or check it alone: tidegate validate file.yaml",
    ),
    (
        File(RULES, &["validate", "--config", "file.yaml"]),
        "give it to --rules, or check it alone: tidegate validate file.yaml",
    ),
    (File("limits: { max_cells: 10 }", &["validate", "file.yaml"]), "give it to `--config`"),
    (File(CONFIG, &["serve", "--rules", "file.yaml"]), "give it to `--config`"),
    (File(CONFIG, &["validate", "file.yaml"]), "give it to `--config`"),
    (File(ENVOY, &["validate", "file.yaml"]), "`--envoy-config`"),
    (File(ENVOY, &["serve", "--rules", "file.yaml"]), "`--envoy-config`"),
    (Rule("match: { path: * }"), "quote it, as in \"*\""),
    (Rule("match: { path: *foo }"), "quote it, as in \"*\""),
    (Rule("overrides: [{ when: { user: x }, limits: [1/s] }]"), "did you mean `key_overrides`?"),
    (Rule("tiers: { on: plan, default: [10/minute] }"), "name a tier"),
    (Rule("limits: [unlimited]"), "write `limits: unlimited`"),
    (Rule("limits: [0.5/s]"), "write 1/2s"),
    (Rule("limits: [1,000/minute]"), "write 1000"),
    (Limit("{ algorithm: fixed_window, limit: 1,000, window: 1m }"), "such as 1000"),
    (Limit("{ algorithm: fixed_window, limit: \"1,000\", window: 1m }"), "write 1000"),
    (Limit("{ algorithm: fixed_window, limit: 5, window: quarter }"), "day, week, month and year"),
    (File("store: { timeout: 10 }", &["validate", "--config", "file.yaml"]), "10ms"),
    (Rule("match: { path: { prefix: /v1/ } }"), "write `path: \"/v1/*\"`"),
    (Rule("match: { path: { regex: '^/v1/.*' } }"), "write `path: \"/v1/*\"`"),
    (Rule("mode: shadow"), "did you mean `shadow`?"),
    (Rule("shadow_mode: true"), "did you mean `shadow`?"),
    (Limit("{ algorithm: fixed_window, limit: 5, window: day, timezone: UTC }"), "did you mean `tz`?"),
    (Limit("{ algorithm: token_bucket, rate: 5/s, capacity: 5 }"), "did you mean `burst`?"),
    (File(RULES, &["serve", "--http", "28080"]), "127.0.0.1:28080"),
    (File(LIMITADOR, &["validate", "file.yaml"]), "tidegate import limitador"),
    (Rule("match: { path: '^/v[0-9]+/' }"), "write `/v*/*`"),
    (Rule("shadow: 'yes'"), "write shadow: true"),
    (Rule("overrides: [b]"), "name another rule of this domain"),
    (File("limits: { max_cells: two }", &["validate", "--config", "file.yaml"]), "write it in digits"),
    (
        File("identity: { api_key: x-api-key }", &["validate", "--config", "file.yaml"]),
        "api_key: { header: x-api-key }",
    ),
    (
        File("identity: { trusted_proxies: 10.0.0.0/8 }", &["validate", "--config", "file.yaml"]),
        "trusted_proxies: [10.0.0.0/8",
    ),
    (
        File("store: redis://10.0.0.7", &["validate", "--config", "file.yaml"]),
        "store: { url: redis://127.0.0.1:6379 }",
    ),
    (File("rules: rules.yaml", &["validate", "--config", "file.yaml"]), "rules: { paths: [rules.yaml] }"),
    (File("log: debug", &["validate", "--config", "file.yaml"]), "log: { level: info }"),
    (File("admin: off", &["validate", "--config", "file.yaml"]), "listen: { admin: off }"),
    (File("log: { level: debug }", &["validate", "file.yaml"]), "give it to `--config`"),
    (
        File("telemetry: { statsd: 127.0.0.1:8125 }", &["validate", "--config", "file.yaml"]),
        "statsd: { address",
    ),
];

#[test]
fn what_is_often_mistyped_is_answered_with_what_to_write() {
    let dir = tempfile::tempdir().unwrap();
    for (typed, hint) in ROWS {
        let (text, args) = match *typed {
            Rule(line) => {
                let limits = if line.starts_with("limits") || line.starts_with("tiers") {
                    ""
                } else {
                    "    limits: [5/s]\n"
                };
                let text = format!("domain: api\nrules:\n  - name: a\n    key: [user]\n{limits}    {line}\n");
                (text, &["validate", "file.yaml"][..])
            }
            Limit(limit) => (
                format!("domain: api\nrules:\n  - name: a\n    limits:\n      - {limit}\n"),
                &["validate", "file.yaml"][..],
            ),
            File(text, args) => (text.to_owned(), args),
        };
        fs::write(dir.path().join("file.yaml"), &text).unwrap();
        let ran = tidegate(args).current_dir(dir.path()).output().unwrap();
        let told = String::from_utf8(ran.stderr).unwrap();
        let hints = told.lines().filter(|line| line.contains("hint: ")).collect::<Vec<_>>().join("\n");
        assert_eq!(ran.status.code(), Some(1), "{text}\n{args:?}\n{told}");
        assert!(hints.contains(hint), "{text}\n{args:?} should say `{hint}`:\n{told}");
        // What was typed is quoted in the lines with a number.
        let said: Vec<&str> = told.lines().filter(|line| !line.contains(" | ")).collect();
        let old = OLD_TEXTS.iter().find(|old| said.iter().any(|line| line.contains(**old)));
        assert_eq!(old, None, "{text}\n{args:?}:\n{told}");
    }
}

#[test]
fn tools_of_yaml_1_1_may_write_on_as_a_truth_value() {
    let dir = tempfile::tempdir().unwrap();
    for on in ["on", "true", "\"on\""] {
        let text = format!(
            "domain: api\nrules:\n  - name: plan\n    tiers:\n      {on}: plan\n      default: free\n      free: [5/s]\n      pro: [9/s]\n"
        );
        fs::write(dir.path().join("file.yaml"), text).unwrap();
        let args = ["explain", "--rules", "file.yaml", "--domain", "api", "plan=pro"];
        let ran = tidegate(&args).current_dir(dir.path()).output().unwrap();
        let told = String::from_utf8_lossy(&ran.stdout).into_owned();
        assert!(told.contains("(from tier pro)"), "{on}: {told}{}", String::from_utf8_lossy(&ran.stderr));
    }
}
