//! Remembers the field names of an object from earlier lines.
//!
//! A program writes the fields of its log in the same order on every line. So the text before each value is compared with
//! the text at the same position last time; if it is equal, the field is known at once, and only a new name is parsed and
//! looked up. Lines in another order are parsed as well, at a higher cost.

use super::BadLine;
use super::json::{Name, Walk};

/// The most positions remembered, and the longest text of one: anything beyond is parsed anew on every line.
const MOST_FIELDS: usize = 64;
const MOST_BYTES: usize = 64;

/// The meanings of an object's fields, in the order last seen.
#[derive(Debug)]
pub(super) struct Shape<F> {
    meaning: fn(&[u8]) -> F,
    /// All text before the value, including its name, and the field's meaning.
    known: Vec<(Vec<u8>, F)>,
}

impl<F: Copy> Shape<F> {
    /// An empty shape; `meaning` maps a field's name to its meaning.
    pub(super) fn new(meaning: fn(&[u8]) -> F) -> Self {
        Shape { meaning, known: Vec::new() }
    }

    /// Calls `each` with the meaning of every field of the object at `walk`, in order; `each` must consume the value.
    #[inline]
    pub(super) fn fields<'a>(
        &mut self,
        walk: &mut Walk<'a>,
        mut each: impl FnMut(F, &mut Walk<'a>) -> Result<(), BadLine>,
    ) -> Result<(), BadLine> {
        let mut place = 0;
        loop {
            let field = match self.known.get(place) {
                Some((written, field)) if walk.skip_text(written) => *field,
                _ => match walk.next_name(place)? {
                    Some(name) => self.learn(place, &name),
                    None => return Ok(()),
                },
            };
            each(field, walk)?;
            place += 1;
        }
    }

    #[cold]
    fn learn(&mut self, place: usize, name: &Name<'_>) -> F {
        let field = (self.meaning)(name.text);
        if place < MOST_FIELDS && name.written.len() <= MOST_BYTES {
            if let Some((written, meaning)) = self.known.get_mut(place) {
                written.clear();
                written.extend_from_slice(name.written);
                *meaning = field;
            } else if place == self.known.len() {
                self.known.push((name.written.to_vec(), field));
            }
        }
        field
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(shape: &mut Shape<u8>, line: &str) -> Result<Vec<(char, String)>, BadLine> {
        let (mut walk, mut all) = (Walk::over(line.as_bytes()), Vec::new());
        shape.fields(&mut walk, |field, walk| {
            let value = walk.value()?.scalar().unwrap_or_default();
            all.push((char::from(field), String::from_utf8_lossy(&value).into_owned()));
            Ok(())
        })?;
        walk.end()?;
        Ok(all)
    }

    /// The first byte of a name.
    fn first(name: &[u8]) -> u8 {
        name.first().copied().unwrap_or(b'?')
    }

    #[test]
    fn a_line_says_the_same_whatever_lines_came_before() {
        let long = format!(r#"{{"{}":1,"b":2,"c":3}}"#, "a".repeat(100));
        let many = format!(r#"{{"x":0{}}}"#, (0..100).map(|n| format!(r#","f{n}":{n}"#)).collect::<String>());
        let lines = [
            r#"{"a":"1","b":"2"}"#,
            r#"{"b":"1","a":"2"}"#,
            r#"{"a":"1"}"#,
            r#"{"a":"1","a":"2","b":"3","c":"4"}"#,
            r#" { "a" : "1" , "b" : "2" } "#,
            r#"{"a":"1", "b":"2"}"#,
            r#"{"a"":"1","b":"2"}"#,
            r#"{"a":"","b":","b":"2"}"#,
            "{}",
            " {\n } ",
            &long,
            &many,
            r#"{"a":1,}"#,
            r#"{"a":1"b":2}"#,
            r#"{"a":1}x"#,
            r#"{"a":1,"b":"#,
            r#"{"a""#,
            r#""a":1}"#,
            "",
        ];
        for before in lines {
            let mut shape = Shape::new(first);
            for line in lines {
                let _ = seen(&mut shape, before);
                assert_eq!(seen(&mut shape, line), seen(&mut Shape::new(first), line), "{before} {line}");
            }
        }
        let expected = ["a1", "a2", "b3", "c4"].map(|pair| (pair.as_bytes()[0].into(), pair[1..].to_owned()));
        assert_eq!(seen(&mut Shape::new(first), lines[3]), Ok(expected.to_vec()));
        assert_eq!(seen(&mut Shape::new(first), &many).map(|all| all.len()), Ok(101));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut shape = Shape::new(first);
        let line = (0..1_000).map(|n| format!(r#""{}":1"#, "f".repeat(n))).collect::<Vec<_>>().join(",");
        assert_eq!(seen(&mut shape, &format!("{{{line}}}")).map(|all| all.len()), Ok(1_000));
        assert!(shape.known.len() <= MOST_FIELDS);
        assert!(shape.known.iter().all(|(written, _)| written.len() <= MOST_BYTES));
    }
}
