//! The text of a rule file, as flow YAML that is nearly JSON: one value per line of code.

use std::fmt;
use std::time::Duration;

/// A value of a rule file.
#[derive(Clone, Debug)]
pub(super) enum Text {
    /// Text that may contain anything.
    Quoted(String),
    /// Text without quotes: numbers, durations, rates, our own names.
    Bare(String),
    List(Vec<Text>),
    Map(WrittenFields),
}

/// Names and values, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct WrittenFields(Vec<(String, Text)>);

impl WrittenFields {
    pub(super) fn set(&mut self, field: &str, value: Text) {
        *self.place(field, || Text::List(Vec::new())) = value;
    }

    /// The list called `field`; a new one if there is none.
    pub(super) fn list(&mut self, field: &str) -> &mut Vec<Text> {
        let place = self.place(field, || Text::List(Vec::new()));
        if !matches!(place, Text::List(_)) {
            *place = Text::List(Vec::new());
        }
        match place {
            Text::List(items) => items,
            _ => unreachable!("made one above"),
        }
    }

    /// The mapping called `field`; a new one if there is none.
    pub(super) fn map(&mut self, field: &str) -> &mut WrittenFields {
        let place = self.place(field, || Text::Map(WrittenFields::default()));
        if !matches!(place, Text::Map(_)) {
            *place = Text::Map(WrittenFields::default());
        }
        match place {
            Text::Map(fields) => fields,
            _ => unreachable!("made one above"),
        }
    }

    fn place(&mut self, field: &str, new: impl FnOnce() -> Text) -> &mut Text {
        let at = self.0.iter().position(|(name, _)| name == field).unwrap_or_else(|| {
            self.0.push((field.to_owned(), new()));
            self.0.len() - 1
        });
        &mut self.0[at].1
    }
}

impl Text {
    pub(super) fn list(items: impl IntoIterator<Item = Text>) -> Self {
        Text::List(items.into_iter().collect())
    }

    pub(super) fn map<const N: usize>(fields: [(&str, Text); N]) -> Self {
        Text::Map(WrittenFields(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()))
    }

    /// `count` per `span`.
    pub(super) fn rate(count: u64, span: Duration) -> Self {
        Text::Bare(format!("{count}/{}", Text::from(span)))
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Text::Quoted(text.to_owned())
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Text::Quoted(text)
    }
}

impl From<bool> for Text {
    fn from(flag: bool) -> Self {
        Text::Bare(flag.to_string())
    }
}

impl From<u64> for Text {
    fn from(number: u64) -> Self {
        Text::Bare(number.to_string())
    }
}

impl From<Duration> for Text {
    /// Exactly. A fraction of a microsecond is not a valid duration in a rule, and is reported as such.
    fn from(span: Duration) -> Self {
        match (u64::try_from(span.as_micros()), span.subsec_nanos() % 1_000) {
            (Ok(micros), 0) => Text::Bare(tidegate_core::Micros::new(micros).to_string()),
            _ => Text::Bare(format!("{}ns", span.as_nanos())),
        }
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Text::Bare(text) => f.write_str(text),
            Text::Quoted(text) => write_quoted(text, f),
            Text::List(items) => {
                f.write_str("[")?;
                for (place, item) in items.iter().enumerate() {
                    write!(f, "{}{item}", if place > 0 { ", " } else { "" })?;
                }
                f.write_str("]")
            }
            Text::Map(WrittenFields(fields)) => {
                f.write_str("{ ")?;
                for (place, (name, value)) in fields.iter().enumerate() {
                    f.write_str(if place > 0 { ", " } else { "" })?;
                    write_quoted(name, f)?;
                    write!(f, ": {value}")?;
                }
                f.write_str(" }")
            }
        }
    }
}

/// Words that YAML parses as something other than text.
const NOT_TEXT: [&str; 8] = ["true", "false", "null", "yes", "no", "on", "off", "nan"];

/// Unquoted where a person would write it so.
fn write_quoted(text: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    let is_word = text.len() > 1 && text.starts_with(|first: char| first.is_ascii_alphabetic());
    if is_word && text.bytes().all(plain) && !NOT_TEXT.contains(&text.to_ascii_lowercase().as_str()) {
        return f.write_str(text);
    }
    f.write_str("\"")?;
    for letter in text.chars() {
        match letter {
            '"' | '\\' => write!(f, "\\{letter}")?,
            letter if letter.is_control() || matches!(letter, '\u{feff}' | '\u{2028}' | '\u{2029}') => {
                write!(f, "\\u{:04x}", u32::from(letter))?;
            }
            letter => write!(f, "{letter}")?,
        }
    }
    f.write_str("\"")
}
