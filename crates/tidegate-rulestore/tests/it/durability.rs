//! `kill -9` at any moment: what was acknowledged is there, and no version is ever half there.

use std::fs;
use std::process::Command;
use std::time::Duration;

use tidegate_rulestore::RuleStore;
use tidegate_testkit::{Process, eventually};

use crate::world::{Database, on_both, publish, run, set};

const URL: &str = "TIDEGATE_TEST_DATABASE";
const DOMAINS: [&str; 5] = ["a", "b", "c", "d", "e"];
const PUBLISHES: u64 = 100;
/// The number of acknowledged publishes before a child is killed.
const LIVES_FOR: u64 = 17;

on_both!(a_hundred_publishes_with_kills_in_between_lose_none, |database| {
    let store = database.store().await;
    let mut kills = 0;
    while store.head().await.unwrap().version < PUBLISHES {
        let acknowledged = killed_publisher(&database);
        kills += 1;
        let head = store.head().await.unwrap().version;
        assert!(head >= acknowledged, "{acknowledged} was acknowledged, and {head} is in force");
        for version in acknowledged.saturating_sub(LIVES_FOR).max(1)..=head {
            assert_whole(&store, version).await;
        }
    }
    println!("{kills} kills in {PUBLISHES} publishes");
});

/// Every document of a version names its version.
async fn assert_whole(store: &RuleStore, version: u64) {
    let text = version.to_string();
    let expected = set(&DOMAINS.map(|domain| (domain, text.as_str())));
    assert_eq!(store.documents(version).await.unwrap(), expected, "version {version}");
    assert!(store.version(version).await.unwrap().is_some());
}

/// Starts a child that publishes, kills it meanwhile, and returns the last version that was acknowledged.
fn killed_publisher(database: &Database) -> u64 {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "durability::publisher", "--nocapture"]).env(URL, &database.url);
    let mut child = Process::spawn("publisher", &command, dir.path());
    let acknowledged = |child: &Process| -> Vec<u64> {
        let out = child.stdout();
        let lines = out.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
        lines.filter_map(|line| line.strip_prefix("acknowledged ")?.parse().ok()).collect()
    };
    eventually("it publishes", Duration::from_secs(60), || {
        let heard = acknowledged(&child);
        heard.len() as u64 >= LIVES_FOR || heard.last().is_some_and(|last| *last >= PUBLISHES)
    });
    child.kill();
    let last = acknowledged(&child).last().copied().unwrap_or_default();
    drop(fs::remove_dir_all(dir.path()));
    last
}

#[test]
#[ignore = "started, and killed, by another test"]
fn publisher() {
    let Ok(url) = std::env::var(URL) else { return };
    run(async {
        let store = RuleStore::open(&url.parse().unwrap()).unwrap();
        loop {
            let head = store.head().await.unwrap().version;
            let text = (head + 1).to_string();
            let documents = set(&DOMAINS.map(|domain| (domain, text.as_str())));
            let version = publish(&store, head, &documents, "").await.unwrap();
            println!("\nacknowledged {}", version.number);
        }
    });
}
