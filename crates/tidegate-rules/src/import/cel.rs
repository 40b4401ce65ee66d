//! The conditions in Limitador files: the small part of CEL that rules can express.
//!
//! Comparisons of one attribute with texts, and whether there is one (`has`), joined by `&&`; `||` if it lists values of one attribute. Anything else is
//! rejected with a reason, never guessed at.

use super::draft::{DraftCondition, literal};

/// An attribute that an expression names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reference {
    /// Which descriptor; `None` for a bare name.
    pub(super) descriptor: Option<u32>,
    pub(super) attribute: String,
}

/// A statement about one attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Statement {
    pub(super) about: Reference,
    pub(super) condition: DraftCondition,
}

/// The statements of a condition, all of which must hold.
pub(super) fn condition(text: &str) -> Result<Vec<Statement>, String> {
    let mut parser = Parser::new(text)?;
    let statements = parser.any_of(0)?;
    parser.end()?;
    Ok(statements)
}

/// The attribute of a variable.
pub(super) fn variable(text: &str) -> Result<Reference, String> {
    let mut parser = Parser::new(text)?;
    let reference = parser.reference()?;
    parser.end()?;
    Ok(reference)
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Text(String),
    Number(u32),
    Sign(&'static str),
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
}

/// The deepest nesting of parentheses and negations: no person writes more.
const DEEPEST: usize = 32;

impl Parser {
    fn new(text: &str) -> Result<Self, String> {
        Ok(Parser { tokens: tokens(text)?, at: 0 })
    }

    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    fn take(&mut self, sign: &str) -> bool {
        let is_next = matches!(self.peek(), Some(Token::Sign(other)) if *other == sign);
        self.at += usize::from(is_next);
        is_next
    }

    fn expect(&mut self, sign: &str) -> Result<(), String> {
        if self.take(sign) { Ok(()) } else { Err(format!("`{sign}` was expected")) }
    }

    fn end(&self) -> Result<(), String> {
        match self.peek() {
            None => Ok(()),
            Some(token) => Err(format!("{} was not expected", shown(token))),
        }
    }

    /// Alternatives; more than one only if they are values of the same attribute.
    fn any_of(&mut self, depth: usize) -> Result<Vec<Statement>, String> {
        let mut statements = self.all_of(depth)?;
        while self.take("||") {
            let other = self.all_of(depth)?;
            match (statements.as_mut_slice(), other.as_slice()) {
                ([one], [other])
                    if one.about == other.about
                        && one.condition.not.is_empty()
                        && other.condition.not.is_empty() =>
                {
                    one.condition.is.extend(other.condition.is.iter().cloned());
                }
                _ => return Err("`||` between different attributes needs rules of their own".into()),
            }
        }
        Ok(statements)
    }

    fn all_of(&mut self, depth: usize) -> Result<Vec<Statement>, String> {
        let mut statements = self.one(depth)?;
        while self.take("&&") {
            statements.extend(self.one(depth)?);
        }
        Ok(statements)
    }

    fn one(&mut self, depth: usize) -> Result<Vec<Statement>, String> {
        if depth > DEEPEST {
            return Err("it is nested too deep".into());
        }
        if self.take("!") {
            return match self.one(depth + 1)?.as_slice() {
                [Statement { about, condition }] if condition.not.is_empty() => {
                    let condition = DraftCondition { is: Vec::new(), not: condition.is.clone() };
                    Ok(vec![Statement { about: about.clone(), condition }])
                }
                _ => Err("`!` is understood before one comparison".into()),
            };
        }
        if self.take("(") {
            let statements = self.any_of(depth + 1)?;
            self.expect(")")?;
            return Ok(statements);
        }
        self.comparison().map(|statement| vec![statement])
    }

    fn comparison(&mut self) -> Result<Statement, String> {
        if let Some(Token::Text(text)) = self.peek().cloned() {
            self.at += 1;
            if self.word("in") {
                return self.present(text);
            }
            if self.take("==") {
                return Ok(Statement::is(self.reference()?, literal(&text)));
            }
            self.expect("!=")?;
            return Ok(Statement::is_not(self.reference()?, literal(&text)));
        }
        let is_call = self.tokens.get(self.at + 1) == Some(&Token::Sign("("));
        if is_call && self.word("has") {
            self.expect("(")?;
            let about = self.reference()?;
            self.expect(")")?;
            return Ok(Statement::is(about, "*".into()));
        }
        let about = self.reference()?;
        if self.take("==") {
            return Ok(Statement::is(about, literal(&self.text()?)));
        }
        if self.take("!=") {
            return Ok(Statement::is_not(about, literal(&self.text()?)));
        }
        if self.word("in") {
            let condition = DraftCondition { is: self.texts()?, not: Vec::new() };
            return Ok(Statement { about, condition });
        }
        self.call(about)
    }

    /// `'key' in descriptors[0]`.
    fn present(&mut self, attribute: String) -> Result<Statement, String> {
        if !self.word("descriptors") {
            return Err("`in` is understood with `descriptors[0]` or a list of texts".into());
        }
        let descriptor = Some(self.index()?);
        Ok(Statement::is(Reference { descriptor, attribute }, "*".into()))
    }

    /// `.startsWith('/v1')` and the like.
    fn call(&mut self, about: Reference) -> Result<Statement, String> {
        self.expect(".").map_err(|_| "it is not a comparison with a text".to_owned())?;
        let Some(Token::Word(name)) = self.peek().cloned() else { return Err("a name was expected".into()) };
        self.at += 1;
        let pattern: fn(String) -> String = match name.as_str() {
            "startsWith" => |text| format!("{text}*"),
            "endsWith" => |text| format!("*{text}"),
            "contains" => |text| format!("*{text}*"),
            _ => return Err(format!("`{name}` has no counterpart: patterns know only `*`")),
        };
        self.expect("(")?;
        let text = self.text()?;
        self.expect(")")?;
        Ok(Statement::is(about, pattern(literal(&text))))
    }

    /// `descriptors[0]['key']`, `descriptors[0].key`, or a bare name.
    fn reference(&mut self) -> Result<Reference, String> {
        let Some(Token::Word(first)) = self.peek().cloned() else {
            return Err("an attribute was expected".into());
        };
        self.at += 1;
        if first == "limit" {
            return Err("it asks about the limit itself".into());
        }
        if first != "descriptors" {
            return Ok(Reference { descriptor: None, attribute: self.dotted(first) });
        }
        let descriptor = Some(self.index()?);
        if self.take("[") {
            let attribute = self.text()?;
            self.expect("]")?;
            return Ok(Reference { descriptor, attribute });
        }
        self.expect(".")?;
        match self.peek().cloned() {
            Some(Token::Word(attribute)) => {
                self.at += 1;
                Ok(Reference { descriptor, attribute })
            }
            _ => Err("an attribute was expected".into()),
        }
    }

    /// `req.method`, but not the function in `path.startsWith(…)`.
    fn dotted(&mut self, first: String) -> String {
        let mut name = first;
        while let [Token::Sign("."), Token::Word(next), rest @ ..] = &self.tokens[self.at..] {
            if rest.first() == Some(&Token::Sign("(")) {
                break;
            }
            name = format!("{name}.{next}");
            self.at += 2;
        }
        name
    }

    fn index(&mut self) -> Result<u32, String> {
        self.expect("[")?;
        let Some(Token::Number(index)) = self.peek() else { return Err("a number was expected".into()) };
        let index = *index;
        self.at += 1;
        self.expect("]")?;
        Ok(index)
    }

    fn texts(&mut self) -> Result<Vec<String>, String> {
        self.expect("[")?;
        let mut texts = vec![literal(&self.text()?)];
        while self.take(",") {
            texts.push(literal(&self.text()?));
        }
        self.expect("]")?;
        Ok(texts)
    }

    fn text(&mut self) -> Result<String, String> {
        match self.peek() {
            Some(Token::Text(text)) => {
                let text = text.clone();
                self.at += 1;
                Ok(text)
            }
            Some(token) => Err(format!("a text in quotes was expected, not {}", shown(token))),
            None => Err("a text in quotes was expected".into()),
        }
    }

    fn word(&mut self, word: &str) -> bool {
        let is_next = matches!(self.peek(), Some(Token::Word(other)) if other == word);
        self.at += usize::from(is_next);
        is_next
    }
}

impl Statement {
    fn is(about: Reference, pattern: String) -> Self {
        Statement { about, condition: DraftCondition { is: vec![pattern], not: Vec::new() } }
    }

    fn is_not(about: Reference, pattern: String) -> Self {
        Statement { about, condition: DraftCondition { is: Vec::new(), not: vec![pattern] } }
    }
}

fn tokens(text: &str) -> Result<Vec<Token>, String> {
    const SIGNS: [&str; 12] = ["==", "!=", "&&", "||", "[", "]", "(", ")", ".", ",", "!", "-"];
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let ends = |is_part: fn(char) -> bool| rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let length = if let Some(sign) = SIGNS.into_iter().find(|sign| rest.starts_with(sign)) {
            tokens.push(Token::Sign(sign));
            sign.len()
        } else if first == '\'' || first == '"' {
            let (text, length) = quoted(rest, first)?;
            tokens.push(Token::Text(text));
            length
        } else if first.is_ascii_digit() {
            let length = ends(|c| c.is_ascii_digit());
            tokens
                .push(Token::Number(rest[..length].parse().map_err(|_| "a number is too large".to_owned())?));
            length
        } else if first.is_ascii_alphabetic() || first == '_' {
            let length = ends(|c| c.is_ascii_alphanumeric() || c == '_');
            tokens.push(Token::Word(rest[..length].to_owned()));
            length
        } else {
            return Err(format!("`{first}` is not understood"));
        };
        rest = rest[length..].trim_start();
    }
    Ok(tokens)
}

/// The quoted text at the start of `rest`, and its length there.
fn quoted(rest: &str, quote: char) -> Result<(String, usize), String> {
    let mut text = String::new();
    let mut chars = rest.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        match c {
            c if c == quote => return Ok((text, at + 1)),
            '\\' => match chars.next() {
                Some((_, escaped @ ('\\' | '\'' | '"'))) => text.push(escaped),
                _ => return Err("an escape in a text is not understood".into()),
            },
            c => text.push(c),
        }
    }
    Err("a text has no closing quote".into())
}

fn shown(token: &Token) -> String {
    match token {
        Token::Word(word) => format!("`{word}`"),
        Token::Text(text) => format!("`'{text}'`"),
        Token::Number(number) => format!("`{number}`"),
        Token::Sign(sign) => format!("`{sign}`"),
    }
}
