//! Webhook bodies: our own format for programs, Slack's for people, and their signature.

use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};
use sha2::Sha256;

use super::active::Notice;
use crate::url_part;

/// The most incidents in one Slack message, which may have 40,000 characters; for more, only their number.
const MOST_IN_SLACK: usize = 20;

/// `t=SECONDS,v1=HEX`: HMAC-SHA256 over the seconds, a dot and the body. The time is included so that an old body cannot be
/// replayed as a new one.
#[must_use]
pub fn signature(secret: &[u8], at_s: u64, body: &[u8]) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes keys of any length");
    mac.update(format!("{at_s}.").as_bytes());
    mac.update(body);
    format!("t={at_s},v1={}", hex::encode(mac.finalize().into_bytes()))
}

pub(super) fn as_json(id: &str, node: &str, now_s: u64, notices: &[Notice]) -> Value {
    let alerts: Vec<Value> = notices
        .iter()
        .map(|notice| {
            let mut value = serde_json::to_value(notice.alert()).unwrap_or_default();
            value["state"] = notice.state().into();
            value
        })
        .collect();
    let incidents: Vec<Value> = incidents(notices).iter().map(|one| incident_as_json(one)).collect();
    json!({ "id": id, "node": node, "at_s": now_s, "incidents": incidents, "alerts": alerts })
}

/// The notices of each incident, the gravest first: its cause comes before what follows from it.
fn incidents(notices: &[Notice]) -> Vec<Vec<&Notice>> {
    let mut groups: Vec<Vec<&Notice>> = Vec::new();
    for notice in notices {
        let same = |group: &&mut Vec<&Notice>| {
            group[0].alert().incident == notice.alert().incident && group[0].state() == notice.state()
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.push(notice),
            None => groups.push(vec![notice]),
        }
    }
    for group in &mut groups {
        group.sort_by_key(|notice| (std::cmp::Reverse(notice.alert().severity), notice.alert().kind));
    }
    groups
}

fn incident_as_json(group: &[&Notice]) -> Value {
    let first = group[0].alert();
    json!({
        "incident": first.incident,
        "state": group[0].state(),
        "severity": first.severity,
        "summary": first.summary,
        "next": first.next,
        "since_s": group.iter().map(|notice| notice.alert().since_s).min(),
        "alerts": group.iter().map(|notice| &notice.alert().fingerprint).collect::<Vec<_>>(),
    })
}

/// Our own format as the data of a CloudEvent, in its structured mode.
pub(super) fn as_cloud_event(id: &str, node: &str, now_s: u64, notices: &[Notice]) -> Value {
    let time = jiff::Timestamp::from_second(i64::try_from(now_s).unwrap_or(0)).unwrap_or_default();
    json!({
        "specversion": "1.0",
        "id": id,
        "source": format!("/tidegate/{}", url_part(node)),
        "type": "tidegate.alerts.v1",
        "time": time.to_string(),
        "datacontenttype": "application/json",
        "data": as_json(id, node, now_s, notices),
    })
}

pub(super) fn as_slack(notices: &[Notice]) -> Value {
    let line = |group: &Vec<&Notice>| {
        let alert = group[0].alert();
        let sign = match (group[0].state(), alert.severity) {
            ("resolved", _) => ":white_check_mark: resolved:",
            (_, super::Severity::Critical) => ":rotating_light:",
            (_, super::Severity::Warning) => ":warning:",
            (_, super::Severity::Info) => ":information_source:",
        };
        let link = match alert.link.is_empty() {
            true => String::new(),
            false => format!(" <{}|open>", plain(&alert.link)),
        };
        let mut also: Vec<&str> = group[1..].iter().map(|notice| notice.alert().kind.name()).collect();
        also.dedup();
        also.retain(|kind| *kind != alert.kind.name());
        let also = match also.is_empty() {
            true => String::new(),
            false => format!(" (also {})", also.join(", ")),
        };
        format!(
            "{sign} *{}* {}{also}\n_next:_ {}{link}",
            alert.kind.name(),
            plain(&alert.summary),
            plain(&alert.next)
        )
    };
    let groups = incidents(notices);
    let mut lines: Vec<String> = groups.iter().take(MOST_IN_SLACK).map(line).collect();
    if let Some(more @ 1..) = groups.len().checked_sub(MOST_IN_SLACK) {
        lines.push(format!("and {more} more"));
    }
    json!({ "text": lines.join("\n") })
}

/// Escapes Slack's control characters in names.
fn plain(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::{Alert, Kind, Severity};
    use super::*;

    #[test]
    fn the_signature_is_what_openssl_makes_of_the_same() {
        // printf '1700000000.{"a":1}' | openssl dgst -sha256 -hmac secret
        let expected = "49f24e537407743fa4a0242bb63b94b9a47ee99cbbe071ccd8a22550ae411686";
        let made = signature(b"secret", 1_700_000_000, b"{\"a\":1}");
        assert_eq!(made, format!("t=1700000000,v1={expected}"));
    }

    fn alert(name: &str) -> Alert {
        Alert {
            fingerprint: String::new(),
            kind: Kind::TrafficSpike,
            subject: format!("api/{name}"),
            incident: format!("traffic api/{name}"),
            severity: Severity::Warning,
            summary: format!("api/{name} has 900 requests"),
            next: "look".to_owned(),
            link: "https://gate/#/top".to_owned(),
            page: "/top".to_owned(),
            since_s: 1,
            ended_s: None,
            silenced: false,
            unknown_since_s: None,
        }
    }

    #[test]
    fn cloud_event_has_the_attributes_that_its_specification_requires() {
        let event = as_cloud_event("n-1-2", "node one", 1_700_000_000, &[Notice::Begun(alert("a"))]);
        for (attribute, value) in [
            ("specversion", "1.0"),
            ("id", "n-1-2"),
            ("source", "/tidegate/node%20one"),
            ("type", "tidegate.alerts.v1"),
            ("time", "2023-11-14T22:13:20Z"),
            ("datacontenttype", "application/json"),
        ] {
            assert_eq!(event[attribute], value, "{attribute}");
        }
        assert_eq!(event["data"]["alerts"][0]["subject"], "api/a");
    }

    #[test]
    fn slack_is_told_in_its_own_words_and_no_name_can_break_out() {
        let text =
            as_slack(&[Notice::Begun(alert("<!channel>"))])["text"].as_str().unwrap_or_default().to_owned();
        assert!(text.contains("&lt;!channel&gt;") && !text.contains("<!channel>"), "{text}");
        assert!(text.contains("<https://gate/#/top|open>"), "{text}");
    }

    #[test]
    fn alerts_of_one_cause_are_one_incident_led_by_the_gravest() {
        let of = |kind: Kind, subject: &str, since_s| {
            let incident = kind.incident(subject);
            let severity = kind.severity();
            let fingerprint = kind.name().to_owned();
            Alert { kind, incident, severity, since_s, fingerprint, ..alert(subject) }
        };
        let notices = [
            Notice::Begun(of(Kind::Fallback, "one", 11)),
            Notice::Begun(of(Kind::TrafficSpike, "api/x", 12)),
            Notice::Begun(of(Kind::BreakerOpen, "redis:1", 9)),
            Notice::Begun(of(Kind::StoreDown, "redis:1", 10)),
        ];
        let body = as_json("1", "one", 13, &notices);
        let told: Vec<String> =
            body["incidents"].as_array().unwrap().iter().map(|one| format!("{}", one["alerts"])).collect();
        assert_eq!(told, [r#"["store_down","breaker_open","fallback"]"#, r#"["traffic_spike"]"#]);
        assert_eq!(
            (&body["incidents"][0]["since_s"], &body["incidents"][0]["incident"]),
            (&json!(9), &json!("store"))
        );
        let slack = as_slack(&notices)["text"].as_str().unwrap().to_owned();
        assert_eq!(slack.matches("rotating_light").count(), 1, "{slack}");
        assert!(slack.contains("(also breaker_open, fallback)"), "{slack}");
    }

    #[test]
    fn slack_is_told_of_a_thousand_at_once_in_a_text_that_it_takes() {
        let many: Vec<Notice> = (0..1_000)
            .map(|number| Notice::Begun(alert(&format!("r{number}-{}", "x".repeat(200)))))
            .collect();
        let text = as_slack(&many)["text"].as_str().unwrap_or_default().to_owned();
        assert!(text.len() < 40_000 && text.ends_with("and 980 more"), "{} bytes", text.len());
    }
}
