//! Every file below `test_data` is a test: those in `ok` compile, those in `err` give the text beside them.
//!
//! `UPDATE_EXPECT=1 cargo test -p tidegate-rules` writes those texts anew; read the difference before you commit it.

use std::fs;
use std::path::{Path, PathBuf};

use tidegate_rules::{Format, RuleSet, Source, load};

use crate::harness::NOW;

fn files(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("test_data").join(folder);
    let entries = fs::read_dir(&folder).expect("the folder is there");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("it can be read").path()).collect();
    files.retain(|path| path.is_dir() || path.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    assert!(!files.is_empty(), "no test files in {}", folder.display());
    files
}

/// The file, or the files of the folder, named without the path of this machine.
fn sources(path: &Path) -> Vec<Source> {
    let short = |source: Source| {
        let name =
            Path::new(&source.name).file_name().expect("a file has a name").to_string_lossy().into_owned();
        Source { name, ..source }
    };
    load(path).expect("test data can be read").into_iter().map(short).collect()
}

fn check_ok(folder: &str, format: Format) {
    for file in files(folder) {
        if let Err(wrong) = RuleSet::compile(&sources(&file), format) {
            panic!("{} should compile:\n{wrong}", file.display());
        }
    }
}

fn check_err(folder: &str, format: Format) {
    let mut wrong = Vec::new();
    for file in files(folder) {
        let shown = match RuleSet::compile_at(&[(&sources(&file), format)], Some(NOW)) {
            Ok(rules) => match rules.warnings() {
                Some(warnings) => format!("{warnings}\n"),
                None => panic!("{} should not compile", file.display()),
            },
            Err(diagnostics) => format!("{diagnostics}\n"),
        };
        let expected = file.with_extension("txt");
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            fs::write(&expected, &shown).expect("it can be written");
        }
        if fs::read_to_string(&expected).unwrap_or_default() != shown {
            wrong.push(format!("{}:\n{shown}", file.display()));
        }
    }
    assert!(wrong.is_empty(), "not what the .txt beside it says:\n\n{}", wrong.join("\n"));
}

#[test]
fn rule_files_without_mistakes_compile() {
    check_ok("ok", Format::Native);
}

#[test]
fn every_mistake_in_a_rule_file_is_shown_with_its_place_and_a_hint() {
    check_err("err", Format::Native);
}

#[test]
fn envoyproxy_ratelimit_files_compile_as_they_are() {
    check_ok("envoy/ok", Format::EnvoyRatelimit);
}

#[test]
fn every_mistake_in_an_envoyproxy_ratelimit_file_is_shown() {
    check_err("envoy/err", Format::EnvoyRatelimit);
}

#[test]
fn a_file_full_of_mistakes_shows_the_first_and_says_that_there_are_more() {
    let rules: String = (0..150).map(|number| format!("  - {{ name: rule{number} }}\n")).collect();
    let source = Source::new("many.yaml", format!("domain: api\nrules:\n{rules}"));
    let wrong = RuleSet::compile(&[source], Format::Native).expect_err("no rule has limits");
    assert_eq!(wrong.iter().len(), 100);
    assert!(wrong.to_string().ends_with("there may be more: reading stopped here"));
}

#[test]
fn mistakes_can_be_read_by_a_program() {
    let source =
        Source::new("rules.yaml", "domain: api\nrules:\n  - { name: a, limts: [1/s], limits: [1/s] }\n");
    let wrong = RuleSet::compile(&[source], Format::Native).expect_err("a field is misspelled");
    let expected = serde_json::json!([{
        "severity": "error",
        "file": "rules.yaml",
        "line": 3,
        "column": 16,
        "message": "unknown field `limts` in a rule",
        "hint": "did you mean `limits`?",
    }]);
    assert_eq!(serde_json::to_value(&wrong).expect("it is plain data"), expected);
}
