//! What users read is in the field's words: documentation, schemas, OpenAPI, and the strings and public documentation that the
//! references are generated from.

use crate::expect_none;
use crate::files::{Source, sources};

/// Phrases of a private dialect, each with what says it.
const BANNED: [(&str, &str); 19] = [
    ("so many", "a number of, how many, at most `limit`"),
    ("speaks of", "has a rule for"),
    ("speak of", "have a rule for"),
    ("nobody knows", "is unknown"),
    ("is away", "is unavailable"),
    ("are away", "are unavailable"),
    ("what there is", "which are available"),
    ("those there are", "the known ones"),
    ("by itself", "automatically, on its own"),
    ("is told", "is returned"),
    ("are told", "are returned"),
    ("was told", "was returned"),
    ("for want of", "because it lacks"),
    ("may not be meant so", "warning"),
    ("nobody wants to hear", "silenced"),
    ("what is the matter", "active alerts"),
    ("whom to turn away", "what to shed"),
    ("leads nowhere", "must be above 0"),
    ("left it", "skipped"),
];

/// Crates whose strings nobody but us reads.
const UNSPOKEN: [&str; 1] = ["tidegate-testkit"];

/// Crates whose public documentation is read before anything else.
const DOCUMENTED: [&str; 2] = ["tidegate", "tidegate-tower"];

#[test]
fn what_users_read_has_no_banned_phrase() {
    let mut found = Vec::new();
    for file in sources() {
        for (number, line) in shown(&file) {
            let line = line.to_lowercase();
            for (phrase, instead) in BANNED.iter().filter(|(phrase, _)| has_words(&line, phrase)) {
                found.push(format!("{}:{number}: `{phrase}`, better: {instead}", file.path));
            }
        }
    }
    expect_none(&found, "say it in the words of the glossary, then generate the references anew");
}

/// The lines of a file that users see, as far as they see them, with their numbers.
fn shown(file: &Source) -> Vec<(usize, String)> {
    let is_below = |folders: &[&str]| folders.iter().any(|folder| file.path.starts_with(folder));
    let is_page = file.path.ends_with(".md") && (is_below(&["docs/", "crates/"]) || file.path == "README.md");
    let is_document = ["openapi.json", "schema.json"].iter().any(|end| file.path.ends_with(end));
    let is_shipped = is_below(&["deploy/", "examples/", "clients/"]) && !file.path.contains("test");
    let lines = || file.text.lines().enumerate().map(|(at, line)| (at + 1, line));
    if is_page || is_document || is_shipped {
        return lines().map(|(number, line)| (number, line.to_owned())).collect();
    }
    let Some((krate, inside)) = file.path.strip_prefix("crates/").and_then(|path| path.split_once('/'))
    else {
        return Vec::new();
    };
    let is_test = inside.contains("tests");
    if !inside.starts_with("src/") || !file.is_rust() || is_test || UNSPOKEN.contains(&krate) {
        return Vec::new();
    }
    // clap and schemars print the documentation of these.
    let is_documented =
        DOCUMENTED.contains(&krate) || inside.starts_with("src/args/") || inside.starts_with("src/settings/");
    let product = || lines().take_while(|(_, line)| line.trim() != "#[cfg(test)]");
    let comments = product().filter_map(|(number, line)| {
        let line = line.trim_start();
        let comment = line.strip_prefix("///").or(line.strip_prefix("//!"))?;
        is_documented.then(|| (number, comment.to_owned()))
    });
    let code = product().filter(|(_, line)| !line.trim_start().starts_with("//"));
    comments.chain(strings(code)).collect()
}

/// The strings of some lines of code, each with the number of the line it begins on, and joined where it goes over several.
fn strings<'a>(code: impl Iterator<Item = (usize, &'a str)>) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut is_inside = false;
    for (number, line) in code {
        // Where an item ends, no string goes on: a quotation mark in a raw string is not counted beyond.
        is_inside &= !line.starts_with('}');
        let line = line.replace(r#"\""#, "'").replace("'\"'", "");
        let mut parts = line.split('"');
        if is_inside && let (Some(part), Some((_, text))) = (parts.next(), found.last_mut()) {
            text.push_str(part.trim_start().trim_end_matches('\\'));
        } else {
            parts.next();
        }
        for part in parts {
            is_inside = !is_inside;
            if is_inside {
                found.push((number, part.trim_end_matches('\\').to_owned()));
            }
        }
    }
    found
}

/// Whether the phrase is there as whole words.
fn has_words(text: &str, phrase: &str) -> bool {
    let is_word = |letter: Option<char>| letter.is_some_and(char::is_alphanumeric);
    text.match_indices(phrase).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + phrase.len()..]);
        !is_word(before.chars().next_back()) && !is_word(after.chars().next())
    })
}

#[test]
fn a_phrase_is_found_as_whole_words_and_in_what_is_shown_alone() {
    assert!(has_words("at most so many hits", "so many") && !has_words("also many", "so many"));
    let text = "/// Nobody is told.\nfn f() {\n    // is told\n    g(\"x is told y\");\n}\n".to_owned();
    let file = |path: &str| Source { path: path.to_owned(), text: text.clone() };
    let lines = |path: &str| shown(&file(path)).iter().filter(|(_, line)| has_words(line, "is told")).count();
    assert_eq!(lines("crates/tidegate/src/lib.rs"), 2);
    assert_eq!(lines("crates/tidegate-server/src/lib.rs"), 1);
    assert_eq!(lines("crates/tidegate-server/tests/it/main.rs"), 0);
    let text = "f(\"a \\\"b\\\" is \\\n    told c\");\n// is told\ng(\"d\");\n";
    let lines = text.lines().enumerate().filter(|(_, line)| !line.starts_with("//"));
    assert_eq!(strings(lines), [(0, "a 'b' is told c".to_owned()), (3, "d".to_owned())]);
}
