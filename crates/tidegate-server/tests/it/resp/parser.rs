//! The parser alone, with arbitrary bytes in arbitrary pieces.

use proptest::collection::vec;
use proptest::prelude::*;
use tidegate_server::resp::parse::{self, Bounds, Malformed, Parsed};

/// Small, so that random input reaches every bound.
const BOUNDS: Bounds =
    Bounds { max_words: 12, max_word_bytes: 300, max_command_bytes: 1_000, max_line_bytes: 200 };

type Words = Vec<Vec<u8>>;

fn parse(bytes: &[u8]) -> (Parsed, parse::Words<'_>) {
    let mut words = parse::Words::new();
    (parse::parse(bytes, &BOUNDS, &mut words), words)
}

fn encoded(words: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).into_bytes());
        bytes.extend(word);
        bytes.extend(b"\r\n");
    }
    bytes
}

/// As a careful person would type it: everything quoted, everything unusual escaped.
fn typed(words: &[Vec<u8>]) -> Vec<u8> {
    let quoted = |word: &Vec<u8>| {
        let bytes = word.iter().map(|byte| match byte {
            b'a'..=b'z' | b' ' | b'\'' => char::from(*byte).to_string(),
            b'\n' => "\\n".to_owned(),
            b'"' => "\\\"".to_owned(),
            other => format!("\\x{other:02X}"),
        });
        format!("\"{}\"", bytes.collect::<String>())
    };
    let words: Vec<String> = words.iter().map(quoted).collect();
    format!("{}\r\n", words.join("  ")).into_bytes()
}

/// All commands at the front of `buffer`, and how many bytes they take.
fn parse_all(buffer: &[u8]) -> (Vec<Words>, usize, Result<(), Malformed>) {
    let (mut commands, mut used) = (Vec::new(), 0);
    let mut words = parse::Words::new();
    loop {
        match parse::parse(&buffer[used..], &BOUNDS, &mut words) {
            Parsed::Command { length } => {
                commands.push(words.iter().map(|word| word.to_vec()).collect());
                used += length;
            }
            Parsed::Line { words, length } => {
                commands.push(words);
                used += length;
            }
            Parsed::Incomplete { .. } => return (commands, used, Ok(())),
            Parsed::Malformed(what) => return (commands, used, Err(what)),
        }
    }
}

fn any_command() -> impl Strategy<Value = Words> {
    vec(vec(any::<u8>(), 0..20), 1..8)
}

proptest! {
    #[test]
    fn commands_are_the_same_wherever_their_bytes_are_cut(
        commands in vec((any_command(), any::<bool>()), 1..6),
    ) {
        let mut bytes = Vec::new();
        for (words, by_hand) in &commands {
            let line = typed(words);
            let fits = line.len() <= BOUNDS.max_line_bytes;
            bytes.extend(if *by_hand && fits { line } else { encoded(words) });
        }
        let expected: Vec<Words> = commands.into_iter().map(|(words, _)| words).collect();
        for cut in 0..=bytes.len() {
            let (mut found, used, end) = parse_all(&bytes[..cut]);
            prop_assert_eq!(end, Ok(()));
            let (rest, last, end) = parse_all(&bytes[used..]);
            prop_assert_eq!((end, used + last), (Ok(()), bytes.len()));
            found.extend(rest);
            prop_assert_eq!(&found, &expected);
        }
    }

    #[test]
    fn an_incomplete_command_says_how_much_it_needs_at_least_and_never_too_much(words in any_command()) {
        let bytes = encoded(&words);
        for cut in 0..bytes.len() {
            let (Parsed::Incomplete { at_least }, _) = parse(&bytes[..cut]) else {
                return Err(TestCaseError::fail(format!("{cut} bytes are no command")));
            };
            prop_assert!(at_least > cut && at_least <= bytes.len());
        }
    }

    #[test]
    fn no_bytes_make_the_parser_panic_or_go_beyond_its_bounds(
        bytes in prop_oneof![
            vec(any::<u8>(), 0..2_000),
            // Bytes that look like the protocol get further.
            vec(prop_oneof![Just(b'*'), Just(b'$'), Just(b'\r'), Just(b'\n'), b'0'..=b'9', Just(b'-'), Just(b'"')], 0..400),
            (any_command(), any::<prop::sample::Index>(), any::<u8>()).prop_map(|(words, place, byte)| {
                let mut bytes = encoded(&words);
                let place = place.index(bytes.len());
                bytes[place] = byte;
                bytes
            }),
        ],
    ) {
        let (parsed, words) = parse(&bytes);
        match parsed {
            Parsed::Command { length } => {
                prop_assert!(length <= bytes.len() && length <= BOUNDS.max_command_bytes);
                prop_assert!(words.len() <= BOUNDS.max_words);
                prop_assert!(words.iter().all(|word| word.len() <= BOUNDS.max_word_bytes));
            }
            Parsed::Line { words, length } => {
                prop_assert!(length <= bytes.len() && length <= BOUNDS.max_line_bytes + 1);
                prop_assert!(words.len() <= BOUNDS.max_words);
                prop_assert!(words.iter().map(Vec::len).sum::<usize>() < length);
            }
            // So a connection never has to keep more than the largest command.
            Parsed::Incomplete { at_least } => {
                prop_assert!(at_least > bytes.len());
                prop_assert!(at_least <= BOUNDS.max_command_bytes + 16);
            }
            Parsed::Malformed(_) => {}
        }
    }

    #[test]
    fn what_is_malformed_stays_malformed_whatever_follows(
        bytes in vec(prop_oneof![Just(b'*'), Just(b'$'), Just(b'\r'), Just(b'\n'), b'0'..=b'9', Just(b'x')], 1..40),
    ) {
        for cut in 0..bytes.len() {
            if let (Parsed::Malformed(_), _) = parse(&bytes[..cut]) {
                let (whole, _) = parse(&bytes);
                prop_assert!(matches!(whole, Parsed::Malformed(_)), "{:?}", whole);
            }
        }
    }
}

#[track_caller]
fn check_malformed(bytes: &[u8], message: &str) {
    match parse(bytes).0 {
        Parsed::Malformed(what) => assert_eq!(what.to_string(), message),
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_mistake_has_a_message_of_its_own() {
    check_malformed(b"*x\r\n", "invalid multibulk length");
    check_malformed(b"*-1\r\n", "invalid multibulk length");
    check_malformed(b"*13\r\n", "invalid multibulk length, at most 12 arguments are allowed");
    check_malformed(b"*99999999999", "invalid multibulk length");
    check_malformed(b"*1\r\n:1\r\n", "expected '$', got ':'");
    check_malformed(b"*1\r\n\r\n", "expected '$', got '\\r'");
    check_malformed(b"*1\r\n$-1\r\n", "invalid bulk length");
    check_malformed(b"*1\r\n$301\r\n", "invalid bulk length, at most 300 bytes are allowed");
    check_malformed(b"*1\r\n$1\r\nabc\r\n", "expected CRLF after an argument");
    check_malformed(b"*1\r\n$1\rx", "invalid bulk length");
    let long = encoded(&vec![vec![b'x'; 290]; 4]);
    check_malformed(&long[..910], "too big request, at most 1000 bytes are allowed");
    check_malformed(&[b'x'; 201], "too big inline request, at most 200 bytes are allowed");
    check_malformed(b"echo \"a\n", "unbalanced quotes in request");
    check_malformed(b"echo \"a\"b\n", "unbalanced quotes in request");
    check_malformed(b"POST / HTTP/1.1\r\n", "this is not an HTTP port");
    check_malformed(b"hOsT: a\r\n", "this is not an HTTP port");
}

#[track_caller]
fn check_line(line: &str, words: &[&[u8]]) {
    match parse(line.as_bytes()).0 {
        Parsed::Line { words: found, length } => {
            assert_eq!(found.iter().map(Vec::as_slice).collect::<Vec<_>>(), words);
            assert_eq!(length, line.len());
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_typed_line_is_split_as_redis_splits_it() {
    check_line("PING\r\n", &[b"PING"]);
    check_line("PING\n", &[b"PING"]);
    check_line("  SET\t key  value \r\n", &[b"SET", b"key", b"value"]);
    check_line("\r\n", &[]);
    check_line("echo \"a b\" 'c \\' d'\n", &[b"echo", b"a b", b"c ' d"]);
    check_line("echo \"\\x00\\xfF\\n\\\\\\q\" \"\"\n", &[b"echo", b"\x00\xff\n\\q", b""]);
    check_line("echo '\\n'\n", &[b"echo", b"\\n"]);
    check_line("echo \"\\x0g\"\n", &[b"echo", b"x0g"]);
}

#[test]
fn an_array_of_no_words_is_a_command_to_be_passed_over() {
    let (Parsed::Command { length }, words) = parse(b"*0\r\nPING") else { panic!("a command") };
    assert_eq!((words.len(), length), (0, 4));
}
