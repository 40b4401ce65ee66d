//! The documents of a version: one per domain, as a person wrote them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidegate_rules::{Diagnostics, Format, Outline, RuleSet, Source, outline};

/// One domain's rules as a person wrote them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// The domain.
    pub domain: String,
    /// YAML, comments included.
    pub text: String,
}

/// All documents of a version, at most one per domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DocumentSet {
    by_domain: BTreeMap<String, String>,
}

/// Why text cannot be split into documents.
#[derive(Debug, thiserror::Error)]
pub enum SplitError {
    /// It is not YAML.
    #[error(transparent)]
    Yaml(#[from] Diagnostics),
    /// A document names no domain.
    #[error("a document of {file} names no domain")]
    NoDomain {
        /// The file.
        file: String,
    },
}

impl DocumentSet {
    /// A set of these; a second document of a domain is appended to the first.
    #[must_use]
    pub fn new(documents: impl IntoIterator<Item = Document>) -> Self {
        let mut set = DocumentSet::default();
        for Document { domain, text } in documents {
            match set.by_domain.get_mut(&domain) {
                Some(first) => {
                    if !first.ends_with('\n') {
                        first.push('\n');
                    }
                    first.push_str("---\n");
                    first.push_str(&text);
                }
                None => drop(set.by_domain.insert(domain, text)),
            }
        }
        set
    }

    /// Splits rule files into one document per domain. Nothing is lost: comments and order stay.
    ///
    /// # Errors
    /// A file is not YAML, or has no domain.
    pub fn split(files: &[Source]) -> Result<Self, SplitError> {
        let mut documents = Vec::new();
        for file in files {
            // The compiler shows a mistake better, under the file's own name.
            if let Err(found) = outline(&file.text) {
                RuleSet::compile(std::slice::from_ref(file), Format::Native)?;
                return Err(found.into());
            }
            let mut before = String::new();
            for part in parts(&file.text) {
                let text = std::mem::take(&mut before) + part;
                match outline(&text).ok().as_deref() {
                    Some([Outline { domain: Some(domain), .. }]) => {
                        documents.push(Document { domain: domain.clone(), text });
                    }
                    // A part with only comments belongs to the next document.
                    None => before = text,
                    Some(_) => return Err(SplitError::NoDomain { file: file.name.clone() }),
                }
            }
            if let Some(last) = documents.last_mut() {
                last.text.push_str(&before);
            }
        }
        Ok(DocumentSet::new(documents))
    }

    /// The text of one domain.
    #[must_use]
    pub fn get(&self, domain: &str) -> Option<&str> {
        self.by_domain.get(domain).map(String::as_str)
    }

    /// Domains and texts, sorted by domain.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.by_domain.iter().map(|(domain, text)| (domain.as_str(), text.as_str()))
    }

    /// The set with another text for `domain`.
    #[must_use]
    pub fn with(&self, domain: &str, text: String) -> Self {
        let mut changed = self.clone();
        changed.by_domain.insert(domain.to_owned(), text);
        changed
    }

    /// As a list, sorted by domain.
    #[must_use]
    pub fn to_documents(&self) -> Vec<Document> {
        self.iter()
            .map(|(domain, text)| Document { domain: domain.to_owned(), text: text.to_owned() })
            .collect()
    }

    /// In the compiler's form; messages name a document by its domain.
    #[must_use]
    pub fn sources(&self) -> Vec<Source> {
        self.iter().map(|(domain, text)| Source::new(domain, text)).collect()
    }
}

/// The documents of a file, without the separators. In YAML a line that begins with `---` always is one.
fn parts(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let (mut start, mut at) = (0, 0);
    for line in text.split_inclusive('\n') {
        let next = at + line.len();
        if line.strip_prefix("---").is_some_and(|rest| rest.trim_end().is_empty()) {
            found.push(&text[start..at]);
            start = next;
        }
        at = next;
    }
    found.push(&text[start..]);
    found.retain(|part| !part.is_empty());
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str) -> Vec<(String, String)> {
        let set = DocumentSet::split(&[Source::new("a.yaml", text)]).unwrap();
        set.iter().map(|(domain, text)| (domain.to_owned(), text.to_owned())).collect()
    }

    #[test]
    fn a_file_of_several_documents_is_one_per_domain_and_nothing_is_lost() {
        let text =
            "# Ours.\n---\n# Web.\ndomain: web\nrules: []\n---\ndomain: api # the API\nrules: []\n# End.\n";
        let expected = [
            ("api".to_owned(), "domain: api # the API\nrules: []\n# End.\n".to_owned()),
            ("web".to_owned(), "# Ours.\n# Web.\ndomain: web\nrules: []\n".to_owned()),
        ];
        assert_eq!(split(text), expected);
    }

    #[test]
    fn a_file_of_one_document_stays_as_it_is() {
        let text = "# A comment.\ndomain: api\n\nrules: [] # none\n";
        assert_eq!(split(text), [("api".to_owned(), text.to_owned())]);
    }

    #[test]
    fn a_document_without_a_domain_names_its_file() {
        let error = DocumentSet::split(&[Source::new("x.yaml", "rules: []\n")]).unwrap_err();
        assert!(error.to_string().contains("x.yaml"), "{error}");
    }
}
