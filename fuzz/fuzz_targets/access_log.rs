//! Any bytes as lines of a log, in every format: each is read or refused, and what is read is within bounds.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_core::Timestamp;
use tidegate_replay::{Format, Line, Parser, Reader};

fuzz_target!(|bytes: &[u8]| {
    let mapping = [("time".to_owned(), "t".to_owned()), ("user".to_owned(), "u".to_owned())];
    let formats = [Format::Tidegate, Format::Combined, Format::Envoy, Format::Caddy];
    let parsers = formats.into_iter().filter_map(Parser::new).chain(Parser::csv(b"t,u", &mapping).ok());
    for mut parser in parsers {
        let mut reader = Reader::new(bytes);
        while let Some(line) = reader.next_line().expect("memory can be read") {
            let Line::Text(line) = line else { continue };
            let _ = Format::of(line);
            if let Ok(recorded) = parser.parse(line) {
                assert!(recorded.at <= Timestamp::MAX && recorded.weight > 0);
                // An escape grows to at most three bytes, a prefix has its own.
                assert!(recorded.attributes.iter().all(|(_, value)| value.len() <= 3 * line.len() + 64));
            }
        }
    }
});
