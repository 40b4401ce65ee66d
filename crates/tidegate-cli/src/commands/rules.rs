//! `tidegate rules`: the rules of a fleet, through the admin API.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use comfy_table::Table;
use http::Method;
use serde_json::{Value, json};
use tidegate_rules::load;
use tidegate_rulestore::{Document, DocumentSet};
use tidegate_telemetry::url_part;

use crate::args::{Output, RulesArgs, RulesCommand};
use crate::commands::admin_client::{AdminClient, Reply};
use crate::failure::Failure;
use crate::terminal::plain;

/// The longest caller name shown.
const LONGEST_CALLER: usize = 80;

pub(crate) fn run(args: &RulesArgs) -> Result<ExitCode, Failure> {
    let client = AdminClient::new(&args.admin)?;
    let out = Printer { output: args.admin.output };
    match &args.what {
        RulesCommand::List => out.rules(&client.get("/rules")?.body)?,
        RulesCommand::Get { domain, rule: Some(rule) } => {
            let body = client.get(&format!("/rules/{}/{}", url_part(domain), url_part(rule)))?.body;
            out.text(&body, body["text"].as_str().unwrap_or_default())?;
        }
        RulesCommand::Get { domain, rule: None } => {
            let documents = documents(&client.get("/rules")?)?;
            let text = documents.get(domain).ok_or_else(|| no_document(domain, &documents))?;
            out.text(&json!({ "domain": domain, "text": text }), text)?;
        }
        RulesCommand::Edit { domain, reason } => edit(&client, &out, domain, reason)?,
        RulesCommand::Apply { paths, reason } => {
            let current = client.get("/rules")?;
            let wanted = split(paths)?
                .iter()
                .fold(documents(&current)?, |set, (domain, text)| set.with(domain, text.to_owned()));
            // A pipeline applies the same files in every run.
            match wanted == documents(&current)? {
                true => out.unchanged(&current.body["version"])?,
                false => out.published(&publish(&client, &current, &wanted, reason)?)?,
            }
        }
        RulesCommand::Import { paths, reason } => {
            let current = client.get("/rules")?;
            out.published(&publish(&client, &current, &split(paths)?, reason)?)?;
        }
        RulesCommand::Export { dir } => {
            let files = export(&client, dir)?;
            let text = match files.len() {
                1 => format!("1 document is in {}", dir.display()),
                many => format!("{many} documents are in {}", dir.display()),
            };
            out.text(&json!({ "directory": dir.display().to_string(), "files": files }), &text)?;
        }
        RulesCommand::Diff { what } => diff(&client, &out, what)?,
        RulesCommand::History { limit } => {
            out.history(&client.get(&format!("/versions?limit={limit}"))?.body)?
        }
        RulesCommand::Suggest { domain: Some(domain), rule: Some(rule), shadow: true, value, reason } => {
            let body = json!({ "domain": domain, "rule": rule, "value": value, "reason": reason });
            out.published(&client.post("/suggestions/shadow", &body)?.body)?;
        }
        RulesCommand::Suggest { domain, rule, .. } => {
            let mut path = "/suggestions?".to_owned();
            for (name, value) in [("domain", domain), ("rule", rule)] {
                value.iter().for_each(|value| path += &format!("{name}={}&", url_part(value)));
            }
            out.suggestions(&client.get(path.trim_end_matches(['?', '&']))?.body)?;
        }
        RulesCommand::Rollback { version, reason } => {
            let current = client.get("/rules")?;
            let path = format!("/versions/{version}/rollback");
            let body = json!({ "reason": reason });
            out.published(&client.ask(&Method::POST, &path, current.etag.as_deref(), &body)?.body)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Lets a person edit a document, and publishes the result. After a mistake the file is kept, so that no work is lost.
fn edit(client: &AdminClient, out: &Printer, domain: &str, reason: &str) -> Result<(), Failure> {
    let current = client.get("/rules")?;
    let before = documents(&current)?;
    let text = before.get(domain).ok_or_else(|| no_document(domain, &before))?;
    let name = domain.replace(|letter: char| !letter.is_ascii_alphanumeric(), "_");
    let file = std::env::temp_dir().join(format!("tidegate-{}-{name}.yaml", std::process::id()));
    let cannot = |error: io::Error| Failure::new(format!("cannot use {}: {error}", file.display()));
    // The directory is shared: never write to another user's file, and let nobody else read ours.
    let made = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&file);
    made.and_then(|mut made| made.write_all(text.as_bytes())).map_err(cannot)?;
    let editor =
        std::env::var("VISUAL").or_else(|_| std::env::var("EDITOR")).unwrap_or_else(|_| "vi".to_owned());
    let status = Command::new("sh")
        .args(["-c", &format!("{editor} \"$1\""), "sh"])
        .arg(&file)
        .status()
        .map_err(cannot)?;
    if !status.success() {
        return Err(Failure::new(format!("{editor} ended with {status}: nothing is published")));
    }
    let edited = fs::read_to_string(&file).map_err(cannot)?;
    if edited != text {
        let kept = |failure: Failure| failure.hint(format!("your text is kept in {}", file.display()));
        let published = publish(client, &current, &before.with(domain, edited), reason).map_err(kept)?;
        out.published(&published)?;
    } else {
        out.text(&json!({ "version": current.body["version"], "changed": false }), "nothing was changed")?;
    }
    fs::remove_file(&file).map_err(cannot)
}

fn publish(
    client: &AdminClient,
    current: &Reply,
    wanted: &DocumentSet,
    reason: &str,
) -> Result<Value, Failure> {
    let body = json!({ "documents": wanted.to_documents(), "reason": reason });
    Ok(client.ask(&Method::PUT, "/rules", current.etag.as_deref(), &body)?.body)
}

/// Writes a file for each domain; returns their names.
fn export(client: &AdminClient, dir: &Path) -> Result<Vec<String>, Failure> {
    let documents = documents(&client.get("/rules")?)?;
    let cannot = |error: io::Error| Failure::new(format!("cannot write to {}: {error}", dir.display()));
    fs::create_dir_all(dir).map_err(cannot)?;
    let domains: Vec<&str> = documents.iter().map(|(domain, _)| domain).collect();
    let files = file_names(&domains);
    for (name, (_, text)) in files.iter().zip(documents.iter()) {
        fs::write(dir.join(name), text).map_err(cannot)?;
    }
    Ok(files)
}

/// A file for each domain, all different, also where capitals and small letters are the same.
fn file_names(domains: &[&str]) -> Vec<String> {
    /// Shorter than what file systems allow.
    const LONGEST: usize = 200;
    let mut taken = HashSet::new();
    let name = |(number, domain): (usize, &&str)| {
        // A leading dot would hide the file.
        let name = url_part(domain).replace('.', "%2E");
        match name.len() <= LONGEST && taken.insert(name.to_lowercase()) {
            true => format!("{name}.yaml"),
            // No domain is encoded like this.
            false => format!("%-{number}.yaml"),
        }
    };
    domains.iter().enumerate().map(name).collect()
}

fn diff(client: &AdminClient, out: &Printer, what: &[String]) -> Result<(), Failure> {
    let body = match what {
        [number] if number.parse::<u64>().is_ok() => client.get(&format!("/versions/{number}/diff"))?.body,
        paths => {
            let paths: Vec<PathBuf> = paths.iter().map(PathBuf::from).collect();
            let wanted =
                split(&paths)?.iter().fold(documents(&client.get("/rules")?)?, |set, (domain, text)| {
                    set.with(domain, text.to_owned())
                });
            let asked = json!({ "documents": wanted.to_documents() });
            let mut checked = client.post("/rules/validate", &asked)?.body;
            let mut diff = checked["diff"].take();
            diff["diagnostics"] = checked["diagnostics"].take();
            diff
        }
    };
    for found in body["diagnostics"].as_array().into_iter().flatten() {
        writeln!(io::stderr(), "{}", diagnosed(found))?;
    }
    let texts = body["documents"].as_array().into_iter().flatten().filter_map(|one| one["unified"].as_str());
    out.text(&body, &texts.collect::<String>())
}

fn split(paths: &[PathBuf]) -> Result<DocumentSet, Failure> {
    let mut files = Vec::new();
    for path in paths {
        files.extend(load(path).map_err(|error| Failure::new(format!("{error}: {}", error.source)))?);
    }
    DocumentSet::split(&files).map_err(|error| Failure::new(error.to_string()))
}

fn documents(reply: &Reply) -> Result<DocumentSet, Failure> {
    let documents: Vec<Document> = serde_json::from_value(reply.body["documents"].clone())
        .map_err(|error| Failure::new(format!("the server's documents make no sense: {error}")))?;
    Ok(DocumentSet::new(documents))
}

fn no_document(domain: &str, documents: &DocumentSet) -> Failure {
    let known: Vec<&str> = documents.iter().map(|(domain, _)| domain).collect();
    Failure::new(format!("there is no document of the domain `{domain}`"))
        .hint(format!("domains here: {}", known.join(", ")))
}

/// Prints for a person, or for a program.
pub(crate) struct Printer {
    pub(crate) output: Output,
}

impl Printer {
    pub(crate) fn text(&self, body: &Value, text: &str) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        match self.output {
            Output::Json => writeln!(out, "{body}")?,
            Output::Text => writeln!(out, "{}", text.trim_end())?,
        }
        Ok(())
    }

    /// Prints a table with these columns of each item, for a person.
    pub(crate) fn table(&self, body: &Value, items: &Value, columns: &[&str]) -> Result<(), Failure> {
        self.text(body, &table(items, columns))
    }

    fn rules(&self, body: &Value) -> Result<(), Failure> {
        self.table(body, &body["rules"], &["domain", "name", "mode", "key", "limits"])
    }

    fn history(&self, body: &Value) -> Result<(), Failure> {
        self.table(body, &body["versions"], &["number", "at", "author", "reason"])
    }

    fn suggestions(&self, body: &Value) -> Result<(), Failure> {
        let mut rows = Vec::new();
        for rule in body["rules"].as_array().into_iter().flatten() {
            for limit in rule["limits"].as_array().into_iter().flatten() {
                let suggested = &limit["suggestion"];
                rows.push(json!({
                    "domain": rule["domain"],
                    "rule": rule["rule"],
                    "limit": limit["limit"],
                    "now": limit["quota"],
                    "suggested": suggested["limit"],
                    "confidence": confidence(suggested),
                    "callers": limit["callers"],
                    "above": suggested["callers_above"],
                    "busiest": caller(&suggested["busiest"][0]["key"]),
                    "none because": limit["none_because"],
                }));
            }
        }
        if rows.iter().all(|row| row["callers"].as_u64().unwrap_or(0) == 0) {
            // No more than that is known: a log is a sample, of the time since its node began.
            let nodes = body["nodes"].as_array().map_or(0, Vec::len);
            let have = if nodes == 1 { "node has" } else { "nodes have" };
            let text = format!(
                "nothing to suggest yet: {nodes} {have} no caller of these rules in the decision log"
            );
            self.text(body, &text)?;
            writeln!(
                io::stderr(),
                "hint: `tidegate rules list` names the rules; the log is a sample, unless decision_log.admissions_one_in is 1"
            )?;
        } else {
            let columns = [
                "domain",
                "rule",
                "limit",
                "now",
                "suggested",
                "confidence",
                "callers",
                "above",
                "busiest",
                "none because",
            ];
            self.table(body, &rows.into(), &columns)?;
        }
        for missing in body["missing"].as_array().into_iter().flatten() {
            writeln!(io::stderr(), "without {}: {}", shown(&missing["node"]), shown(&missing["why"]))?;
        }
        Ok(())
    }

    fn unchanged(&self, version: &Value) -> Result<(), Failure> {
        let diff = json!({ "from": version, "to": version, "documents": [], "rules": [] });
        let body = json!({ "version": version, "changed": false, "warnings": [], "diff": diff });
        self.text(&body, &format!("version {version} has these rules already"))
    }

    fn published(&self, body: &Value) -> Result<(), Failure> {
        let mut text = format!("version {} is published", body["version"]);
        for change in body["diff"]["rules"].as_array().into_iter().flatten() {
            text += &format!(
                "\n  {} {}/{}",
                shown(&change["change"]),
                shown(&change["domain"]),
                shown(&change["rule"])
            );
        }
        for warning in body["warnings"].as_array().into_iter().flatten() {
            text += &format!("\n  {}", diagnosed(warning).replace('\n', "\n  "));
        }
        text += &distribution(body);
        self.text(body, &text)
    }
}

/// The nodes that do not have a change yet, and why: a line each.
pub(crate) fn distribution(body: &Value) -> String {
    let (told, mut text) = (&body["distribution"], String::new());
    let not_yet: Vec<String> = told["not_yet"].as_array().into_iter().flatten().map(shown).collect();
    if !not_yet.is_empty() {
        text += &format!("\n  on its way to: {}", not_yet.join(", "));
    }
    if told["state"] == "pending" {
        text += &format!("\n  warning: not yet on the other nodes: {}", shown(&told["why"]));
    }
    if let Some(hint) = told["hint"].as_str() {
        text += &format!("\n  hint: {hint}");
    }
    text
}

/// What the server found in rules, with the way out on a line of its own.
fn diagnosed(found: &Value) -> String {
    let [severity, message, hint] = ["severity", "message", "hint"].map(|field| shown(&found[field]));
    format!("{severity}: {message}\n  hint: {hint}")
}

/// A caller's key for display: without characters that a terminal would act on.
pub(crate) fn caller(key: &Value) -> String {
    let pair = |pair: &Value| format!("{}={}", shown(&pair[0]), shown(&pair[1]));
    let parts: Vec<String> = key.as_array().into_iter().flatten().map(pair).collect();
    let whole = if parts.is_empty() { "-".to_owned() } else { parts.join(", ") };
    let hidden = |one: char| {
        one.is_control()
            || matches!(one, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    whole.chars().take(LONGEST_CALLER).map(|one| if hidden(one) { '?' } else { one }).collect()
}

/// A table of these columns of each item.
pub(crate) fn table(items: &Value, columns: &[&str]) -> String {
    let mut table = Table::new();
    table
        .load_style(comfy_table::presets::NOTHING)
        .set_header(columns.iter().map(|name| name.to_uppercase()));
    for item in items.as_array().into_iter().flatten() {
        table.add_row(columns.iter().map(|column| shown(&item[*column])));
    }
    table.to_string()
}

/// The confidence of a suggestion; empty if no caller was seen.
fn confidence(suggested: &Value) -> String {
    let percent = suggested["confidence_percent"].as_u64();
    percent.map_or_else(|| "unknown".to_owned(), |percent| format!("{percent} %"))
}

/// A value as a cell of a table.
pub(crate) fn shown(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => plain(text),
        Value::Array(items) => {
            let words: Vec<String> = items.iter().map(shown).collect();
            words.join(", ")
        }
        Value::Object(fields) => match fields.get("name") {
            Some(name) => format!("{} ({})", shown(fields.get("limit").unwrap_or(&Value::Null)), shown(name)),
            None => {
                let words: Vec<String> =
                    fields.iter().map(|(name, value)| format!("{}={}", plain(name), shown(value))).collect();
                words.join(" ")
            }
        },
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domains_never_share_a_file() {
        let long = "ü".repeat(120);
        let domains = ["api", "API", "a/b", "a.b", "domain-2", "..", "%-3", &long];
        let names = file_names(&domains);
        let expected = ["api", "%-1", "a%2Fb", "a%2Eb", "domain-2", "%2E%2E", "%25-3", "%-7"]
            .map(|name| format!("{name}.yaml"));
        assert_eq!(names, expected);
    }
}
