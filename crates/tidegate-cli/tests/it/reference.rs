//! docs/reference: what is generated is current, and what its examples show is what happens.
//!
//! `UPDATE_EXPECT=1 cargo test -p tidegate-cli --test it reference` writes the generated parts anew; read the difference
//! before you commit it. Hand-written text around them stays as it is.

mod by_path;
mod console;
mod generate;
mod terminal;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;
use tidegate_testkit::{Redis, TidegateServer, eventually, http};

use crate::redis_world::{Node, PATIENCE, PATIENT, check};
use crate::reference::console::{blocks, check_console};
use crate::run_in;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every page of a folder below `docs`, by its path.
fn pages(folder: &str) -> Vec<(PathBuf, String)> {
    let entries = fs::read_dir(root().join("docs").join(folder)).expect("the folder is there");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    paths.sort();
    assert!(!paths.is_empty(), "no pages in docs/{folder}");
    paths.into_iter().map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

#[test]
fn what_is_generated_is_current() {
    let mut stale = Vec::new();
    let mut parts = generate::parts();
    for (path, text) in pages("reference") {
        let page = path.file_name().unwrap().to_str().unwrap().to_owned();
        let mut current = text.clone();
        for (name, part) in parts.extract_if(.., |(of, ..)| *of == page).map(|(_, name, part)| (name, part)) {
            current = generate::put(&current, name, &part)
                .unwrap_or_else(|| panic!("{page} has no place for the generated part `{name}`"));
        }
        if current != text {
            if std::env::var_os("UPDATE_EXPECT").is_some() {
                fs::write(&path, &current).unwrap();
            }
            stale.push(page);
        }
    }
    assert!(
        parts.is_empty(),
        "there is no page for {:?}",
        parts.iter().map(|(page, ..)| page).collect::<Vec<_>>()
    );
    assert!(
        stale.is_empty(),
        "{stale:?} are not what the binary says: UPDATE_EXPECT=1 cargo test -p tidegate-cli --test it reference"
    );
}

/// Every page that shows rules or configurations, or what a command prints.
fn all_pages() -> Vec<(PathBuf, String)> {
    let readme = root().join("README.md");
    let folders = ["reference", "start", "guides", "operate", "coming-from"].into_iter().flat_map(pages);
    folders.chain([(readme.clone(), fs::read_to_string(readme).unwrap())]).collect()
}

#[test]
fn every_rule_file_and_configuration_in_the_documentation_is_valid() {
    let dir = tempfile::tempdir().unwrap();
    fs::copy(root().join("docs/reference/example.yaml"), dir.path().join("example.yaml")).unwrap();
    fs::write(dir.path().join("flags.yaml"), "new-limits: true\n").unwrap();
    fs::write(dir.path().join("admin-tokens"), "0123456789abcdef0123456789abcdef\n").unwrap();
    let mut seen = [0, 0];
    // That of the proxy names certificates: `proxy::the_configuration_in_the_guide_is_one` checks it.
    for (path, text) in all_pages().into_iter().filter(|(path, _)| !path.ends_with("guides/proxy.md")) {
        for block in blocks(&text, "yaml") {
            let is_rules = block.starts_with("domain:");
            fs::write(dir.path().join("file.yml"), &block).unwrap();
            let args: &[&str] = if is_rules { &["file.yml"] } else { &["--config", "file.yml"] };
            let ran = run_in(dir.path(), &[&["validate"], args].concat());
            assert!(ran.starts_with("exit 0"), "{}:\n{block}\n{ran}", path.display());
            seen[usize::from(is_rules)] += 1;
        }
    }
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
}

#[test]
fn every_console_example_of_the_documentation_happens_as_it_is_shown() {
    let mut shown = 0;
    for (path, text) in all_pages() {
        let blocks = blocks(&text, "console");
        if !blocks.is_empty() {
            shown += blocks.len();
            check_console(&root(), &path, &blocks);
        }
    }
    assert!(shown > 5, "only {shown} examples found");
}

#[test]
fn the_picture_of_a_terminal_shows_what_was_printed_for_the_readme() {
    let readme = root().join("README.md");
    let blocks = blocks(&fs::read_to_string(&readme).unwrap(), "console");
    let shown: Vec<(String, String)> = blocks.iter().flat_map(|block| console::commands(block)).collect();
    let path = root().join("docs/images/terminal.svg");
    let is_current = || fs::read_to_string(&path).is_ok_and(|now| terminal::is_of(&now, &shown));
    // Only then: some of what is printed differs each time.
    if std::env::var_os("UPDATE_EXPECT").is_some() && !is_current() {
        fs::write(&path, terminal::picture(&check_console(&root(), &readme, &blocks))).unwrap();
    }
    assert!(is_current(), "UPDATE_EXPECT=1 cargo test -p tidegate-cli --test it reference");
}

#[test]
fn the_guides_say_how_a_configuration_is_given_to_the_server() {
    for (path, text) in pages("guides") {
        // A block that is no rule file is a configuration, or a part of one.
        let has_config = blocks(&text, "yaml").iter().any(|block| !block.starts_with("domain:"));
        assert!(
            !has_config || text.contains("--config"),
            "{} shows a configuration and not `--config`",
            path.display()
        );
    }
}

/// The words of the `tidegate serve` commands of a page, their lines joined and without variables.
fn servers(text: &str) -> Vec<Vec<String>> {
    let joined = blocks(text, "sh").join("").replace("\\\n", " ");
    let lines = joined.lines().filter(|line| line.contains("--store redis://"));
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    lines.map(|line| words(line.split_once("tidegate serve").expect("a server").1)).collect()
}

#[test]
fn two_nodes_started_as_the_first_page_says_count_together() {
    let page = fs::read_to_string(root().join("docs/start/ten-minutes.md")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let rules = dir.path().join("rules.yaml");
    fs::write(&rules, &blocks(&page, "yaml")[0]).unwrap();
    let redis = Redis::start();
    let commands = servers(&page);
    assert_eq!(commands.len(), 2, "{commands:?}");
    let mut nodes: Vec<TidegateServer> = commands
        .iter()
        .map(|words| {
            let mut words: Vec<String> = words
                .iter()
                .map(|word| match word.as_str() {
                    "rules.yaml" => rules.display().to_string(),
                    "redis://127.0.0.1:6379" => redis.url(),
                    address if address.starts_with("127.0.0.1:") => "127.0.0.1:0".to_owned(),
                    other => other.to_owned(),
                })
                .collect();
            if !words.contains(&"--http".to_owned()) {
                words.extend(["http", "grpc", "resp", "admin"].map(|name| format!("--{name}=127.0.0.1:0")));
            }
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            TidegateServer::start_with_env(
                env!("CARGO_BIN_EXE_tidegate"),
                &words,
                &[("TIDEGATE_STORE__TIMEOUT", "5s")],
            )
        })
        .collect();
    let mut ask = |node: usize, cost: u64| {
        let body = json!({ "domain": "api", "attributes": { "user": "42" }, "cost": cost }).to_string();
        http::post_json(nodes[node].addr("http"), "/v1/check", &body).json()
    };
    assert_eq!(ask(0, 50)["allowed"], true);
    eventually("the bucket is full again", PATIENCE, || ask(1, 50)["allowed"] == true);
    let refused = ask(0, 1);
    assert_eq!((&refused["allowed"], &refused["limit"]), (&json!(false), &json!(100)), "{refused}");
}

#[test]
fn the_settings_for_redis_in_the_guide_can_be_pasted() {
    let guide = fs::read_to_string(root().join("docs/operate/stores.md")).unwrap();
    let block = blocks(&guide, "conf").pop().expect("the guide shows a redis.conf");
    let redis = Redis::builder().config(&block).start();
    for (name, value) in [("maxmemory-policy", "noeviction"), ("hz", "100"), ("lazyfree-lazy-expire", "yes")]
    {
        assert_eq!(redis.cmd(&["CONFIG", "GET", name]).array()[1].text(), value, "{name}");
    }
    let node = Node::ready(&redis.url(), PATIENT, "- { name: a, key: [user], limits: [5/h] }");
    let answer = check(&mut node.client(), &[("user", "42")], 1);
    assert!(answer.allowed && answer.source == "store", "{answer:?}");
}
