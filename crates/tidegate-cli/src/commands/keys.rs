//! `tidegate keys`: single keys, through the admin API.

use std::process::ExitCode;

use http::Method;
use serde_json::{Map, Value, json};
use tidegate_rules::parse_duration;
use tidegate_store::{Clock as _, SystemClock};
use tidegate_telemetry::url_part;

use crate::args::{KeyArgs, KeysArgs, KeysCommand, UntilArgs};
use crate::commands::admin_client::AdminClient;
use crate::commands::rules::{Printer, distribution, shown, table};
use crate::failure::Failure;

pub(crate) fn run(args: &KeysArgs) -> Result<ExitCode, Failure> {
    let client = AdminClient::new(&args.admin)?;
    let out = Printer { output: args.admin.output };
    match &args.what {
        KeysCommand::Get(key) => {
            let body = client.post("/keys/lookup", &asked(key)?)?.body;
            out.text(&body, &state_of_key(&body))?;
        }
        KeysCommand::Reset(key) => {
            let body = client.post("/keys/reset", &asked(key)?)?.body;
            out.text(&body, &format!("{} cells have their full quota back", body["cells"]))?;
        }
        KeysCommand::Override { key, limits, until } => {
            let action = if limits.is_empty() { "unlimited" } else { "limits" };
            made(&client, &out, change(key, until, action, limits)?)?;
        }
        KeysCommand::Ban { key, until } => made(&client, &out, change(key, until, "ban", &[])?)?,
        KeysCommand::Lift { id, reason } => {
            let body = json!({ "id": id, "reason": reason });
            let body = client.ask(&Method::DELETE, "/keys/overrides", None, &body)?.body;
            let (action, when) = (shown(&body["action"]), shown(&body["when"]));
            out.text(&body, &format!("{action} is lifted: {when}{}", distribution(&body)))?;
        }
        KeysCommand::List { search } => {
            let query =
                search.as_ref().map_or_else(String::new, |text| format!("?search={}", url_part(text)));
            let body = client.get(&format!("/keys/overrides{query}"))?.body;
            let columns = ["id", "domain", "rule", "when", "action", "limits", "until", "author", "reason"];
            out.table(&body, &body["overrides"], &columns)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The overrides of a key, then what remains under each limit.
fn state_of_key(body: &Value) -> String {
    let overrides = body["overrides"].as_array().map_or(&[][..], Vec::as_slice);
    let mut text: String = overrides.iter().map(|one| in_words(one) + "\n").collect();
    let has_cells = body["cells"].as_array().is_some_and(|cells| !cells.is_empty());
    // A ban on one rule applies only where that rule matches.
    let other_rules = body["others"].as_array().map_or(&[][..], Vec::as_slice);
    let is_banned = overrides.iter().any(|one| one["action"] == "ban" && one["rule"].is_null())
        || other_rules.iter().any(|one| one["outcome"] == "banned");
    text += &match (has_cells, is_banned) {
        (true, _) => {
            let columns = ["rule", "limit_name", "limit", "used", "remaining", "reset_after_ms", "refused"];
            table(&body["cells"], &columns)
        }
        (false, true) => "its requests are refused, and spend nothing".to_owned(),
        (false, false) => "no rule counts this key (`tidegate explain` says why)".to_owned(),
    };
    text
}

/// An override in one line: what, where, until when, by whom, why, and how to end it.
fn in_words(one: &Value) -> String {
    let what = match one["action"].as_str() {
        Some("ban") => "banned".to_owned(),
        Some("unlimited") => "never limited".to_owned(),
        _ => format!("has its own limits, {},", shown(&one["limits"])),
    };
    let rule = match &one["rule"] {
        Value::Null => "every rule".to_owned(),
        rule => format!("the rule {}", shown(rule)),
    };
    let reason = match one["reason"].as_str() {
        None | Some("") => String::new(),
        Some(reason) => format!(": {reason}"),
    };
    let lift = format!("lift it with: tidegate keys lift {}", shown(&one["id"]));
    let mut text =
        format!("{what} on {rule} {}, by {}{reason} ({lift})", until(&one["until"]), shown(&one["author"]),);
    if let Some(warning) = one["warning"].as_str() {
        text += &format!("; without effect: {warning}");
    }
    text
}

fn until(end: &Value) -> String {
    match end {
        Value::Null => "for ever".to_owned(),
        end => format!("until {}", shown(end)),
    }
}

fn made(client: &AdminClient, out: &Printer, body: Value) -> Result<(), Failure> {
    let body = client.post("/keys/overrides", &body)?.body;
    let text = format!(
        "{} {} {} (lift it with: tidegate keys lift {}){}",
        shown(&body["action"]),
        shown(&body["when"]),
        until(&body["until"]),
        shown(&body["id"]),
        distribution(&body)
    );
    out.text(&body, &text)
}

fn asked(key: &KeyArgs) -> Result<Value, Failure> {
    Ok(json!({ "domain": key.domain, "attributes": attributes(key)? }))
}

fn attributes(key: &KeyArgs) -> Result<Map<String, Value>, Failure> {
    let mut attributes = Map::new();
    for attribute in &key.attributes {
        if attributes.insert(attribute.key.clone(), attribute.value.clone().into()).is_some() {
            return Err(Failure::new(format!("the attribute `{}` is given twice", attribute.key)));
        }
    }
    Ok(attributes)
}

fn change(key: &KeyArgs, until: &UntilArgs, action: &str, limits: &[String]) -> Result<Value, Failure> {
    let end = until.lasts.as_deref().map(end_of).transpose()?;
    Ok(json!({
        "domain": key.domain,
        "rule": until.rule,
        "when": attributes(key)?,
        "action": action,
        "limits": limits,
        "until": end,
        "reason": until.reason,
    }))
}

fn end_of(lasts: &str) -> Result<String, Failure> {
    let lasts = parse_duration(lasts)
        .map_err(|error| Failure::new(format!("--for: {error}")).hint("such as 1h or 7d"))?;
    let end = SystemClock::new().now().as_micros().saturating_add(lasts.get());
    let end = jiff::Timestamp::from_microsecond(i64::try_from(end).unwrap_or(i64::MAX));
    Ok(end.map_err(|error| Failure::new(format!("--for: {error}")))?.to_string())
}
