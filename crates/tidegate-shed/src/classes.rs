//! How critical a request is if no rule says so: by path, test marker and method.

use tidegate_rules::Priority;

/// The class of requests that no rule gives a priority.
///
/// In this order: critical paths are P0, background paths and test traffic P3, writes P1, and the rest (reads) P2. By default
/// no path is critical or background: only an operator knows which are.
///
/// ```
/// use tidegate_shed::Classes;
/// use tidegate_rules::Priority;
///
/// let classes = Classes { critical: vec!["/charges".to_owned()], ..Classes::default() };
/// assert_eq!(classes.class_of(&[("method", b"POST"), ("path", b"/charges/1")]), Priority::P0);
/// assert_eq!(classes.class_of(&[("method", b"POST"), ("path", b"/notes")]), Priority::P1);
/// assert_eq!(classes.class_of(&[("method", b"GET"), ("path", b"/notes")]), Priority::P2);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Classes {
    /// Paths, with everything below them, that are P0.
    pub critical: Vec<String>,
    /// Paths, with everything below them, that are P3.
    pub background: Vec<String>,
    /// Attributes and values that mark test traffic, which is P3.
    pub test: Vec<(String, String)>,
    /// The class of requests with a method that changes something.
    pub writes: Priority,
    /// The class of requests with a safe method or none.
    pub reads: Priority,
}

impl Default for Classes {
    fn default() -> Self {
        Classes {
            critical: Vec::new(),
            background: Vec::new(),
            test: vec![("mode".to_owned(), "test".to_owned())],
            writes: Priority::P1,
            reads: Priority::P2,
        }
    }
}

impl Classes {
    /// The class of a request with these attributes.
    #[must_use]
    pub fn class_of(&self, entries: &[(&str, &[u8])]) -> Priority {
        let value = |name: &str| entries.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
        let path = value("path").unwrap_or_default();
        let below = |paths: &[String]| paths.iter().any(|prefix| is_below(prefix, path));
        let is_test = || self.test.iter().any(|(name, test)| value(name) == Some(test.as_bytes()));
        if below(&self.critical) {
            Priority::P0
        } else if below(&self.background) || is_test() {
            Priority::P3
        } else if value("method").is_some_and(changes_something) {
            self.writes
        } else {
            self.reads
        }
    }
}

/// `/api` matches `/api` and `/api/x`, not `/apis`.
fn is_below(prefix: &str, path: &[u8]) -> bool {
    let prefix = prefix.trim_end_matches('/').as_bytes();
    path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

/// Every method except those that HTTP defines as safe.
fn changes_something(method: &[u8]) -> bool {
    !matches!(method, b"GET" | b"HEAD" | b"OPTIONS" | b"TRACE")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(entries: &[(&str, &[u8])]) -> Priority {
        let paths = |path: &str| vec![path.to_owned()];
        let classes = Classes { critical: paths("/pay"), background: paths("/stats/"), ..Classes::default() };
        classes.class_of(entries)
    }

    #[test]
    fn a_path_speaks_before_a_mode_and_a_mode_before_a_method() {
        assert_eq!(class(&[("method", b"GET"), ("path", b"/pay/1"), ("mode", b"test")]), Priority::P0);
        assert_eq!(class(&[("method", b"POST"), ("path", b"/x"), ("mode", b"test")]), Priority::P3);
        assert_eq!(class(&[("method", b"POST"), ("path", b"/stats")]), Priority::P3);
        assert_eq!(class(&[("method", b"DELETE"), ("path", b"/x"), ("mode", b"live")]), Priority::P1);
        assert_eq!(class(&[("method", b"HEAD"), ("path", b"/x")]), Priority::P2);
    }

    #[test]
    fn a_path_that_only_begins_alike_is_another() {
        assert_eq!(class(&[("method", b"GET"), ("path", b"/payments")]), Priority::P2);
    }

    #[test]
    fn who_does_not_say_what_it_does_only_looks() {
        assert_eq!(class(&[]), Priority::P2);
    }
}
