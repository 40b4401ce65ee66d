//! Path templates: `/users/{id}` makes one endpoint of a million paths.

use matchit::Router;

use super::attributes::Attributes;
use super::config::names;
use super::error::IdentityError;
use super::path::PathCase;

/// The templates, indexed for matching.
#[derive(Debug)]
pub(super) struct Routes {
    router: Option<Router<Template>>,
}

#[derive(Debug)]
struct Template {
    /// As written: the value of `route`.
    text: String,
    /// `path.id` for each `{id}`.
    parameters: Vec<(String, String)>,
}

const HINT: &str = "write templates as /users/{id} or /files/{*rest}, each path in one of them only";

impl Routes {
    pub(super) fn new(templates: &[String], case: PathCase) -> Result<Self, IdentityError> {
        if templates.is_empty() {
            return Ok(Routes { router: None });
        }
        let mut router = Router::new();
        for (at, text) in templates.iter().enumerate() {
            let wrong = |problem: String| IdentityError::new(format!("paths[{at}]"), problem, HINT);
            if !text.starts_with('/') {
                return Err(wrong(format!("`{text}` does not begin with a slash")));
            }
            let template = Template { text: text.clone(), parameters: parameters(text) };
            router
                .insert(matched_form(text, case), template)
                .map_err(|error| wrong(format!("`{text}`: {error}")))?;
        }
        Ok(Routes { router: Some(router) })
    }

    /// Adds the template of a normalised path as `route`, and its parameters as `path.NAME`.
    pub(super) fn read<'a>(&'a self, path: &str, attributes: &mut Attributes<'a>) {
        let Some(router) = &self.router else { return };
        let Ok(found) = router.at(path) else { return };
        attributes.push(names::ROUTE, found.value.text.as_bytes());
        for (name, attribute) in &found.value.parameters {
            if let Some(value) = found.params.get(name) {
                attributes.push(attribute.as_str(), value.as_bytes().to_vec());
            }
        }
    }
}

/// A template in the form of paths to match: no final slash, and lower case except for parameter names.
fn matched_form(text: &str, case: PathCase) -> String {
    let text = if text.len() > 1 { text.strip_suffix('/').unwrap_or(text) } else { text };
    if case == PathCase::Sensitive {
        return text.to_owned();
    }
    let mut in_name = false;
    let fold = |letter: char| {
        in_name = (in_name || letter == '{') && letter != '}';
        if in_name { letter } else { letter.to_ascii_lowercase() }
    };
    text.chars().map(fold).collect()
}

/// The parameters of a template, each with its attribute.
pub(super) fn parameters(text: &str) -> Vec<(String, String)> {
    let names = text.split('{').skip(1).filter_map(|rest| Some(rest.split_once('}')?.0));
    names
        .map(|name| name.trim_start_matches('*'))
        .map(|name| (name.to_owned(), format!("path.{name}")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::path::{ForwardedPath, NormalPath};
    use super::*;

    fn read(templates: &[&str], path: &str) -> Vec<(String, String)> {
        let templates: Vec<String> = templates.iter().map(ToString::to_string).collect();
        let routes = Routes::new(&templates, PathCase::Insensitive).unwrap();
        let mut attributes = Attributes::new();
        let path = NormalPath::read(path, PathCase::Insensitive, ForwardedPath::Normalised).unwrap();
        routes.read(path.matching(), &mut attributes);
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        attributes.entries().iter().map(|(name, value)| ((*name).to_owned(), text(value))).collect()
    }

    #[test]
    fn a_template_names_the_endpoint_and_what_stands_in_its_places() {
        let templates = ["/Users/{userId}", "/users/me", "/files/{*rest}"];
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            read(&templates, "/users/42/"),
            [pair("route", "/Users/{userId}"), pair("path.userId", "42")]
        );
        assert_eq!(read(&templates, "//USERS/me"), [pair("route", "/users/me")]);
        assert_eq!(read(&templates, "/files/a/b")[1], pair("path.rest", "a/b"));
        assert_eq!(read(&templates, "/users/42/posts"), []);
    }

    #[test]
    fn templates_that_cannot_be_told_apart_are_refused() {
        let templates = ["/users/{id}".to_owned(), "/users/{name}".to_owned()];
        let error = Routes::new(&templates, PathCase::Insensitive).unwrap_err();
        assert_eq!(error.field, "paths[1]");
    }
}
