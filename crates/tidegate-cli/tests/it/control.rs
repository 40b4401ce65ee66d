//! `tidegate serve` with its control plane: how it starts, how a fleet follows what is published, and what it does while
//! parts of that are gone.

use std::fs;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate_testkit::{Postgres, Redis, eventually, http};

use crate::control_world::{Node, PATIENCE, RULES, rules_of, waited};

const FREE_PORTS: [&str; 8] =
    ["--http", "127.0.0.1:0", "--grpc", "off", "--resp", "off", "--admin", "127.0.0.1:0"];

#[test]
fn a_node_that_runs_rules_of_its_own_does_not_say_that_the_starter_rules_apply() {
    let mut node = Node::start("");
    assert!(node.server.stdout().contains("the starter rules apply"));
    assert_eq!(node.publish(&rules_of(5)).status, 200);
    node.come_back();
    assert!(!node.server.stdout().contains("the starter rules apply"), "{}", node.server.stdout());
}

#[test]
fn rules_of_files_are_read_only_and_keys_are_not() {
    let mut node = Node::start("rules: { paths: [rules.yaml] }");
    let rules = node.get("/rules");
    assert_eq!((&rules["source"], &rules["editable"]), (&json!("file"), &json!(false)));
    let edit_at = rules["edit_at"][0].as_str().unwrap();
    assert!(edit_at.ends_with("rules.yaml"), "{edit_at}");
    let refused = node.publish(&rules_of(5));
    assert_eq!(refused.status, 409, "{}", refused.text());
    assert_eq!(refused.json()["edit_at"][0], edit_at);

    assert!(node.allows("7"));
    let id = node.ban("7");
    assert!(!node.allows("7"));
    node.come_back();
    assert!(!node.allows("7"), "a ban outlives a restart");
    fs::write(node.dir.path().join("rules.yaml"), rules_of(9)).unwrap();
    node.runs(9);
    assert!(!node.allows("7"), "and a change of the files");
    assert_eq!(node.ask("DELETE", "/keys/overrides", &[], &json!({ "id": id })).status, 200);
    assert!(node.allows("7"));
}

#[test]
fn a_fleet_follows_one_nodes_database_through_redis() {
    let redis = Redis::start();
    let url = redis.url();
    let leader = Node::start(&format!("store: {{ url: '{url}' }}\nadmin: {{ node: leader }}"));
    eventually("the leader's rules are in force", PATIENCE, || leader.limit() == Some(100));
    let follower =
        Node::start(&format!("store: {{ url: '{url}' }}\nadmin: {{ node: follower, database: none }}"));
    let mut took = Vec::new();
    for limit in 4..9 {
        assert_eq!(leader.publish(&rules_of(limit)).status, 200);
        assert_eq!(leader.limit(), Some(limit), "who published sees it at once");
        took.push(waited("the follower runs it", || follower.limit() == Some(limit)));
    }
    took.sort();
    println!("a follower without a database ran each of 5 versions after {took:?}");
    // A machine that stalls for a moment is not what is tested.
    assert!(took[2] < Duration::from_secs(2), "{took:?}");

    let id = leader.ban("7");
    eventually("the ban acts on the follower", PATIENCE, || !follower.allows("7"));
    eventually("and is listed there", PATIENCE, || follower.get("/keys/overrides")["total"] == 1);
    assert_eq!(leader.ask("DELETE", "/keys/overrides", &[], &json!({ "id": id })).status, 200);
    eventually("and ends there", PATIENCE, || follower.allows("7"));

    eventually("both are seen, and run the same", PATIENCE, || {
        let nodes = follower.get("/nodes");
        nodes["converged"] == json!(true) && nodes["nodes"].as_array().unwrap().len() == 2
    });
    let notes = leader.notes();
    let of = |name: &str| notes.iter().find(|note| note["name"] == name).unwrap().clone();
    assert_eq!((&of("leader")["leads"], &of("follower")["leads"]), (&json!(true), &json!(false)));
    assert_eq!(of("follower")["version"], 6);
    assert!(of("follower")["started_at"].is_string() && of("follower")["release"].is_string());

    let refused = follower.publish(&rules_of(9));
    assert_eq!(refused.status, 409, "{}", refused.text());
}

#[test]
fn a_ban_reaches_the_fleet_without_all_others_being_sent_again() {
    let redis = Redis::start();
    let store = format!("store: {{ url: '{}' }}", redis.url());
    let leader = Node::start(&format!("{store}\nadmin: {{ node: leader }}"));
    assert_eq!(leader.publish(&rules_of(9)).status, 200);
    let follower = Node::start(&format!("{store}\nadmin: {{ node: follower, database: none }}"));
    follower.runs(9);
    let set = Node::heard_by(&redis);

    let (first, _) = (leader.ban("1"), leader.ban("2"));
    eventually("the bans act there", PATIENCE, || !follower.allows("1") && !follower.allows("2"));
    assert_eq!(leader.ask("DELETE", "/keys/overrides", &[], &json!({ "id": first })).status, 200);
    eventually("and one ends", PATIENCE, || follower.allows("1"));
    assert!(!follower.allows("2"));
    assert_eq!(Node::heard_by(&redis), set, "the set is the one that the rules were published with");

    let late = Node::start(&format!("{store}\nadmin: {{ node: late, database: none }}"));
    eventually("who starts now knows of both", PATIENCE, || late.limit() == Some(9) && !late.allows("2"));
    assert!(late.allows("1"));
    assert_eq!(leader.publish(&rules_of(8)).status, 200);
    follower.runs(8);
    assert!(!follower.allows("2"), "a new set has the bans in it");
    let id = leader.get("/keys/overrides")["overrides"][0]["id"].clone();
    assert_eq!(leader.ask("DELETE", "/keys/overrides", &[], &json!({ "id": id })).status, 200);
    eventually("and the last ends everywhere", PATIENCE, || follower.allows("2") && late.allows("2"));
}

#[test]
fn large_sets_of_rules_are_read_on_threads_that_give_way_to_requests() {
    let mut node = Node::start("");
    let pid = node.server.process().pid();
    let large: String = (0..5_000)
        .map(|number| {
            format!("- {{ name: rule-{number}, match: {{ path: '/{number}/*' }}, limits: [5/s] }}\n")
        })
        .collect();
    // Of the thread that everything else of the control plane runs on, and of all.
    let spent = || {
        let own = fs::read_to_string(format!("/proc/{pid}/task/{pid}/stat")).unwrap();
        [own, fs::read_to_string(format!("/proc/{pid}/stat")).unwrap()].map(|stat| {
            let fields: Vec<u64> = stat
                .rsplit(')')
                .next()
                .unwrap()
                .split_whitespace()
                .filter_map(|field| field.parse().ok())
                .collect();
            // Without the state, which is a letter.
            fields[10] + fields[11]
        })
    };
    let before = spent();
    for text in [format!("domain: api\nrules:\n{large}"), rules_of(9)] {
        assert_eq!(node.publish(&text).status, 200);
        assert_eq!(node.ask("GET", "/rules", &[], &Value::Null).status, 200);
        assert_eq!(http::get(node.admin, "/metrics").status, 200);
    }
    let [own, all] = [0, 1].map(|place| spent()[place] - before[place]);
    println!("{own} of {all} ticks on the control plane's thread");
    assert!(own * 4 < all, "{own} of {all}");
}

#[test]
fn nodes_start_and_go_on_while_the_database_is_gone() {
    let redis = Redis::start();
    let store = format!("store: {{ url: '{}' }}", redis.url());
    let mut postgres = Postgres::start();
    let config = format!("{store}\nadmin: {{ database: '{}' }}", postgres.new_database());
    let node = Node::start(&config);
    eventually("the starter rules are published", PATIENCE, || node.limit() == Some(100));
    assert_eq!(node.publish(&rules_of(55)).status, 200);
    eventually("the others can hear of it", PATIENCE, || Node::heard_by(&redis).contains("limit: 55"));
    postgres.kill();
    let late = Node::start(&config);
    late.runs(55);
    assert_eq!(node.limit(), Some(55));
    assert_eq!(late.publish(&rules_of(6)).status, 503, "changes wait for the database");
    postgres.start_again();
    eventually("it heals", PATIENCE, || late.publish(&rules_of(6)).status == 200);
    node.runs(6);
}

#[test]
fn a_node_with_a_database_of_its_own_follows_the_fleet_and_says_so() {
    let redis = Redis::start();
    let store = format!("store: {{ url: '{}' }}", redis.url());
    let first = Node::start(&format!("{store}\nadmin: {{ node: first }}"));
    eventually("its rules are in force", PATIENCE, || first.limit() == Some(100));
    assert_eq!(first.publish(&rules_of(55)).status, 200);
    eventually("the others can hear of it", PATIENCE, || Node::heard_by(&redis).contains("limit: 55"));
    let second = Node::start(&format!("{store}\nadmin: {{ node: second }}"));
    second.runs(55);
    let rules = second.get("/rules");
    assert_eq!((&rules["version"], &rules["editable"]), (&json!(2), &json!(false)));
    let refused = second.publish(&rules_of(6));
    assert_eq!((refused.status, first.limit()), (409, Some(55)), "{}", refused.text());
    assert!(refused.text().contains("another node"), "{}", refused.text());
    assert_eq!(first.publish(&rules_of(7)).status, 200);
    second.runs(7);

    let mut client = tidegate_testkit::resp::Client::connect(redis.addr());
    client.cmd(&["FLUSHALL"]);
    eventually("a store that forgot is told again", PATIENCE, || Node::heard_by(&redis).contains("limit: 7"));
    assert_eq!((first.limit(), second.limit()), (Some(7), Some(7)), "and nobody fell back to other rules");
}

#[test]
fn a_version_that_a_node_cannot_compile_is_shown_and_the_old_rules_go_on() {
    let redis = Redis::start();
    let store = format!("store: {{ url: '{}' }}", redis.url());
    let node = Node::start(&format!("{store}\nadmin: {{ database: none }}"));
    let publish = |revision: u64, text: &str| {
        let documents = json!([{ "domain": "api", "text": text }]);
        let set = json!({
            "lineage": "another-release", "version": revision, "overrides": 0,
            "documents": documents, "key_overrides": [],
        });
        let mut client = tidegate_testkit::resp::Client::connect(redis.addr());
        let revision = revision.to_string();
        let key = "tidegate:fleet{members}rules";
        client.cmd(&[
            "HSET",
            key,
            "lineage",
            "another-release",
            "revision",
            &revision,
            "set",
            &set.to_string(),
        ]);
    };
    publish(1, RULES);
    node.runs(3);
    publish(2, "domain: api\nrules: [{ name: per-user, limits: [1/s], from_the_future: 1 }]\n");
    eventually("it says so", PATIENCE, || node.notes()[0]["error"].is_string());
    let error = node.notes()[0]["error"].as_str().unwrap().to_owned();
    assert!(error.contains("version 2 does not compile"), "{error}");
    assert!(error.contains("from_the_future"), "{error}");
    assert_eq!((node.limit(), &node.notes()[0]["version"]), (Some(3), &json!(1)));
    publish(3, &rules_of(4));
    node.runs(4);
    assert_eq!(node.notes()[0]["error"], Value::Null);
}

#[test]
fn nodes_that_use_different_shards_are_noticed() {
    let shards: Vec<Redis> = (0..3).map(|_| Redis::start()).collect();
    let addresses: Vec<String> = shards.iter().map(|shard| shard.addr().to_string()).collect();
    let node = |shards: &[String]| {
        Node::start(&format!(
            "store: {{ url: 'redis+sharded://{}' }}\nadmin: {{ database: none }}",
            shards.join(",")
        ))
    };
    let (two, three) = (node(&addresses[..2]), node(&addresses));
    let warns = |node: &Node| {
        let nodes = node.get("/nodes");
        nodes["warnings"].to_string().contains("they do not count together")
    };
    eventually("both say so", PATIENCE, || warns(&two) && warns(&three));
}

#[test]
fn charts_show_what_all_nodes_decided() {
    let redis = Redis::start();
    // Whoever is late is decided otherwise, and this is about counting.
    let store = format!("store: {{ url: '{}', timeout: 5s }}", redis.url());
    let one = Node::start(&format!("{store}\nadmin: {{ node: one }}"));
    eventually("its rules are in force", PATIENCE, || one.limit() == Some(100));
    let other = Node::start(&format!("{store}\nadmin: {{ node: other, database: none }}"));
    other.runs(100);
    // Decided by the other node alone, and asked of this one.
    let decided = || -> f64 {
        let stats = one.get("/stats?from=1m&step=1s&rule=per-user");
        let columns = stats["series"].as_array().unwrap().iter().map(|series| series["allowed"].clone());
        columns.flat_map(|column| column.as_array().unwrap().clone()).filter_map(|rate| rate.as_f64()).sum()
    };
    for user in 0..20 {
        let body = format!(r#"{{"domain":"api","attributes":{{"user":"{user}"}}}}"#);
        let answer = http::post_json(other.http, "/v1/check", &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    eventually("the other node's decisions are shown here", PATIENCE, || decided() >= 20.0);
    let (minutes, nodes) =
        (one.get("/stats?from=1h&step=1m&rule=per-user"), one.get("/stats")["nodes"].clone());
    assert_eq!(nodes, 2);
    let minutes = minutes["series"][0]["allowed"].as_array().unwrap();
    assert!(minutes.iter().filter_map(Value::as_f64).sum::<f64>() > 0.0, "{minutes:?}");
}

#[test]
fn an_experiment_is_compared_over_all_nodes() {
    let redis = Redis::start();
    let store = format!("store: {{ url: '{}', timeout: 5s }}", redis.url());
    let one = Node::start(&format!("{store}\nadmin: {{ node: one }}"));
    let other = Node::start(&format!("{store}\nadmin: {{ node: other, database: none }}"));
    let rule = "{ name: tried, key: [user], limits: [1/hour], experiment: { split: 50%, limits: [2/hour] } }";
    assert_eq!(one.publish(&format!("domain: api\nrules:\n- {rule}\n")).status, 200);
    let ask = |node: &Node, user: u32| {
        let body = format!(r#"{{"domain":"api","attributes":{{"user":"{user}"}}}}"#);
        http::post_json(node.http, "/v1/check", &body)
    };
    let in_force = |node: &Node| node.get("/rules").to_string().contains("tried");
    eventually("both nodes have the rule", PATIENCE, || in_force(&one) && in_force(&other));
    // Each user asks once through either node: whoever may once is refused by the second, whoever may twice is not.
    let mut refused = 0;
    for user in 0..30 {
        assert_eq!(ask(&one, user).status, 200);
        refused += u64::from(ask(&other, user).status == 429);
    }
    let sums = || {
        let told = one.get("/rules/api/tried");
        let sides = told["experiment"].as_array().unwrap().clone();
        let sum = |variant: &str, what: &str| {
            sides
                .iter()
                .filter(|side| side["variant"] == variant)
                .map(|side| side[what].as_u64().unwrap())
                .sum::<u64>()
        };
        let sum = [
            ("control", "allowed"),
            ("control", "refused"),
            ("experiment", "allowed"),
            ("experiment", "refused"),
        ]
        .map(|(variant, what)| sum(variant, what));
        (told["experiment_of"].clone(), sum)
    };
    assert!((1..30).contains(&refused), "both sides have users");
    eventually("every decision of both nodes is shown", PATIENCE, || {
        sums() == ("fleet_last_day".into(), [refused, refused, 60 - 2 * refused, 0])
    });
}

impl Node {
    /// What is published to a fleet, as Redis holds it.
    fn heard_by(redis: &Redis) -> String {
        let mut client = tidegate_testkit::resp::Client::connect(redis.addr());
        match client.cmd(&["HGET", "tidegate:fleet{members}rules", "set"]) {
            tidegate_testkit::resp::Value::Bulk(set) => String::from_utf8(set).unwrap(),
            _ => String::new(),
        }
    }
}

#[test]
fn what_changed_is_logged_as_for_files_and_a_ban_compiles_no_rule() {
    let node = Node::start("");
    let publish = |rules: &str| {
        assert_eq!(node.publish(&format!("domain: api\nrules:\n{rules}")).status, 200);
    };
    publish("- { name: per-user, key: [user], limits: [100/minute] }\n");
    publish("- { name: per-user, key: [user], limits: [200/minute] }\n- { name: more, limits: [9/s] }\n");
    let says = |text: &'static str| {
        eventually(text, PATIENCE, || node.server.stderr().contains(text));
    };
    says("rules reloaded: +1 rules, ~1, -0: per-user 100/1m -> 200/1m; +more");
    let reloads = || node.server.stderr().matches("rules reloaded").count();
    let before = reloads();
    node.ban("7");
    says("key overrides reloaded");
    assert!(!node.allows("7"));
    assert_eq!(reloads(), before, "{}", node.server.stderr());
}

#[test]
fn a_damaged_database_stops_the_start_and_is_left_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tidegate.db");
    fs::write(&file, "what was left of it").unwrap();
    let mut serve = crate::tidegate(&["serve"]);
    serve.args(FREE_PORTS).arg("--data").arg(dir.path());
    let ran = serve.output().unwrap();
    let told = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert_eq!(ran.status.code(), Some(1), "{told}");
    assert!(
        told.contains("tidegate.db is damaged") && told.contains("hint: restore it from a backup"),
        "{told}"
    );
    assert_eq!(fs::read(&file).unwrap(), b"what was left of it");
}

#[test]
fn an_autopilot_publishes_its_step_as_a_version_with_its_reason() {
    let node = Node::start("decision_log: { admissions_one_in: 1 }");
    let limited = "limits: [{ algorithm: fixed_window, limit: 10, window: 1d }]";
    let steered = rules_of(3).replace("limits: [{ algorithm: fixed_window, limit: 3, window: 1d }]", limited)
        + "    autopilot: { min: 6, max: 50, step: 20%, every: 1s }\n";
    assert_eq!(node.publish(&steered).status, 200);
    node.runs(10);
    // Three thousand callers who ask once: enough to be 95 % sure that one a day would do.
    for first in (0..3_200).step_by(100) {
        let checks: Vec<Value> = (first..first + 100)
            .map(|user| json!({ "domain": "api", "attributes": { "user": format!("u{user}") } }))
            .collect();
        let body = json!({ "checks": checks }).to_string();
        assert_eq!(http::post_json(node.http, "/v1/check/batch", &body).status, 200);
    }
    // Down by a fifth at a time, and never below six: 10, 8, 7, 6.
    node.runs(6);
    let versions = node.get("/versions");
    let own: Vec<&Value> =
        versions["versions"].as_array().unwrap().iter().filter(|one| one["author"] == "autopilot").collect();
    assert_eq!(own.len(), 3, "{versions}");
    let first = own.last().unwrap()["reason"].as_str().unwrap();
    assert!(first.starts_with("autopilot: api/per-user: 10 -> 8: 99.9 % of "), "{first}");
    // The document is as it was written, but for the number.
    let text = node.get("/rules")["documents"][0]["text"].as_str().unwrap().to_owned();
    assert_eq!(text.trim_end(), steered.replace("limit: 10", "limit: 6").trim_end());
}

#[test]
fn usage_tells_what_is_left_under_every_rule_that_matches_and_spends_nothing() {
    let node = Node::start("");
    let day = |limit: u64| format!("{{ algorithm: fixed_window, limit: {limit}, window: 1d }}");
    let rules = format!(
        "domain: api\nrules:\n- {{ name: per-user, key: [user], limits: [{}] }}\n- {{ name: all, limits: [{}] }}\n\
         - {{ name: other, match: {{ path: /x }}, limits: [{}] }}\n",
        day(3),
        day(9),
        day(1)
    );
    assert_eq!(node.publish(&rules).status, 200);
    let body = r#"{"domain":"api","attributes":{"user":"a b"}}"#;
    assert_eq!(http::post_json(node.http, "/v1/check", body).status, 200);
    let asked = || http::get(node.http, "/v1/usage?domain=api&user=a%20b");
    for answer in [asked(), asked(), http::post_json(node.http, "/v1/usage", body)] {
        let usage = answer.json();
        let limits = usage["limits"].as_array().unwrap();
        let left: Vec<_> = limits.iter().map(|one| (&one["rule"], &one["used"], &one["remaining"])).collect();
        assert_eq!(
            left,
            [(&json!("per-user"), &json!(1), &json!(2)), (&json!("all"), &json!(1), &json!(8))],
            "{usage}"
        );
    }
    node.ban("a b");
    assert_eq!(asked().json()["banned"], json!(["(ban)"]));
    let nowhere = http::get(node.http, "/v1/usage?user=1");
    assert_eq!((nowhere.status, &nowhere.json()["field"]), (422, &json!("domain")));
}

#[test]
fn a_database_put_back_from_a_copy_is_followed_also_when_it_counts_to_the_same_number_again() {
    let (redis, dir) = (Redis::start(), tempfile::tempdir().unwrap());
    let [live, copy] = ["live", "copy"].map(|name| dir.path().join(name));
    let store = format!("store: {{ url: '{}' }}", redis.url());
    let database = live.join("rules.db");
    let mut leader = Node::start(&format!("{store}\nadmin: {{ database: 'sqlite:{}' }}", database.display()));
    let follower = Node::start(&format!("{store}\nadmin: {{ node: follower, database: none }}"));
    let put = |from: &std::path::Path, to: &std::path::Path| {
        let _ = fs::remove_dir_all(to);
        fs::create_dir(to).unwrap();
        for file in fs::read_dir(from).unwrap().map(|file| file.unwrap().path()) {
            fs::copy(&file, to.join(file.file_name().unwrap())).unwrap();
        }
    };
    assert_eq!(leader.publish(&rules_of(5)).status, 200);
    leader.server.process().kill();
    put(&live, &copy);
    leader.come_back();
    // What the copy does not know of: two versions and a ban.
    assert_eq!(leader.publish(&rules_of(6)).status, 200);
    assert_eq!(leader.publish(&rules_of(7)).status, 200);
    leader.ban("lost");
    eventually("the follower runs it", PATIENCE, || follower.limit() == Some(7) && !follower.allows("lost"));
    let revision = || field_of(&redis, "revision");
    eventually("it was told of", PATIENCE, || revision() == "5");

    leader.server.process().kill();
    put(&copy, &live);
    leader.come_back();
    assert_eq!(leader.limit(), Some(5));
    // As many changes as before, before anybody could see that it was set back.
    for limit in [8, 9] {
        assert_eq!(
            leader.publish_on(&leader.get("/rules")["version"].to_string(), &rules_of(limit)).status,
            200
        );
    }
    leader.ban("kept");
    eventually("the follower runs that", PATIENCE, || {
        follower.limit() == Some(9) && !follower.allows("kept")
    });
    assert!(follower.allows("lost"), "a ban that nobody can find is in nobody's way");
    assert_eq!(revision(), "5", "it is the same number");
}

fn field_of(redis: &Redis, name: &str) -> String {
    match redis.cmd(&["HGET", "tidegate:fleet{members}rules", name]) {
        tidegate_testkit::resp::Value::Bulk(bytes) => String::from_utf8(bytes).unwrap(),
        _ => String::new(),
    }
}

#[test]
fn rules_for_all_regions_are_refused_by_nodes_without_a_home() {
    let redis = Redis::start();
    let store = format!("store: {{ url: '{}' }}", redis.url());
    let home = format!("region: here\nregions: {{ home: '{}' }}", redis.url());
    let with = Node::start(&format!("{store}\n{home}\nadmin: {{ node: with }}"));
    eventually("the starter rules are in force", PATIENCE, || with.limit() == Some(100));
    assert_eq!(with.publish(&rules_of(55)).status, 200);
    let without = Node::start(&format!("{store}\nadmin: {{ node: without, database: none }}"));
    without.runs(55);

    let global = rules_of(6).replace("key: [user]", "key: [user]\n    scope: global");
    let body = json!({ "documents": [{ "domain": "api", "text": global }] });
    let dry = without.post("/rules/validate", &body).json();
    let (found, valid) = (&dry["diagnostics"][0], &dry["valid"]);
    assert_eq!((valid, &found["file"], &found["line"]), (&json!(false), &json!("api"), &json!(7)), "{dry}");
    assert!(found["hint"].as_str().unwrap().contains("regions: { home:"), "{dry}");
    assert_eq!(with.post("/rules/validate", &body).json()["valid"], true);

    assert_eq!(with.publish(&global).status, 200, "it has a home");
    with.runs(6);
    eventually("the other says so", PATIENCE, || without.get("/nodes").to_string().contains("has no home"));
    assert_eq!(without.limit(), Some(55), "the old rules go on");
    eventually("it logs it", PATIENCE, || without.server.stderr().contains("has no home"));
}

#[test]
fn rules_for_all_regions_are_not_published_where_they_have_no_home() {
    let node = Node::start("");
    eventually("the starter rules are in force", PATIENCE, || node.limit() == Some(100));
    let refused = node.publish(&rules_of(6).replace("key: [user]", "key: [user]\n    scope: global"));
    assert_eq!(refused.status, 422, "{}", refused.text());
    assert!(refused.text().contains("the domain `api` has no home"), "{}", refused.text());
    assert_eq!((node.limit(), &node.get("/rules")["version"]), (Some(100), &json!(1)));
}

#[test]
fn a_node_shows_its_home_and_two_regions_of_one_name_are_found() {
    let (stores, home) = ([Redis::start(), Redis::start()], Redis::start());
    let start = |place: usize, name: &str| {
        Node::start(&format!(
            "store: {{ url: '{}' }}\nregion: same\nregions: {{ home: '{}' }}\nadmin: {{ node: {name}, database: none }}",
            stores[place].url(),
            home.url()
        ))
    };
    let [one, two] = [start(0, "one"), start(0, "two")];
    let homes = |node: &Node| node.get("/nodes")["nodes"][0]["homes"][0].clone();
    eventually("both count at home", PATIENCE, || homes(&one)["fleet"] == 2 && homes(&two)["fleet"] == 2);
    let home_of_one = homes(&one);
    assert_eq!(home_of_one["store"], json!(home.addr().to_string()), "{home_of_one}");
    assert!(home_of_one["answered_ms_ago"].as_u64().is_some_and(|ago| ago < 20_000), "{home_of_one}");
    assert_eq!(
        (&home_of_one["share_hits"], &home_of_one["error"]),
        (&json!(0), &json!(null)),
        "{home_of_one}"
    );

    let other = start(1, "other");
    let says = |node: &Node, name: &str| {
        let warnings = node.get("/nodes")["warnings"].to_string();
        warnings.contains("two regions are called `same`") && warnings.contains(name)
    };
    eventually("each side hears of the other", PATIENCE, || {
        says(&one, "other") && says(&two, "other") && says(&other, "one, two")
    });
    assert!(one.server.stderr().contains("two regions are called `same`"));
    assert!(!one.get("/nodes")["warnings"].to_string().contains("two say"), "its own nodes are not meant");
}
