//! YAML text as a tree of values with their positions.
//!
//! Scalars stay text (the reader decides what `on` or `0x10` means), and every input is bounded: size, nesting, number of
//! values, and what aliases multiply. Tags beyond YAML's own are rejected.

use std::collections::HashMap;
use std::rc::Rc;

use granit_parser::{Event, Options, Parser, ScalarStyle, ScanError, StructureStyle, Tag};

use crate::diagnostics::{GIVEN_UP, Report, Span, Wanted};

/// The largest file: some hundred thousand rules.
const MOST_BYTES: usize = 32 << 20;
/// The most values in a file.
const MOST_VALUES: usize = 2_000_000;
/// The most values that aliases and merge keys may repeat, and how much text counts as one more.
const MOST_REPEATED: usize = 100_000;
const BYTES_OF_A_VALUE: usize = 64;
/// How many values are read between looks whether anybody waits for them: about a millisecond of work.
const LOOK_EVERY: usize = 1_024;
/// The deepest nesting.
const DEEPEST: usize = 64;

/// A value and its position.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) span: Span,
    pub(crate) value: Value,
    /// The number of values, including nested ones; long text counts as several.
    weight: usize,
}

#[derive(Clone, Debug)]
pub(crate) enum Value {
    Null,
    Scalar(Scalar),
    List(Rc<[Node]>),
    Map(Rc<[(Key, Node)]>),
}

#[derive(Clone, Debug)]
pub(crate) struct Scalar {
    pub(crate) text: Rc<str>,
    /// Quoted text is text, whatever it looks like.
    pub(crate) quoted: bool,
}

/// A field's name and its position.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    pub(crate) text: Rc<str>,
    pub(crate) span: Span,
}

impl Node {
    /// What this is, for a message: `a list`, `the text "abc"`.
    pub(crate) fn describe(&self) -> String {
        match &self.value {
            Value::Null => "nothing".into(),
            Value::List(_) => "a list".into(),
            Value::Map(_) => "a mapping".into(),
            Value::Scalar(Scalar { text, .. }) if text.chars().count() <= 40 => format!("`{text}`"),
            Value::Scalar(Scalar { text, .. }) => {
                format!("`{}…`", text.chars().take(40).collect::<String>())
            }
        }
    }
}

/// The non-empty documents in `text`; none, and a report of why, if there is nothing to read.
pub(crate) fn parse(file: u32, text: &str, report: &mut Report<'_>) -> Vec<Node> {
    if text.len() > MOST_BYTES {
        let message = format!("the file has {} bytes, more than the {MOST_BYTES} that are read", text.len());
        report.error(Span::at(file, 0), message, "split it into several files");
        return Vec::new();
    }
    let mut options = Options::default();
    options.set_emit_comments(false);
    let mut reader = Reader {
        file,
        text,
        end: text.len(),
        events: Parser::new_from_str_with_options(text, options),
        anchors: HashMap::new(),
        values: 0,
        repeated: 0,
        wanted: report.wanted(),
    };
    match reader.documents() {
        Ok(documents) => {
            if documents.is_empty() {
                report.error(Span::at(file, 0), "the file is empty", "a rule file begins with `domain:`");
            }
            documents
        }
        Err(problem) => {
            let error = report.error(problem.span, problem.message, problem.hint);
            if let Some((span, label)) = problem.related {
                error.related(span, label);
            }
            Vec::new()
        }
    }
}

struct Reader<'t> {
    file: u32,
    text: &'t str,
    end: usize,
    events: Parser<'t, granit_parser::StrInput<'t>>,
    anchors: HashMap<usize, Node>,
    values: usize,
    repeated: usize,
    wanted: Wanted<'t>,
}

struct Problem {
    span: Span,
    message: String,
    hint: &'static str,
    related: Option<(Span, &'static str)>,
}

impl Problem {
    fn new(span: Span, message: impl Into<String>, hint: &'static str) -> Self {
        Problem { span, message: message.into(), hint, related: None }
    }
}

type Read<T> = Result<T, Problem>;

impl<'t> Reader<'t> {
    fn documents(&mut self) -> Read<Vec<Node>> {
        let mut documents = Vec::new();
        loop {
            let (event, span) = self.next()?;
            match event {
                Event::StreamEnd => return Ok(documents),
                // Anchors end with their document.
                Event::DocumentStart(..) => self.anchors.clear(),
                Event::StreamStart | Event::DocumentEnd => {}
                event => {
                    let document = self.node(event, span, 0)?;
                    documents.extend((!matches!(document.value, Value::Null)).then_some(document));
                }
            }
        }
    }

    fn next(&mut self) -> Read<(Event<'t>, Span)> {
        match self.events.next_event() {
            Some(Ok((event, span))) => {
                let span = span.byte_range().map_or(Span::at(self.file, self.end), |bytes| self.span(bytes));
                Ok((event, span))
            }
            Some(Err(error)) => Err(self.syntax_error(&error)),
            None => Ok((Event::StreamEnd, Span::at(self.file, self.end))),
        }
    }

    fn node(&mut self, event: Event<'t>, span: Span, depth: usize) -> Read<Node> {
        self.values += 1;
        if self.values.is_multiple_of(LOOK_EVERY) && !(self.wanted)() {
            return Err(Problem::new(span, GIVEN_UP, "ask again"));
        }
        if self.values > MOST_VALUES {
            return Err(Problem::new(
                span,
                format!("more than {MOST_VALUES} values in one file"),
                "split the file: one domain each",
            ));
        }
        if depth > DEEPEST {
            return Err(Problem::new(
                span,
                format!("nested more than {DEEPEST} deep"),
                "rules need less: check brackets and indentation",
            ));
        }
        let (anchor, node) = match event {
            Event::Alias(anchor) => return self.alias(anchor, span),
            Event::Scalar(text, style, anchor, tag) => {
                let quoted = check_tag(tag.as_deref(), span)? || style != ScalarStyle::Plain;
                (anchor, scalar(&text, quoted, span))
            }
            Event::SequenceStart(style, anchor, tag) => {
                check_tag(tag.as_deref(), span)?;
                (anchor, self.list(span, style, depth)?)
            }
            Event::MappingStart(style, anchor, tag) => {
                check_tag(tag.as_deref(), span)?;
                (anchor, self.map(span, style, depth)?)
            }
            _ => return Err(Problem::new(span, "this is not a value", "write text, a list or a mapping")),
        };
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn list(&mut self, span: Span, style: StructureStyle, depth: usize) -> Read<Node> {
        let mut items = Vec::new();
        loop {
            let (event, at) = self.next()?;
            if matches!(event, Event::SequenceEnd) {
                let end = end_of(style, at, items.last());
                let weight = 1 + items.iter().map(|item| item.weight).sum::<usize>();
                return Ok(Node { span: span.until(end), value: Value::List(items.into()), weight });
            }
            items.push(self.node(event, at, depth + 1)?);
        }
    }

    fn map(&mut self, span: Span, style: StructureStyle, depth: usize) -> Read<Node> {
        let mut entries: Vec<(Key, Node)> = Vec::new();
        let mut merged = Vec::new();
        let mut seen: HashMap<Rc<str>, Span> = HashMap::new();
        let end = loop {
            let (event, at) = self.next()?;
            if matches!(event, Event::MappingEnd) {
                break end_of(style, at, entries.last().map(|(_, last)| last));
            }
            let key = self.node(event, at, depth + 1)?;
            let (event, value_at) = self.next()?;
            let value = self.node(event, value_at, depth + 1)?;
            match key.value {
                Value::Scalar(Scalar { text, quoted: false }) if &*text == "<<" => merged.push(value),
                Value::Scalar(Scalar { text, .. }) => {
                    if let Some(first) = seen.insert(text.clone(), key.span) {
                        let problem =
                            Problem::new(key.span, format!("`{text}` is given twice"), "remove one of them");
                        return Err(Problem { related: Some((first, "first given here")), ..problem });
                    }
                    entries.push((Key { text, span: key.span }, value));
                }
                _ => {
                    return Err(Problem::new(key.span, "a field's name must be text", "write `name: value`"));
                }
            }
        };
        for value in merged {
            self.merge(&value, &mut entries, &mut seen)?;
        }
        let weight =
            1 + entries.iter().map(|(key, value)| weight_of(&key.text) + value.weight).sum::<usize>();
        Ok(Node { span: span.until(end), value: Value::Map(entries.into()), weight })
    }

    /// `<<: *base`: adds the fields of `base` that are not given here.
    fn merge(
        &mut self,
        from: &Node,
        entries: &mut Vec<(Key, Node)>,
        seen: &mut HashMap<Rc<str>, Span>,
    ) -> Read<()> {
        match &from.value {
            Value::Map(fields) => {
                self.repeat(from)?;
                for (key, value) in fields.iter() {
                    if seen.insert(key.text.clone(), key.span).is_none() {
                        entries.push((key.clone(), value.clone()));
                    }
                }
                Ok(())
            }
            Value::List(items) if items.iter().all(|item| matches!(item.value, Value::Map(_))) => {
                items.iter().try_for_each(|item| self.merge(item, entries, seen))
            }
            _ => Err(Problem::new(
                from.span,
                "`<<` takes a mapping, or a list of them",
                "write `<<: *name`, where `&name` marks a mapping",
            )),
        }
    }

    fn alias(&mut self, anchor: usize, span: Span) -> Read<Node> {
        let Some(node) = self.anchors.get(&anchor).cloned() else {
            // An alias within its own anchor.
            return Err(Problem::new(
                span,
                "this alias refers to a value that contains it",
                "write the value out",
            ));
        };
        self.repeat(&node)?;
        Ok(node)
    }

    /// A traversal of the tree visits a repeated value again, so each repetition counts.
    fn repeat(&mut self, node: &Node) -> Read<()> {
        self.repeated += node.weight;
        if self.repeated > MOST_REPEATED {
            let message = format!("aliases repeat more than {MOST_REPEATED} values");
            return Err(Problem::new(node.span, message, "write the values out instead of repeating them"));
        }
        Ok(())
    }

    fn span(&self, bytes: std::ops::Range<usize>) -> Span {
        Span::new(self.file, bytes.start, bytes.end)
    }

    fn syntax_error(&self, error: &ScanError) -> Problem {
        let at = error.marker().byte_offset().unwrap_or(self.end);
        // An alias is `*name`; a star in a rule is probably meant as a pattern.
        if self.text[at.min(self.end)..].starts_with('*') || self.text[..at.min(self.end)].ends_with('*') {
            let message = "a star begins an alias in YAML, not a pattern";
            return Problem::new(
                Span::at(self.file, at),
                message,
                "quote it, as in \"*\" or \"*.example.com\"",
            );
        }
        let message = format!("this is not valid YAML: {}", error.kind());
        Problem::new(Span::at(self.file, at), message, "check indentation, quotes and colons around here")
    }
}

/// The end of a collection: its bracket, or the last value in it.
fn end_of(style: StructureStyle, closing: Span, last: Option<&Node>) -> usize {
    match (style, last) {
        (StructureStyle::Block, Some(last)) => last.span.end,
        _ => closing.end,
    }
}

fn scalar(text: &str, quoted: bool, span: Span) -> Node {
    let is_null = !quoted && matches!(text, "" | "~" | "null" | "Null" | "NULL");
    let value = if is_null { Value::Null } else { Value::Scalar(Scalar { text: text.into(), quoted }) };
    Node { span, value, weight: weight_of(text) }
}

fn weight_of(text: &str) -> usize {
    1 + text.len() / BYTES_OF_A_VALUE
}

/// Whether the tag makes a scalar text; tags other than YAML's own are rejected.
fn check_tag(tag: Option<&Tag>, span: Span) -> Read<bool> {
    match tag {
        None => Ok(false),
        Some(tag) if tag.core_suffix().is_some() => Ok(tag.is_yaml_core_schema_tag("str")),
        Some(tag) => Err(Problem::new(span, format!("the tag `{tag}` means nothing here"), "remove it")),
    }
}
