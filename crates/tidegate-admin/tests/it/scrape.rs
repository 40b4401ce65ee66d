//! Parses metrics like a scraper, written only from the format specifications, and stricter than any scraper.
//!
//! It rejects a sample outside its family, a duplicate family or series, an invalid name or escape, a histogram whose
//! buckets do not add up, and a text with a wrong end.

use std::collections::{BTreeMap, BTreeSet};
use std::str::Chars;

use tidegate_metrics::Format;

/// The content of a text.
#[derive(Debug, Default)]
pub(crate) struct Scrape {
    /// Types, by the name of the family.
    pub(crate) types: BTreeMap<String, String>,
    samples: BTreeMap<(String, Labels), f64>,
}

pub(crate) type Labels = BTreeMap<String, String>;

impl Scrape {
    #[track_caller]
    pub(crate) fn parse(text: &str, format: Format) -> Scrape {
        assert!(text.ends_with('\n'), "the last line has no end");
        let (text, ended) = match text.strip_suffix("# EOF\n") {
            Some(text) => (text, Format::OpenMetrics),
            None => (text, Format::Classic),
        };
        assert_eq!(ended, format, "the end belongs to the other format");
        let mut scrape = Scrape::default();
        let mut family: Option<(String, String)> = None;
        for line in text.lines() {
            match line.strip_prefix("# ") {
                Some(comment) => scrape.declare(comment, &mut family),
                None => {
                    let (name, kind) = family.as_ref().unwrap_or_else(|| panic!("no family before {line:?}"));
                    scrape.sample(line, name, kind, format);
                }
            }
        }
        scrape.check_histograms();
        scrape
    }

    fn declare(&mut self, comment: &str, family: &mut Option<(String, String)>) {
        let mut words = comment.splitn(3, ' ');
        let mut word = || words.next().unwrap_or_else(|| panic!("half a declaration: {comment:?}"));
        match (word(), word(), word()) {
            ("HELP", name, text) => {
                assert!(is_name(name) && !text.is_empty(), "{comment:?}");
                assert!(!text.contains(['"', '\\']), "would need escaping: {comment:?}");
            }
            ("TYPE", name, kind) => {
                assert!(["counter", "gauge", "histogram", "info"].contains(&kind), "{comment:?}");
                let told_before = self.types.insert(name.to_owned(), kind.to_owned());
                assert_eq!(told_before, None, "{name} is declared twice");
                *family = Some((name.to_owned(), kind.to_owned()));
            }
            ("UNIT", name, unit) => assert!(name.ends_with(&format!("_{unit}")), "{comment:?}"),
            _ => panic!("neither a declaration nor a sample: {comment:?}"),
        }
    }

    fn sample(&mut self, line: &str, family: &str, kind: &str, format: Format) {
        let (name, labels, value) = sample(line);
        let suffix = name.strip_prefix(family).unwrap_or_else(|| panic!("{line:?} is not in {family}"));
        let suffixes: &[&str] = match (kind, format) {
            ("counter", Format::OpenMetrics) => &["_total"],
            ("info", Format::OpenMetrics) => &["_info"],
            ("histogram", _) => &["_bucket", "_count", "_sum"],
            ("counter" | "gauge", _) => &[""],
            _ => panic!("there is no {kind} in this format"),
        };
        assert!(suffixes.contains(&suffix), "{line:?} cannot be a sample of the {kind} {family}");
        assert!(kind == "gauge" || value >= 0.0, "a {kind} below zero: {line:?}");
        let told_before = self.samples.insert((name, labels), value);
        assert_eq!(told_before, None, "told twice: {line:?}");
    }

    fn check_histograms(&self) {
        for (name, _) in self.types.iter().filter(|(_, kind)| *kind == "histogram") {
            let (count_name, bucket_name) = (format!("{name}_count"), format!("{name}_bucket"));
            for ((_, labels), count) in self.samples.iter().filter(|((name, _), _)| *name == count_name) {
                let mut buckets: Vec<(f64, f64)> = self
                    .samples
                    .iter()
                    .filter(|((name, _), _)| *name == bucket_name)
                    .filter(|((_, own), _)| labels.iter().all(|(label, value)| own.get(label) == Some(value)))
                    .map(|((_, own), count)| (own["le"].parse().expect("a bound is a number"), *count))
                    .collect();
                buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
                assert!(buckets.is_sorted_by(|one, other| one.1 <= other.1), "{name} goes down: {buckets:?}");
                assert_eq!(buckets.last(), Some(&(f64::INFINITY, *count)), "{name} does not add up");
            }
        }
    }

    /// The one series of this name with exactly these labels.
    pub(crate) fn get(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let owned = |(name, value): &(&str, &str)| (name.to_string(), value.to_string());
        let labels: Labels = labels.iter().map(owned).collect();
        self.samples.get(&(name.to_owned(), labels)).copied()
    }

    /// All series of this name.
    pub(crate) fn all<'s>(&'s self, name: &'s str) -> impl Iterator<Item = (&'s Labels, f64)> {
        let own = self.samples.iter().filter(move |((other, _), _)| other == name);
        own.map(|((_, labels), value)| (labels, *value))
    }

    pub(crate) fn sum(&self, name: &str) -> f64 {
        self.all(name).map(|(_, value)| value).sum()
    }

    pub(crate) fn names(&self) -> BTreeSet<&str> {
        self.samples.keys().map(|(name, _)| name.as_str()).collect()
    }
}

fn sample(line: &str) -> (String, Labels, f64) {
    let name_end = line.find(['{', ' ']).unwrap_or_else(|| panic!("no sample: {line:?}"));
    let (name, rest) = line.split_at(name_end);
    assert!(is_name(name), "no name: {line:?}");
    let mut rest = rest.chars();
    let labels = if rest.as_str().starts_with('{') { labels(&mut rest, line) } else { Labels::default() };
    let value = rest.as_str().strip_prefix(' ').unwrap_or_else(|| panic!("no space: {line:?}"));
    (name.to_owned(), labels, value.parse().unwrap_or_else(|_| panic!("no number: {line:?}")))
}

/// `{a="1",b="2"}`
fn labels(rest: &mut Chars<'_>, line: &str) -> Labels {
    let mut labels = Labels::new();
    assert_eq!(rest.next(), Some('{'));
    loop {
        let name: String = rest.by_ref().take_while(|c| *c != '=').collect();
        assert!(is_name(&name) && !name.contains(':'), "no label {name:?}: {line:?}");
        assert_eq!(rest.next(), Some('"'), "no quote: {line:?}");
        let value = quoted(rest, line);
        assert_eq!(labels.insert(name, value), None, "a label twice: {line:?}");
        match rest.next() {
            Some(',') => {}
            Some('}') => return labels,
            _ => panic!("labels do not end: {line:?}"),
        }
    }
}

/// What comes until the closing quote.
fn quoted(rest: &mut Chars<'_>, line: &str) -> String {
    let mut value = String::new();
    loop {
        value.push(match rest.next() {
            Some('"') => return value,
            Some('\\') => match rest.next() {
                Some('n') => '\n',
                Some(same @ ('\\' | '"')) => same,
                _ => panic!("no such escape: {line:?}"),
            },
            Some(other) => other,
            None => panic!("a value does not end: {line:?}"),
        });
    }
}

fn is_name(name: &str) -> bool {
    let first = |c: char| c.is_ascii_alphabetic() || "_:".contains(c);
    name.starts_with(first) && name.chars().all(|c| first(c) || c.is_ascii_digit())
}
