//! `tidegate keys`: single keys, through the admin API.

use std::process::ExitCode;

use http::Method;
use serde_json::{Map, Value, json};
use tidegate_rules::parse_duration;
use tidegate_store::{Clock as _, SystemClock};

use crate::args::{KeyArgs, KeysArgs, KeysCommand, UntilArgs};
use crate::commands::admin_client::AdminClient;
use crate::commands::rules::{Printer, part, shown};
use crate::failure::Failure;

pub(crate) fn run(args: &KeysArgs) -> Result<ExitCode, Failure> {
    let client = AdminClient::new(&args.admin)?;
    let out = Printer { output: args.admin.output };
    match &args.what {
        KeysCommand::Get(key) => {
            let body = client.post("/keys/lookup", &asked(key)?)?.body;
            let columns = ["rule", "limit_name", "limit", "used", "remaining", "reset_after_ms", "refused"];
            out.table(&body, &body["cells"], &columns)?;
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
            out.text(&body, &format!("{} is lifted: {}", shown(&body["action"]), shown(&body["when"])))?;
        }
        KeysCommand::List { search } => {
            let query = search.as_ref().map_or_else(String::new, |text| format!("?search={}", part(text)));
            let body = client.get(&format!("/keys/overrides{query}"))?.body;
            let columns = ["id", "domain", "rule", "when", "action", "limits", "until", "author", "reason"];
            out.table(&body, &body["overrides"], &columns)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn made(client: &AdminClient, out: &Printer, body: Value) -> Result<(), Failure> {
    let body = client.post("/keys/overrides", &body)?.body;
    let until = match &body["until"] {
        Value::Null => "for ever".to_owned(),
        until => format!("until {}", shown(until)),
    };
    let text = format!(
        "{} {} {until} (lift it with: tidegate keys lift {})",
        shown(&body["action"]),
        shown(&body["when"]),
        shown(&body["id"])
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
