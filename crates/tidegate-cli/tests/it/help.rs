//! What a person sees who knows nothing yet.

use insta::assert_snapshot;

use crate::{run, tidegate};

#[test]
fn no_arguments_shows_what_there_is() {
    assert_snapshot!(run(&[]));
}

#[test]
fn every_command_explains_itself_with_examples() {
    let listed = tidegate(&["--help"]).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let commands =
        listed.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    // What is indented deeper goes on from the line before.
    let commands = commands.filter_map(|line| line.strip_prefix("  ")).filter(|line| !line.starts_with(' '));
    let commands: Vec<&str> = commands.filter_map(|line| line.split(' ').next()).collect();
    assert!(commands.len() > 5, "{commands:?}");
    for command in commands.into_iter().filter(|command| *command != "help") {
        let help = run(&["help", command]);
        assert!(help.starts_with("exit 0"), "{command}: {help}");
        assert!(help.contains("Examples:\n  "), "{command}: {help}");
    }
}

#[test]
fn a_mistyped_command_is_told_the_right_one() {
    assert_snapshot!(run(&["valdate", "rules.yaml"]));
}

#[test]
fn a_mistyped_flag_is_told_the_right_one() {
    assert_snapshot!(run(&["check", "--domian", "api"]));
}

#[test]
fn the_version_is_the_packages() {
    assert_eq!(
        run(&["--version"]),
        format!("exit 0\n--- stdout\ntidegate {}\n--- stderr\n", env!("CARGO_PKG_VERSION"))
    );
}
