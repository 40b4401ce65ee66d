//! `tidegate rules`, `keys`, `top` and `login` against a running server.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Output, Stdio};

use serde_json::{Value, json};
use tidegate_testkit::{eventually, http};

use crate::control_world::{Node, PATIENCE, TOKEN, rules_of};
use crate::tidegate;

/// Runs a command as somebody who has the server's token.
fn run(node: &Node, words: &[&str]) -> Output {
    let mut command = tidegate(words);
    command.env("TIDEGATE_ADMIN", format!("http://{}", node.admin)).env("TIDEGATE_TOKEN", TOKEN);
    command.env("HOME", node.dir.path()).output().unwrap()
}

#[track_caller]
pub(crate) fn says(node: &Node, words: &[&str]) -> String {
    let output = run(node, words);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{words:?}: {out}{err}");
    out.into_owned()
}

#[track_caller]
fn json_of(node: &Node, words: &[&str]) -> Value {
    serde_json::from_str(&says(node, &[words, &["--output", "json"]].concat())).unwrap()
}

#[track_caller]
fn fails(node: &Node, words: &[&str]) -> String {
    let output = run(node, words);
    assert_eq!(output.status.code(), Some(1), "{words:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn rules_go_in_and_out_without_loss_and_back() {
    let node = Node::start("");
    let (files, out) = (node.dir.path().join("files"), node.dir.path().join("out"));
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let one = path(&node.dir.path().join("one"));
    assert_eq!(says(&node, &["rules", "export", &one]).trim(), format!("1 document is in {one}"));
    fs::create_dir(&files).unwrap();
    fs::write(files.join("api.yaml"), rules_of(4)).unwrap();
    fs::write(
        files.join("web.yaml"),
        "# The site.\ndomain: web\nrules: [{ name: all, limits: [5/s] }] # all\n",
    )
    .unwrap();
    says(&node, &["rules", "import", &path(&files), "--reason", "from git"]);
    assert_eq!(node.limit(), Some(4));
    let exported = says(&node, &["rules", "export", &path(&out)]);
    assert_eq!(exported.trim(), format!("2 documents are in {}", path(&out)));
    for file in ["api.yaml", "web.yaml"] {
        let [before, after] = [&files, &out].map(|dir| fs::read_to_string(dir.join(file)).unwrap());
        assert_eq!(before, after, "comments and all");
    }
    says(&node, &["rules", "import", &path(&out)]);
    assert_eq!(says(&node, &["rules", "get", "api"]).trim_end(), rules_of(4).trim_end());
    assert!(says(&node, &["rules", "get", "web", "all"]).starts_with("{ name: all, limits: [5/s] }"));
    let listed = json_of(&node, &["rules", "list"]);
    assert_eq!(listed["rules"].as_array().unwrap().len(), 2);

    fs::write(files.join("api.yaml"), rules_of(6)).unwrap();
    let file = path(&files.join("api.yaml"));
    let diff = says(&node, &["rules", "diff", &file]);
    assert!(diff.contains("limit: 4") && diff.contains("limit: 6"), "{diff}");
    says(&node, &["rules", "apply", &file, "--reason", "more"]);
    assert_eq!((node.limit(), node.get("/rules")["documents"].as_array().unwrap().len()), (Some(6), 2));
    let history = json_of(&node, &["rules", "history"]);
    let newest = &history["versions"][0];
    assert_eq!((&newest["reason"], &newest["author"]), (&json!("more"), &json!("configured")));
    let before = newest["parent"].to_string();
    says(&node, &["rules", "rollback", &before]);
    assert_eq!(node.limit(), Some(4));

    fs::write(files.join("api.yaml"), "domain: api\nrules: [{ name: a, limits: [1/parsec] }]\n").unwrap();
    let mistake = fails(&node, &["rules", "apply", &file]);
    assert!(mistake.contains("hint: units are") && mistake.matches("api:2:").count() == 1, "{mistake}");
    assert_eq!(node.limit(), Some(4), "nothing was published");
}

#[test]
fn diff_and_apply_say_which_counters_start_empty() {
    let node = Node::start("");
    let file = node.dir.path().join("api.yaml");
    let fixed = "{ algorithm: fixed_window, limit: 200, window: 1m }";
    fs::write(&file, says(&node, &["rules", "get", "api"]).replace("100/minute", fixed)).unwrap();
    let file = file.to_str().unwrap();
    let warning =
        "warning: counters of `per-user` start empty: sliding_log 100/1m becomes fixed_window 200/1m";
    let hint = "hint: to keep them, write { algorithm: sliding_log, limit: 200, window: 1m }";
    let beforehand = json_of(&node, &["rules", "diff", file]);
    assert_eq!(format!("warning: {}", beforehand["diagnostics"][0]["message"].as_str().unwrap()), warning);
    let applied = says(&node, &["rules", "apply", file]);
    assert!(applied.contains(warning) && applied.contains(hint), "{applied}");
}

#[test]
fn export_and_import_keep_every_domain() {
    let node = Node::start("");
    let out = node.dir.path().join("out");
    // The second sorts first, and had the first one's file.
    let domains = ["domain-0", "a/b", "A.b", "api"];
    let document = |domain: &&str| {
        let text = format!("# Of {domain}.\ndomain: {domain}\nrules: [{{ name: r, limits: [5/s] }}]\n");
        json!({ "domain": domain, "text": text })
    };
    let documents: Vec<Value> = domains.iter().map(document).collect();
    let on = format!("\"{}\"", node.get("/rules")["version"]);
    let body = json!({ "documents": documents, "reason": "" });
    assert_eq!(node.ask("PUT", "/rules", &[("if-match", &on)], &body).status, 200);
    let before = node.get("/rules")["documents"].clone();
    assert_eq!(before.as_array().unwrap().len(), domains.len());
    says(&node, &["rules", "export", out.to_str().unwrap()]);
    assert_eq!(fs::read_dir(&out).unwrap().count(), domains.len());
    says(&node, &["rules", "import", out.to_str().unwrap()]);
    assert_eq!(node.get("/rules")["documents"], before);
}

#[test]
fn an_edit_is_published_and_one_that_fails_is_kept() {
    let node = Node::start("");
    let editor = |script: &str| {
        let mut command = tidegate(&["rules", "edit", "api", "--reason", "by hand"]);
        command.env("TIDEGATE_ADMIN", format!("http://{}", node.admin)).env("TIDEGATE_TOKEN", TOKEN);
        command.env("PATH", std::env::var("PATH").unwrap()).env("TMPDIR", node.dir.path());
        command.env("EDITOR", script).output().unwrap()
    };
    let done = editor("sed -i s/100.minute/77\\\\/minute/");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(node.limit(), Some(77));
    let broken = editor("sed -i s/77.minute/many/");
    let told = String::from_utf8_lossy(&broken.stderr).into_owned();
    let kept = told.split("kept in ").nth(1).unwrap_or_else(|| panic!("{told}")).trim();
    assert!(fs::read_to_string(kept).unwrap().contains("many"));
    assert_eq!(node.limit(), Some(77));
}

#[test]
fn every_command_answers_a_program_in_json() {
    let node = Node::start("");
    let (file, out) = (node.dir.path().join("api.yaml"), node.dir.path().join("out"));
    fs::write(&file, rules_of(4)).unwrap();
    let (file, out) = (file.to_str().unwrap(), out.to_str().unwrap());
    let user = ["--domain", "api", "user=7"];
    assert_eq!(json_of(&node, &["rules", "diff", file])["documents"][0]["domain"], "api");
    assert_eq!(json_of(&node, &["rules", "apply", file])["version"], 2);
    let again = json_of(&node, &["rules", "apply", file]);
    assert_eq!((&again["version"], &again["changed"]), (&json!(2), &json!(false)), "the same is no version");
    assert_eq!(json_of(&node, &["rules", "list"])["version"], 2);
    assert_eq!(json_of(&node, &["rules", "get", "api"])["text"], rules_of(4));
    assert!(json_of(&node, &["rules", "get", "api", "per-user"])["text"].is_string());
    assert_eq!(json_of(&node, &["rules", "diff", "2"])["to"], 2);
    assert_eq!(json_of(&node, &["rules", "rollback", "1"])["version"], 3);
    assert_eq!(json_of(&node, &["rules", "import", file])["version"], 4);
    assert_eq!(json_of(&node, &["rules", "history"])["versions"][0]["number"], 4);
    assert_eq!(json_of(&node, &["rules", "export", out])["files"], json!(["api.yaml"]));
    let unchanged = tidegate(&["rules", "edit", "api", "--output", "json"])
        .env("TIDEGATE_ADMIN", format!("http://{}", node.admin))
        .env("TIDEGATE_TOKEN", TOKEN)
        .env("PATH", std::env::var("PATH").unwrap())
        .env("TMPDIR", node.dir.path())
        .env("EDITOR", "true")
        .output()
        .unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&unchanged.stdout).unwrap()["changed"], false);

    assert!(json_of(&node, &[&["keys", "get"], &user[..]].concat())["cells"].is_array());
    assert!(json_of(&node, &[&["keys", "reset"], &user[..]].concat())["cells"].is_u64());
    let ban = json_of(&node, &[&["keys", "ban"], &user[..]].concat());
    let own =
        json_of(&node, &[&["keys", "override", "--rule", "per-user", "--limit", "5/s"], &user[..]].concat());
    assert_eq!((&ban["action"], &own["action"]), (&json!("ban"), &json!("limits")));
    assert_eq!(json_of(&node, &["keys", "list", "--search", "7"])["total"], 2);
    assert_eq!(json_of(&node, &["keys", "lift", ban["id"].as_str().unwrap()])["id"], ban["id"]);
    assert!(json_of(&node, &["top", "--once"])["rules"].is_array());
}

#[test]
fn keys_are_looked_at_banned_overridden_and_reset() {
    let node = Node::start("");
    says(&node, &["check", "--server", &format!("http://{}", node.http), "--domain", "api", "user=7"]);
    let cells = json_of(&node, &["keys", "get", "--domain", "api", "user=7"]);
    let per_user = cells["cells"].as_array().unwrap().iter().find(|cell| cell["rule"] == "per-user").unwrap();
    assert_eq!((&per_user["used"], &per_user["remaining"]), (&json!(1), &json!(99)));
    says(&node, &["keys", "reset", "--domain", "api", "user=7"]);
    let cells = json_of(&node, &["keys", "get", "--domain", "api", "user=7"]);
    let per_user = cells["cells"].as_array().unwrap().iter().find(|cell| cell["rule"] == "per-user").unwrap();
    assert_eq!(per_user["used"], 0);

    let ban =
        json_of(&node, &["keys", "ban", "--domain", "api", "user=7", "--for", "1h", "--reason", "abuse"]);
    assert!(!node.allows("7") && node.allows("8"));
    let words =
        ["keys", "override", "--domain", "api", "--rule", "per-user", "user=8", "--limit", "5/minute"];
    says(&node, &words);
    assert_eq!(json_of(&node, &["keys", "list"])["total"], 2);
    says(&node, &["keys", "lift", ban["id"].as_str().unwrap()]);
    assert!(node.allows("7"));
    let wrong =
        fails(&node, &["keys", "override", "--domain", "api", "--rule", "none", "user=8", "--limit", "5/s"]);
    assert!(wrong.contains("has no rule `none`"), "{wrong}");
}

#[test]
fn a_look_at_a_banned_key_says_until_when_by_whom_and_why() {
    let node = Node::start("");
    let get = || says(&node, &["keys", "get", "--domain", "api", "user=7"]);
    assert!(!get().contains("banned"), "{}", get());
    let ban =
        json_of(&node, &["keys", "ban", "--domain", "api", "user=7", "--for", "1h", "--reason", "abuse"]);
    let text = |name: &str| ban[name].as_str().unwrap();
    let line = format!(
        "banned on every rule until {}, by {}: abuse (lift it with: tidegate keys lift {})",
        text("until"),
        text("author"),
        text("id")
    );
    assert_eq!(get(), format!("{line}\nits requests are refused, and spend nothing\n"));
}

#[test]
fn a_look_at_a_key_with_its_own_limits_says_so_above_its_cells() {
    let node = Node::start("");
    let own = ["keys", "override", "--domain", "api", "--rule", "per-user", "user=8", "--limit", "5/minute"];
    says(&node, &own);
    let text = says(&node, &["keys", "get", "--domain", "api", "user=8"]);
    let first = text.lines().next().unwrap();
    assert!(first.starts_with("has its own limits, 5/minute, on the rule per-user for ever, by "), "{text}");
    assert!(text.contains("\n RULE "), "{text}");
}

#[test]
fn top_shows_rules_and_nodes_with_their_rates() {
    let node = Node::start("admin: { node: limiter-7 }");
    eventually("a second with decisions is shown", PATIENCE, || {
        let body = r#"{"domain":"api","attributes":{"user":"7"}}"#;
        let _ = http::post_json(node.http, "/v1/check", body);
        let picture = json_of(&node, &["top"]);
        let rules = picture["rules"].as_array().unwrap();
        rules.iter().any(|rule| rule["rule"] == "per-user" && rule["allowed_per_s"].as_f64() > Some(0.0))
    });
    let text = says(&node, &["top"]);
    assert!(text.contains("limiter-7") && text.contains("per-user") && text.contains("all run it"), "{text}");
}

#[test]
fn a_log_in_link_is_made_through_the_database_or_with_a_token() {
    let node = Node::start("");
    let server = format!("http://{}", node.admin);
    let with_token = says(&node, &["login", "--admin", &server]);
    let data = node.server.data();
    let config = node.dir.path().join("tidegate.yaml");
    let mut command = tidegate(&["login", "--keep", "--admin", &server, "--data", data.to_str().unwrap()]);
    command.env("HOME", node.dir.path()).args(["--config", config.to_str().unwrap()]);
    let kept = command.output().unwrap();
    assert!(kept.status.success(), "{}", String::from_utf8_lossy(&kept.stderr));
    let mut command = tidegate(&["rules", "--admin", &server, "list"]);
    let listed = command.env("HOME", node.dir.path()).output().unwrap();
    assert!(
        listed.status.success(),
        "the token that was kept works: {}",
        String::from_utf8_lossy(&listed.stderr)
    );
    let code = with_token.trim().strip_prefix(&format!("{server}/#/login?code=")).unwrap().to_owned();
    let token = json!({ "token": code }).to_string();
    assert_eq!(http::post_json(node.admin, "/admin/v1/session", &token).status, 200);
    let mut command = tidegate(&["rules", "--admin", &server, "list"]);
    let nobody = command.env("HOME", "/nonexistent").output().unwrap();
    let told = String::from_utf8_lossy(&nobody.stderr).into_owned();
    assert!(told.contains("not signed in") && told.contains("tidegate login"), "{told}");
}

#[test]
fn a_kept_token_that_no_longer_works_does_not_keep_anybody_from_logging_in_beside_the_database() {
    let node = Node::start("");
    let server = format!("http://{}", node.admin);
    let kept = node.dir.path().join(".config/tidegate/tokens");
    fs::create_dir_all(kept.parent().unwrap()).unwrap();
    fs::write(&kept, format!("{} tg_0123456789abcdef0123456789abcdef\n", node.admin)).unwrap();
    let log_in = |data: &Path| {
        let mut command = tidegate(&["login", "--keep", "--admin", &server]);
        command.env("HOME", node.dir.path()).env("TIDEGATE_DATA", data).output().unwrap()
    };
    let elsewhere = log_in(&node.dir.path().join("nothing"));
    assert!(!elsewhere.status.success(), "without the database the token is all there is");
    let told = String::from_utf8_lossy(&elsewhere.stderr).into_owned();
    assert!(told.contains("does not accept this token") && told.contains("tidegate login --keep"), "{told}");
    let other = Node::start("");
    let told = String::from_utf8_lossy(&log_in(&other.server.data()).stderr).into_owned();
    assert!(told.contains("name the server's own database with its --data or --config"), "{told}");
    let done = log_in(&node.server.data());
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let mut command = tidegate(&["rules", "--admin", &server, "list"]);
    assert!(command.env("HOME", node.dir.path()).output().unwrap().status.success(), "the new token works");
}

/// `tidegate login -` with this link on standard input; tokens are kept in `home`.
fn log_in_with(link: &str, home: &Path) -> Output {
    let mut command = tidegate(&["login", "-"]);
    let command =
        command.env("HOME", home).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    writeln!(child.stdin.take().unwrap(), "{link}").unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn a_link_is_read_from_standard_input_and_survives_a_failure() {
    let node = Node::start("");
    let server = format!("http://{}", node.admin);
    let viewer = node.post("/tokens", &json!({ "name": "v", "role": "viewer" })).json()["token"].clone();
    let mut command = tidegate(&["login"]);
    command.env("TIDEGATE_ADMIN", &server).env("TIDEGATE_TOKEN", viewer.as_str().unwrap());
    let made = command.output().unwrap();
    let link = String::from_utf8(made.stdout).unwrap().trim().to_owned();
    assert!(link.starts_with(&format!("{server}/#/login?code=")), "{link}");

    let argument = tidegate(&["login", &link]).env("HOME", node.dir.path()).output().unwrap();
    let told = String::from_utf8_lossy(&argument.stderr).into_owned();
    assert!(!argument.status.success() && told.contains("tidegate login -"), "{told}");
    let home = node.dir.path().join("file");
    fs::write(&home, "no directory").unwrap();
    assert!(!log_in_with(&link, &home).status.success(), "there is no place to keep a token");

    let kept = log_in_with(&link, node.dir.path());
    let told = String::from_utf8_lossy(&kept.stdout).into_owned();
    assert!(told.contains("as viewer"), "{told}{}", String::from_utf8_lossy(&kept.stderr));
    let mut command = tidegate(&["rules", "--admin", &server, "list"]);
    let listed = command.env("HOME", node.dir.path()).output().unwrap();
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    assert!(!log_in_with(&link, node.dir.path()).status.success(), "it works once");
}

#[test]
fn suggest_without_traffic_says_what_it_looked_at() {
    let node = Node::start("decision_log: {}");
    for words in [&["rules", "suggest"][..], &["rules", "suggest", "nope"]] {
        let output = run(&node, words);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let said = "nothing to suggest yet: 1 node has no caller of these rules in the decision log";
        assert_eq!(out.trim(), said, "{err}");
        assert!(err.contains("hint: `tidegate rules list`") && !out.contains("has no requests"), "{err}");
    }
    assert_eq!(json_of(&node, &["rules", "suggest"])["rules"], json!([]));
}

#[test]
fn top_shows_callers_and_a_suggested_limit_becomes_a_shadow_rule() {
    let node = Node::start("decision_log: { admissions_one_in: 1, clear: ['*'] }");
    // What a terminal would act on is not shown as it is.
    for user in ["alice", "alice", "alice", "alice", r"b\u001b[2Job"] {
        let body = format!(r#"{{"domain":"api","attributes":{{"user":"{user}"}}}}"#);
        assert_eq!(http::post_json(node.http, "/v1/check", &body).status, 200);
    }
    let top = says(&node, &["top", "--once"]);
    assert!(top.contains("CALLER") && top.contains("user=alice") && !top.contains('\u{1b}'), "{top}");
    let callers = json_of(&node, &["top", "--once"])["callers"].clone();
    let is_alice = |one: &&Value| one["by"] == "used" && one["key"][0][1] == "alice";
    let alice = callers.as_array().unwrap().iter().find(is_alice).unwrap();
    assert_eq!((&alice["rule"], &alice["count"]), (&json!("api/per-user"), &json!(4)), "{callers}");
    let nearest = callers.as_array().unwrap().iter().find(|one| one["by"] == "near").unwrap();
    assert_eq!((&nearest["key"][0][1], &nearest["count"]), (&json!("alice"), &json!(4)), "{callers}");
    assert!(
        top.lines().any(|line| line.trim_start().starts_with("near") && line.contains("user=alice")),
        "{top}"
    );
    let suggested = says(&node, &["rules", "suggest"]);
    assert!(suggested.contains("SUGGESTED") && suggested.contains("per-"), "{suggested}");
    let rule = json_of(&node, &["rules", "suggest"])["rules"][0].clone();
    let [domain, rule] = ["domain", "rule"].map(|field| rule[field].as_str().unwrap().to_owned());
    let tried = says(&node, &["rules", "suggest", &domain, &rule, "--shadow", "--value", "9"]);
    assert!(tried.contains(&format!("{rule}-suggested")), "{tried}");
    assert!(says(&node, &["rules", "get", &domain, &format!("{rule}-suggested")]).contains("shadow: true"));
}

#[test]
fn on_a_terminal_top_shows_one_picture_after_the_other() {
    let node = Node::start("");
    let program = tidegate(&[]).get_program().to_owned();
    let shown = node.dir.path().join("shown");
    // `script` is a terminal to what it runs.
    let mut command = std::process::Command::new("script");
    command.args(["--quiet", "--flush", "--return", "--command"]);
    command.arg(format!("{} top --every 50ms", program.to_str().unwrap())).arg(&shown);
    command.env("TIDEGATE_ADMIN", format!("http://{}", node.admin)).env("TIDEGATE_TOKEN", TOKEN);
    command.env("HOME", node.dir.path());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut terminal = command.spawn().expect("`script`, of util-linux, is there");
    let read = || fs::read_to_string(&shown).unwrap_or_default();
    eventually("a third picture is shown", PATIENCE, || {
        let ended = terminal.try_wait().unwrap();
        assert!(ended.is_none(), "{ended:?}: {}", read());
        read().matches("\u{1b}[H\u{1b}[2J").count() >= 3
    });
    terminal.kill().unwrap();
    terminal.wait().unwrap();
}
