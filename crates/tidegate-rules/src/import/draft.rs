//! Rules of our format before they are written as text.

use std::collections::HashSet;
use std::fmt::Write;

use tidegate_core::Micros;

use crate::diagnostics::Span;
use crate::fields::is_reserved;

/// Characters of a name, so that even the widest fit.
const LONGEST_NAME: usize = 60;

/// The rules of one domain.
pub(super) struct DraftFile {
    pub(super) domain: String,
    /// Where it is given, if it may be given only once.
    pub(super) once: Option<Span>,
    pub(super) rules: Vec<DraftRule>,
}

pub(super) struct DraftRule {
    pub(super) name: String,
    pub(super) conditions: Vec<(String, DraftCondition)>,
    pub(super) key: Vec<String>,
    pub(super) limit: DraftLimit,
    pub(super) shadow: bool,
    /// Whether a cost above what is left is counted.
    pub(super) debt: bool,
    pub(super) overrides: Vec<String>,
}

/// Patterns, already escaped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DraftCondition {
    pub(super) is: Vec<String>,
    pub(super) not: Vec<String>,
}

#[derive(Clone, Copy)]
pub(super) enum DraftLimit {
    Unlimited,
    FixedWindow { count: u64, window: Micros },
}

impl DraftFile {
    /// The file as text. Rules get unique names that are valid in our format.
    pub(super) fn write(mut self) -> String {
        self.name_rules();
        let mut text = format!("domain: {}\nrules:", quoted(&self.domain));
        if self.rules.is_empty() {
            text.push_str(" []");
        }
        text.push('\n');
        for rule in &self.rules {
            rule.write(&mut text);
        }
        text
    }

    /// Gives every rule a unique name; idempotent.
    pub(super) fn name_rules(&mut self) {
        let mut taken = HashSet::new();
        for rule in &mut self.rules {
            if is_reserved(&rule.name) {
                rule.name.push('#');
            }
            let cut =
                |most: usize| rule.name.chars().filter(|c| !c.is_control()).take(most).collect::<String>();
            let whole = if rule.name.is_empty() { "rule".into() } else { cut(LONGEST_NAME) };
            let numbered = (2..).map(|number| format!("{}#{number}", cut(LONGEST_NAME - 10)));
            let free = std::iter::once(whole).chain(numbered).find(|name| !taken.contains(name));
            rule.name = free.expect("there is always another number");
            taken.insert(rule.name.clone());
        }
    }
}

impl DraftRule {
    fn write(&self, text: &mut String) {
        let mut line = |field: &str, value: String| {
            let start = if field == "name" { "  - " } else { "    " };
            writeln!(text, "{start}{field}: {value}").expect("a string takes any text");
        };
        line("name", quoted(&self.name));
        if !self.conditions.is_empty() {
            let conditions: Vec<String> = self
                .conditions
                .iter()
                .map(|(attribute, condition)| format!("{}: {}", quoted(attribute), condition.written()))
                .collect();
            line("match", format!("{{ {} }}", conditions.join(", ")));
        }
        line("key", list(&self.key));
        line("limits", self.limit.written());
        if self.debt {
            line("over", "debt".into());
        }
        if self.shadow {
            line("shadow", "true".into());
        }
        if !self.overrides.is_empty() {
            line("overrides", list(&self.overrides));
        }
    }
}

impl DraftCondition {
    fn written(&self) -> String {
        let patterns = |patterns: &[String]| match patterns {
            [one] => quoted(one),
            many => list(many),
        };
        match (self.is.is_empty(), self.not.is_empty()) {
            (_, true) => patterns(&self.is),
            (true, false) => format!("{{ not: {} }}", patterns(&self.not)),
            (false, false) => format!("{{ is: {}, not: {} }}", patterns(&self.is), patterns(&self.not)),
        }
    }
}

impl DraftLimit {
    fn written(self) -> String {
        match self {
            DraftLimit::Unlimited => "unlimited".into(),
            DraftLimit::FixedWindow { count, window } => {
                format!("[{{ algorithm: fixed_window, limit: {count}, window: {window} }}]")
            }
        }
    }
}

/// `text` as a pattern that matches only it.
pub(super) fn literal(text: &str) -> String {
    text.replace('\\', r"\\").replace('*', r"\*")
}

fn list(items: &[String]) -> String {
    let items: Vec<String> = items.iter().map(|item| quoted(item)).collect();
    format!("[{}]", items.join(", "))
}

/// Unquoted if it can only be text, otherwise in double quotes.
fn quoted(text: &str) -> String {
    let is_word = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'));
    let means_something = ["null", "true", "false", "yes", "no", "on", "off", "y", "n"]
        .contains(&text.to_ascii_lowercase().as_str());
    if is_word && !means_something {
        return text.to_owned();
    }
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() || !('\u{20}'..='\u{d7ff}').contains(&c) => {
                write!(out, "\\U{:08X}", u32::from(c)).expect("a string takes any text");
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
