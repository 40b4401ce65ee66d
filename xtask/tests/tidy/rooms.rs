//! The rooms of the limiter know only those below them, so that each can be read and changed alone.

use crate::expect_none;
use crate::files::sources;

/// Each room, and the modules that it must not know.
const ROOMS: &[(&str, &[&str])] = &[
    ("deny_cache", &["local", "remote", "check", "shed", "limiter"]),
    ("local", &["deny_cache", "remote", "check", "shed", "limiter"]),
    ("remote", &["check", "shed", "limiter"]),
    ("shed", &["deny_cache", "local", "remote", "check", "limiter"]),
];

#[test]
fn no_room_of_the_limiter_knows_one_above_it() {
    let mut violations = Vec::new();
    let mut seen = 0;
    for file in sources() {
        for (room, above) in ROOMS {
            if !file.path.starts_with(&format!("crates/tidegate-limiter/src/{room}/")) {
                continue;
            }
            seen += 1;
            let knows = |line: &str| above.iter().any(|other| line.contains(&format!("crate::{other}::")));
            violations.extend(file.lines_where(knows));
        }
    }
    assert!(seen > 10, "the rooms have moved: put their new places into this list");
    expect_none(&violations, "pass what is needed as an argument, or move it to the room that needs it");
}
