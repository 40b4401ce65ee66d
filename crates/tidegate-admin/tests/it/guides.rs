//! The rules in the guides are rules: they compile, and without a warning.

use std::fs;
use std::path::{Path, PathBuf};

use tidegate_rules::{Format, RuleSet, Source};

#[test]
fn every_rule_file_in_the_guides_compiles() {
    let examples = examples();
    assert!(examples.len() >= 5, "only {} examples found", examples.len());
    for example in examples {
        let format = Format::of(&example);
        let rules = RuleSet::compile(&[example], format).unwrap_or_else(|mistakes| panic!("{mistakes}"));
        assert!(rules.warnings().is_none(), "{}", rules.warnings().expect("some"));
    }
}

#[test]
fn the_changes_that_the_guides_show_keep_their_counters() {
    let mut shown = 0;
    for line in guides().iter().flat_map(|path| lines_of(path)) {
        let Some((_, changes)) = line.split_once("rules reloaded: ") else { continue };
        let Some((_, change)) = changes.split_once("-0: ") else { continue };
        let change = change.split(';').next().expect("there is a first");
        let [name, before, "->", after] = change.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{change}")
        };
        let rules = |limit: &str| {
            let text = format!("{{ domain: api, rules: [{{ name: {name}, limits: [{limit}] }}] }}");
            RuleSet::compile(&[Source::new("rules.yaml", text)], Format::Native).expect("a limit")
        };
        let changes = rules(after).changes_since(&rules(before));
        assert_eq!(changes.to_string(), format!("+0 rules, ~1, -0: {change}"));
        assert_eq!(changes.lost, [], "{line}");
        shown += 1;
    }
    assert!(shown >= 2, "only {shown} changes found");
}

/// The fenced blocks of every guide that are whole rule files, named by where they stand.
fn examples() -> Vec<Source> {
    guides().iter().flat_map(|path| examples_of(path)).collect()
}

fn lines_of(path: &Path) -> Vec<String> {
    fs::read_to_string(path).expect("a guide is text").lines().map(str::to_owned).collect()
}

fn guides() -> Vec<PathBuf> {
    let guides = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guides");
    let mut paths: Vec<PathBuf> = fs::read_dir(guides)
        .expect("there are guides")
        .map(|entry| entry.expect("readable").path())
        .collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    paths.sort();
    paths
}

fn examples_of(path: &Path) -> Vec<Source> {
    let text = fs::read_to_string(path).expect("a guide is text");
    let mut found = Vec::new();
    let mut block: Option<(usize, String)> = None;
    for (number, line) in (1..).zip(text.lines()) {
        match (&mut block, line) {
            (None, "```yaml") => block = Some((number + 1, String::new())),
            (Some((start, body)), "```") => {
                if body.starts_with("domain:") {
                    found.push(Source::new(format!("{}:{start}", path.display()), body.clone()));
                }
                block = None;
            }
            (Some((_, body)), line) => {
                body.push_str(line);
                body.push('\n');
            }
            (None, _) => {}
        }
    }
    assert!(block.is_none(), "a fenced block of {} does not end", path.display());
    found
}
