//! Untrusted text on a terminal: callers choose their keys, and an escape sequence in one must not take effect.

use std::fmt::Write as _;

/// The text on one line, with escapes for characters that a terminal would act on or hide.
pub(crate) fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for one in text.chars() {
        match one {
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            _ if one.is_control() || turns_text_around(one) => {
                let _ = write!(out, "\\u{{{:x}}}", u32::from(one));
            }
            _ => out.push(one),
        }
    }
    out
}

/// Characters that change the direction of the following text, so that `evil` can look like `live`.
fn turns_text_around(one: char) -> bool {
    matches!(one, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_act_on_is_escaped_and_letters_stay() {
        assert_eq!(plain("a\nb\u{1b}[31m\u{202e}é😀\0"), "a\\nb\\u{1b}[31m\\u{202e}é😀\\u{0}");
    }
}
