//! Recognises regular expressions where a glob belongs, and says which glob comes closest.

/// The glob to write in place of `text`, if that is a regular expression.
pub(super) fn as_glob(text: &str) -> Option<String> {
    const SIGNS: [&str; 9] = [".*", ".+", "[0-9", "[a-z", "[A-Z", "[^", "\\d", "\\w", "\\."];
    let text = undressed(text);
    let is_regex = text.starts_with('^')
        || text.starts_with("(?")
        || SIGNS.iter().any(|sign| text.contains(sign))
        || (text.contains('(') && text.contains('|') && text.contains(')'));
    is_regex.then(|| to_glob(text))
}

/// An expression without what others write around it: nginx's tilde, and slashes on both sides of one that is anchored.
fn undressed(text: &str) -> &str {
    let tilde = text.strip_prefix("~*").or_else(|| text.strip_prefix('~'));
    let text = tilde.map_or(text, str::trim_start);
    if !text.starts_with("/^") {
        return text;
    }
    match text[1..].rsplit_once('/') {
        Some((inner, flags)) if inner.len() > 1 && flags.chars().all(|flag| "gims".contains(flag)) => inner,
        _ => &text[1..],
    }
}

/// The narrowest glob that matches all that the expression does: whatever varies becomes a star.
pub(super) fn to_glob(regex: &str) -> String {
    let regex = match regex.strip_prefix("(?").and_then(|flags| flags.split_once(')')) {
        Some((flags, rest)) if flags.chars().all(|flag| flag.is_ascii_lowercase()) => rest,
        _ => regex,
    };
    let bare = regex.strip_prefix('^');
    // A path begins with a slash, so this is its start.
    let is_open_at_start = bare.is_none() && !regex.starts_with('/');
    let bare = bare.unwrap_or(regex);
    let is_open_at_end = !bare.ends_with('$');
    let mut glob = GlobText::default();
    if is_open_at_start {
        glob.star();
    }
    let mut rest = bare.trim_end_matches('$').chars().peekable();
    while let Some(letter) = rest.next() {
        match letter {
            '[' => {
                while rest.next_if(|other| *other != ']').is_some() {}
                rest.next();
                glob.star();
            }
            '(' => {
                let mut depth = 1;
                while depth > 0
                    && let Some(other) = rest.next()
                {
                    depth += i32::from(other == '(') - i32::from(other == ')');
                }
                glob.star();
            }
            '.' => glob.star(),
            '+' | '?' | '*' => glob.repeat(),
            '{' => {
                while rest.next_if(|other| *other != '}').is_some() {}
                rest.next();
                glob.repeat();
            }
            '\\' => match rest.next() {
                Some(class) if class.is_ascii_alphabetic() => glob.star(),
                Some(escaped) => glob.0.push(escaped),
                None => {}
            },
            plain => glob.0.push(plain),
        }
    }
    if is_open_at_end {
        glob.star();
    }
    glob.0
}

#[derive(Default)]
struct GlobText(String);

impl GlobText {
    fn star(&mut self) {
        if !self.0.ends_with('*') {
            self.0.push('*');
        }
    }

    /// What came last may be repeated or absent.
    fn repeat(&mut self) {
        self.0.pop();
        self.star();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_varies_becomes_a_star() {
        for (regex, glob) in [
            ("^/v[0-9]+/", "/v*/*"),
            ("^/v[0-9]+/.*$", "/v*/*"),
            ("^/v1/(users|items)$", "/v1/*"),
            (r"\.json$", "*.json"),
            (r"^/users/\d{1,5}$", "/users/*"),
            ("^/a/?$", "/a*"),
            ("/v1/.*", "/v1/*"),
            ("v1/.*", "*v1/*"),
            ("/^/v[0-9]+/.*$/", "/v*/*"),
            ("/^/v1$/i", "/v1"),
            ("/^/items", "/items*"),
            ("~ ^/v", "/v*"),
            ("~* \\.json$", "*.json"),
            ("(?i)^/v1$", "/v1"),
            ("(?i)/v1", "/v1*"),
            ("^[", "*"),
            ("^((", "*"),
            ("^\\", "*"),
        ] {
            assert_eq!(as_glob(regex).as_deref(), Some(glob), "{regex}");
        }
    }

    #[test]
    fn a_glob_is_no_regular_expression() {
        for glob in
            ["/v1/*", "*.json", "/a(b)", "/price$", "acme", "a+b", "/v1/{id}", "what?", "/[id]", "/~ann"]
        {
            assert_eq!(as_glob(glob), None, "{glob}");
        }
    }
}
