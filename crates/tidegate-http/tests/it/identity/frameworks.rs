//! What real frameworks read in a request, asked of them: where one reads our caller, so does identity.
//!
//! Cases are combined from pieces. The oracle is each framework's own parser; a case that no framework reads as the caller
//! proves nothing and is not counted.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use http::{HeaderName, HeaderValue};
use serde_json::{Value, json};
use tidegate_http::identity::{Identity, hash_secret};

use super::{get, identity, tokens};

/// The tool called `name`: where its variable says, or in the private environment.
fn tool(name: &str, private: &str) -> PathBuf {
    let chosen = std::env::var_os(format!("TIDEGATE_TOOL_{name}")).filter(|path| !path.is_empty());
    let private = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools").join(private);
    let path = chosen.map_or(private, PathBuf::from);
    assert!(path.exists(), "there is no {}\nhint: run `cargo xtask tools`", path.display());
    path
}

fn python() -> Command {
    Command::new(tool("DJANGO", "venv/bin/python"))
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/identity/frameworks").join(name)
}

/// What every framework reads in each case.
fn read_by_frameworks(cases: &[Value]) -> Vec<BTreeMap<String, Option<String>>> {
    let mut python = python();
    python.arg(script("python_readers.py"));
    let mut node = Command::new("node");
    let express = tool("EXPRESS", "node/node_modules/express");
    node.arg(script("node_readers.js")).arg(express.parent().expect("a package has a folder"));
    let mut php = Command::new(std::env::var_os("TIDEGATE_TOOL_PHP").unwrap_or_else(|| "php".into()));
    php.arg(script("php_readers.php"));
    let mut all = vec![BTreeMap::new(); cases.len()];
    for mut reader in [python, node, php] {
        for (all, one) in all.iter_mut().zip(answers(&mut reader, cases)) {
            all.extend(one);
        }
    }
    all
}

fn answers(reader: &mut Command, cases: &[Value]) -> Vec<BTreeMap<String, Option<String>>> {
    let mut child = reader.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the reader starts");
    let mut input = child.stdin.take().expect("it is piped");
    let lines = cases.iter().map(|case| format!("{case}\n")).collect::<String>();
    let writer = std::thread::spawn(move || input.write_all(lines.as_bytes()));
    let output = child.wait_with_output().expect("the reader ends");
    writer.join().expect("writing does not panic").expect("the reader takes every case");
    let text = String::from_utf8(output.stdout).expect("JSON is UTF-8");
    let read: Vec<_> = text.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
    assert_eq!(read.len(), cases.len(), "{reader:?}");
    read
}

/// Latin-1: one byte each.
fn header(text: &str) -> HeaderValue {
    let bytes: Vec<u8> = text.chars().map(|c| u8::try_from(u32::from(c)).expect("Latin-1")).collect();
    HeaderValue::from_bytes(&bytes).expect("a header may have it")
}

/// Every text of one piece each.
fn combined(pieces: &[&[&str]]) -> Vec<String> {
    pieces.iter().fold(vec![String::new()], |texts, pieces| {
        texts.iter().flat_map(|text| pieces.iter().map(move |piece| format!("{text}{piece}"))).collect()
    })
}

/// Checks that `counted` holds wherever a framework reads `caller`.
#[track_caller]
fn check(kind: &str, texts: &[String], caller: &str, at_least: usize, counted: impl Fn(&str) -> bool) {
    let cases: Vec<Value> =
        texts.iter().map(|text| json!({ kind: text, "secret": tokens::SECRET })).collect();
    let mut met = 0;
    let mut missed = Vec::new();
    for (text, read) in texts.iter().zip(read_by_frameworks(&cases)) {
        let readers: Vec<_> =
            read.iter().filter(|(_, value)| value.as_deref() == Some(caller)).map(|(name, _)| name).collect();
        if readers.is_empty() {
            continue;
        }
        met += 1;
        if !counted(text) {
            missed.push(format!("{text:?} is {caller} to {readers:?}"));
        }
    }
    assert!(missed.is_empty(), "{} of {met} are not counted:\n{}", missed.len(), missed.join("\n"));
    assert!(met >= at_least, "only {met} cases are {caller} to some framework");
}

/// Whether one of the readings of a request with this header has the attribute.
fn has(identity: &Identity, name: &str, value: &str, attribute: (&str, &str)) -> bool {
    let mut ask = get("/");
    ask.headers.insert(name.parse::<HeaderName>().expect("a header"), header(value));
    ask.read_all(identity, attribute.0).contains(&Some(attribute.1.to_owned()))
}

#[test]
fn a_cookie_that_a_framework_reads_is_counted() {
    let identity = identity("cookies: { session: sid }");
    let blanks = ["", " ", "\t", "\u{a0}", "\u{85}", "\u{e2}\u{80}\u{83}", "\u{c2}\u{a0}"];
    let before = ["", "x=1; ", "x=1;", "x=1, ", "x=1 ", "x=\"; ", "x; ", "=y; "];
    let values = ["s1", "\"s1\"", "%731", "\"\\1631\"", "\"s1", "\"s\\1\"", "'s1'"];
    let after = ["", ";", "; x=2", ", x=2", " x", "; sid=s2"];
    let equals = ["=", " =", "= ", " \t= ", "=\u{a0}"];
    let among_others = combined(&[&before, &["sid", "SID", "s%69d"], &equals, &values, &after]);
    let texts = [among_others, combined(&[&["sid"], &blanks, &["="], &blanks, &values, &blanks])].concat();
    let wanted = hash_secret("s1");
    check("cookie", &texts, "s1", 1_000, |text| has(&identity, "cookie", text, ("session", &wanted)));
}

#[test]
fn a_query_parameter_that_a_framework_reads_is_counted() {
    let identity = identity("query: { caller: token }");
    let before = ["", "x=1&", "x=1;", "x&", "&"];
    let names = ["token", "%74oken", "TOKEN", "to.ken", "to+ken"];
    let starts = ["", "+", "%20%20", "%09", "[", "[[", "]", "%5B", "."];
    let ends = ["", "%00", "%00x", "[", "[]", "[a]", "[a][b]", "]", "+", "%20", "]]", "%5D"];
    let values = ["=alice", "=%61lice", "=alice&x", "=alice;x"];
    let texts = combined(&[&before, &starts, &names, &ends, &values]);
    check("query", &texts, "alice", 300, |text| {
        let read = get(&format!("/?{text}")).read_all(&identity, "caller");
        read.contains(&Some("alice".to_owned()))
    });
}

#[test]
fn a_token_that_a_lenient_library_accepts_counts_for_its_bearer() {
    let identity = identity(&format!("jwt: {{ secret: {} }}", tokens::SECRET));
    let (signed, signature) = tokens::HS256.rsplit_once('.').expect("it has a signature");
    let (start, last) = signature.split_at(signature.len() - 1);
    assert_eq!(last, "k", "whose next letter differs only in bits of no byte");
    let schemes = ["Bearer ", "bearer ", "Bearer  ", "Bearer\u{a0}", "Bearer \u{a0}", "JWT ", ""];
    let ends = ["k", "l", "m", "n", "k=", "k==", "l=", "k=AAAA", "k=.", "k\u{a0}", "k!", "k*=*"];
    let between = ["", "!", "*", "\u{e4}", "\"", ","];
    let signatures = combined(&[&[&start[..9]], &between, &[&start[9..]], &ends]);
    let mut texts = Vec::new();
    for (scheme, signature) in
        schemes.iter().flat_map(|scheme| signatures.iter().map(move |text| (scheme, text)))
    {
        texts.push(format!("{scheme}{signed}.{signature}"));
    }
    check("token", &texts, "genuine", 200, |text| has(&identity, "authorization", text, ("user", "alice")));
}
