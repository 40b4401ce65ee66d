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

/// The fenced blocks of every guide that are whole rule files, named by where they stand.
fn examples() -> Vec<Source> {
    let guides = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guides");
    let mut paths: Vec<PathBuf> = fs::read_dir(guides)
        .expect("there are guides")
        .map(|entry| entry.expect("readable").path())
        .collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    paths.sort();
    paths.iter().flat_map(|path| examples_of(path)).collect()
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
