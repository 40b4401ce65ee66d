//! The documentation holds together: every page is in the site's table of contents, every relative link leads to a file and
//! every anchor to a heading, and every code block says by its language whether a test runs it.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use crate::{expect_none, root};

/// Languages of code blocks. `console` is run and `yaml` validated by `crates/tidegate-cli/tests/it/reference.rs`, `conf` is
/// given to Redis there, `rust` is compiled as documentation of the library; the others are shown, and not run.
const LANGUAGES: [&str; 13] =
    ["console", "yaml", "conf", "rust", "sh", "shell", "text", "json", "toml", "java", "js", "python", "go"];

/// Pages whose `console` blocks are run.
const RUN: [&str; 3] = ["docs/reference/", "docs/start/", "README.md"];

#[test]
fn every_page_is_in_the_table_of_contents() {
    let summary = read(Path::new("docs/SUMMARY.md"));
    let listed: BTreeSet<PathBuf> = links(&summary).map(|link| Path::new("docs").join(link)).collect();
    let pages: BTreeSet<PathBuf> = pages()
        .into_iter()
        .filter(|page| page.starts_with("docs") && !page.ends_with("SUMMARY.md"))
        .collect();
    let missing: Vec<String> = pages.difference(&listed).map(|page| page.display().to_string()).collect();
    expect_none(&missing, "add the page to docs/SUMMARY.md");
    let gone: Vec<String> = listed.difference(&pages).map(|page| page.display().to_string()).collect();
    expect_none(&gone, "docs/SUMMARY.md lists pages that exist");
}

#[test]
fn every_relative_link_leads_somewhere() {
    let mut broken = Vec::new();
    for page in pages() {
        for link in links(&without_code(&read(&page))) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() { page.clone() } else { resolve(&page, path) };
            let is_there = root().join(&target).exists();
            let has_anchor = || {
                anchor.is_empty()
                    || target.extension().is_none_or(|extension| extension != "md")
                    || anchors(&read(&target)).iter().any(|known| known == anchor)
            };
            if !is_there || !has_anchor() {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    expect_none(&broken, "a relative link leads to a file, and its anchor to a heading");
}

#[test]
fn no_page_of_the_site_links_out_of_it() {
    let mut leaving = Vec::new();
    for page in pages().into_iter().filter(|page| page.starts_with("docs")) {
        for link in links(&without_code(&read(&page))).filter(|link| !link.contains("://")) {
            let path = link.split('#').next().unwrap_or_default();
            if !path.is_empty() && !resolve(&page, path).starts_with("docs") {
                leaving.push(format!("{}: {link}", page.display()));
            }
        }
    }
    expect_none(&leaving, "the site holds only docs/: name files outside of it in backquotes");
}

#[test]
fn every_file_of_the_repository_that_a_page_names_exists() {
    const FOLDERS: [&str; 7] = ["clients/", "crates/", "deploy/", "docs/", "examples/", "fuzz/", "xtask/"];
    let mut gone = Vec::new();
    // The changelog also names what is gone.
    for page in pages().into_iter().filter(|page| !page.ends_with("CHANGELOG.md")) {
        let text = read(&page);
        let prose = text.split("\n```").step_by(2).collect::<Vec<_>>().join("\n");
        for name in prose.split('`').skip(1).step_by(2) {
            let is_path = FOLDERS.iter().any(|folder| name.starts_with(folder))
                && name.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
            if is_path && !root().join(name).exists() {
                gone.push(format!("{}: {name}", page.display()));
            }
        }
    }
    expect_none(&gone, "name files that exist");
}

#[test]
fn every_code_block_says_whether_a_test_runs_it() {
    let mut wrong = Vec::new();
    for page in pages()
        .into_iter()
        .filter(|page| page.starts_with("docs") || page.as_path() == Path::new("README.md"))
    {
        for language in languages(&read(&page)) {
            let is_run = RUN.iter().any(|run| page.to_string_lossy().starts_with(run));
            if !LANGUAGES.contains(&language.as_str()) || (language == "console" && !is_run) {
                wrong.push(format!("{}: ```{language}", page.display()));
            }
        }
    }
    let hint = format!(
        "a block is one of {LANGUAGES:?}; `console` only where a test runs it, otherwise `sh` or `text`"
    );
    expect_none(&wrong, &hint);
}

#[test]
fn no_entry_of_the_changelog_stands_twice() {
    // Merged line by line (`merge=union`), the file keeps what one side added and the other moved twice.
    let text = read(Path::new("CHANGELOG.md"));
    let mut seen = BTreeSet::new();
    let entries = text.lines().filter(|line| line.starts_with("- "));
    let twice: Vec<String> = entries.filter(|line| !seen.insert(*line)).map(str::to_owned).collect();
    assert!(seen.len() > 100, "the entries have moved");
    expect_none(&twice, "an entry of CHANGELOG.md stands once");
    let first = text.lines().find(|line| line.starts_with("## "));
    assert_eq!(first, Some("## Unreleased"), "new entries stand above the releases");
}

/// README.md and what else stands beside it, and every page below docs.
fn pages() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"].map(PathBuf::from).into();
    let mut folders = vec![PathBuf::from("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(root().join(&folder)).expect("docs can be read") {
            let entry = entry.expect("docs can be read");
            let path = folder.join(entry.file_name());
            if entry.path().is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    assert!(found.len() > 20, "the pages have moved");
    found
}

fn read(page: &Path) -> String {
    std::fs::read_to_string(root().join(page)).unwrap_or_else(|error| panic!("{}: {error}", page.display()))
}

/// The targets of inline links and images.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split(')').next()).filter(|link| !link.contains(' '))
}

/// The text without fenced blocks and without inline code.
fn without_code(text: &str) -> String {
    let fenced = text.split("```").step_by(2).collect::<Vec<_>>().join("\n");
    fenced.split('`').step_by(2).collect()
}

fn languages(text: &str) -> Vec<String> {
    let mut inside = false;
    let mut found = Vec::new();
    for fence in text.lines().filter_map(|line| line.trim_start().strip_prefix("```")) {
        if !inside {
            found.push(fence.to_owned());
        }
        inside = !inside;
    }
    found
}

/// The path of a link, from the root of the repository.
fn resolve(page: &Path, link: &str) -> PathBuf {
    let mut path = page.parent().map(Path::to_owned).unwrap_or_default();
    for part in Path::new(link).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::Normal(name) => path.push(name),
            _ => {}
        }
    }
    path
}

/// The anchors of a page's headings, as GitHub and mdBook make them.
fn anchors(text: &str) -> Vec<String> {
    let prose = text.split("\n```").step_by(2).collect::<Vec<_>>().join("\n");
    let headings =
        prose.lines().filter_map(|line| line.strip_prefix('#')).map(|line| line.trim_start_matches('#'));
    let anchor = |heading: &str| {
        let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.collect::<String>().to_lowercase().replace(' ', "-")
    };
    headings.map(anchor).collect()
}

#[test]
fn an_anchor_is_a_heading_in_small_letters_with_dashes() {
    assert_eq!(anchors("# Open, closed or local\n## TG.CHECK `x`\n"), ["open-closed-or-local", "tgcheck-x"]);
}

#[test]
fn links_in_code_are_not_followed() {
    let text = "[a](b.md) `[c](d.md)`\n```text\n[e](f.md)\n```\n![g](h.png)";
    assert_eq!(links(&without_code(text)).collect::<Vec<_>>(), ["b.md", "h.png"]);
}
