//! `TG.CHECK` and leases.

use tidegate_core::Micros;
use tidegate_testkit::resp::Value;

use super::world::{World, ask};

fn bulk(text: &str) -> Value {
    Value::Bulk(text.into())
}

#[test]
fn a_check_spends_until_the_limit_and_then_says_when_to_come_back() {
    let world = World::new();
    let mut client = world.client();
    for remaining in [2, 1, 0] {
        let reply = ask(&mut client, "TG.CHECK api user 42");
        let expected = [
            Value::Int(1),
            Value::Int(3),
            Value::Int(remaining),
            Value::Nil,
            Value::Int(reply.array()[4].int()),
            bulk("per-user"),
            bulk("store"),
            Value::Nil,
        ];
        assert_eq!(reply.array(), expected);
    }
    let reply = ask(&mut client, "TG.CHECK api user 42");
    let [allowed, limit, remaining, retry_after, reset_after, rule, ..] = reply.array() else { panic!() };
    assert_eq!([allowed, limit, remaining].map(Value::int), [0, 3, 0]);
    assert_eq!(rule, &bulk("per-user"));
    assert!(retry_after.int() > 0 && reset_after.int() >= retry_after.int(), "{reply:?}");
    world.advance(Micros::from_millis(u64::try_from(retry_after.int()).unwrap()));
    assert_eq!(ask(&mut client, "TG.CHECK api user 42").array()[0].int(), 1);
}

#[test]
fn a_cost_is_spent_at_once_and_none_only_looks() {
    let world = World::new();
    let mut client = world.client();
    let remaining = |reply: Value| reply.array()[2].int();
    assert_eq!(remaining(ask(&mut client, "TG.CHECK api COST 2 user 42")), 1);
    assert_eq!(remaining(ask(&mut client, "TG.CHECK api cost 0 user 42")), 1);
    assert_eq!(
        ask(&mut client, "TG.CHECK api COST 4 user 42").array()[..4],
        [Value::Int(0), Value::Int(3), Value::Int(1), Value::Nil]
    );
}

#[test]
fn what_no_rule_matches_is_allowed_without_numbers() {
    let world = World::new();
    let nil = || Value::Nil;
    let expected = [Value::Int(1), nil(), nil(), nil(), nil(), nil(), bulk("none"), nil()];
    assert_eq!(ask(&mut world.client(), "TG.CHECK api").array(), expected);
}

#[test]
fn values_may_be_any_bytes() {
    let world = World::new();
    let mut client = world.client();
    for remaining in [2, 1] {
        let reply = client.cmd(&[b"TG.CHECK", &b"api"[..], b"user", b"\xff\x00\r\n"]);
        assert_eq!(reply.array()[2].int(), remaining);
    }
}

#[test]
fn a_check_that_is_not_one_says_why_and_spends_nothing() {
    let world = World::new();
    let mut client = world.client();
    for (command, error) in [
        (
            "TG.CHECK",
            "wrong number of arguments for 'tg.check' command, expected TG.CHECK domain [COST n] \
                      [HEADERS x-ratelimit|ietf|ietf-11|ietf-next|all] [SPENT] attribute value [attribute value ...]",
        ),
        (
            "TG.REFUND",
            "wrong number of arguments for 'tg.refund' command, expected TG.REFUND domain [AMOUNT n] \
                      [SPENT token] attribute value [attribute value ...]",
        ),
        ("TG.REFUND nowhere user 42", "unknown domain `nowhere`, known domains: api, smooth"),
        ("TG.REFUND api AMOUNT x user 42", "AMOUNT is not a whole number: 'x'"),
        (
            "TG.REFUND api AMOUNT 1 SPENT x user 42",
            "SPENT: expected the `spent` of a check's answer as it is",
        ),
        (
            "TG.REFUND api SPENT AAAAAAAAAAAAAAAAAAAA",
            "SPENT: expected the `spent` of a check's answer as it is",
        ),
        ("TG.REFUND api AMOUNT 1 user", "attribute 'user' has no value"),
        ("TG.CHECK nowhere user 42", "unknown domain `nowhere`, known domains: api, smooth"),
        ("TG.CHECK api user", "attribute 'user' has no value"),
        ("TG.CHECK api COST -1 user 42", "COST must not be negative"),
        ("TG.CHECK api COST x user 42", "COST is not a whole number: 'x'"),
        ("TG.CHECK api user 42 user 43", "attribute 'user' is given twice"),
        ("TG.CHECK api user 42 COST 3", "COST goes before the attributes, and once"),
        ("TG.CHECK api COST 1 COST 3 user 42", "COST goes before the attributes, and once"),
        ("TG.CHECK api user 42 SPENT", "attribute 'SPENT' has no value: SPENT goes before the attributes"),
        ("TG.REFUND api user 42 amount 3", "AMOUNT goes before the attributes, and once"),
        ("TG.REFUND api user 42 SPENT x", "SPENT goes before the attributes, and once"),
        ("TG.RELEASE nonsense", "not a lease: pass the `lease` of a check's answer as it is"),
        ("TG.RENEW \u{e9}", "not a lease: pass the `lease` of a check's answer as it is"),
    ] {
        assert_eq!(ask(&mut client, command).text(), format!("ERR {error}"), "{command}");
    }
    let not_text = client.cmd(&[b"TG.CHECK", &b"api"[..], b"us\xffer", b"42"]);
    assert_eq!(not_text.text(), r"ERR attribute 'us\xffer' is not UTF-8");
    let many: Vec<String> = (0..65).flat_map(|number| [format!("a{number}"), "v".to_owned()]).collect();
    let words: Vec<&str> = ["TG.CHECK", "api"].into_iter().chain(many.iter().map(String::as_str)).collect();
    assert_eq!(client.cmd(&words).text(), "ERR at most 64 attributes are allowed");
    let long = "x".repeat(4_097);
    let reply = client.cmd(&["TG.CHECK", "api", "user", &long]).text();
    assert_eq!(reply, "ERR the value of attribute 'user' is longer than 4096 bytes");
    assert_eq!(ask(&mut client, "TG.CHECK api user 42").array()[2].int(), 2);
}

#[test]
fn a_lease_holds_its_place_until_it_is_released_or_runs_out() {
    let world = World::new();
    let mut client = world.client();
    let upload = "TG.CHECK api user 42 path /upload";
    let first = ask(&mut client, upload);
    let lease = first.array()[7].text();
    let refused = ask(&mut client, upload);
    assert_eq!((refused.array()[0].int(), refused.array()[5].text()), (0, "uploads".to_owned()));
    assert_eq!(refused.array()[7], Value::Nil);

    world.advance(Micros::from_secs(59));
    assert_eq!(ask(&mut client, &format!("TG.RENEW {lease}")).int(), 1);
    world.advance(Micros::from_secs(59));
    assert_eq!(ask(&mut client, upload).array()[0].int(), 0);
    assert_eq!(ask(&mut client, &format!("TG.RELEASE {lease}")).int(), 1);
    assert_eq!(ask(&mut client, &format!("TG.RELEASE {lease}")).int(), 0);
    assert_eq!(ask(&mut client, &format!("TG.RENEW {lease}")).int(), 0);

    let second = ask(&mut client, upload);
    assert_eq!(second.array()[0].int(), 1);
    world.advance(Micros::from_secs(61));
    assert_eq!(ask(&mut client, upload).array()[0].int(), 1);
}

#[test]
fn a_request_that_would_have_to_wait_is_refused_for_the_reply_cannot_say_so() {
    let world = World::new();
    let mut client = world.client();
    assert_eq!(ask(&mut client, "TG.CHECK smooth").array()[0].int(), 1);
    let refused = ask(&mut client, "TG.CHECK smooth");
    assert_eq!((refused.array()[0].int(), refused.array()[3].int()), (0, 1_000));
    world.advance(Micros::from_secs(1));
    assert_eq!(ask(&mut client, "TG.CHECK smooth").array()[0].int(), 1);
}

#[test]
fn a_check_says_when_it_spent_only_where_asked_to() {
    let world = World::new();
    let mut client = world.client();
    assert_eq!(ask(&mut client, "TG.CHECK api user 42").array().len(), 8);
    let asked = ask(&mut client, "TG.CHECK api COST 2 SPENT user 42");
    assert_eq!((asked.array().len(), asked.array()[8].text().len()), (9, 20));
    let refused = ask(&mut client, "TG.CHECK api spent user 42");
    assert_eq!((refused.array()[0].int(), &refused.array()[8]), (0, &Value::Nil));
    let unmatched = ask(&mut client, "TG.CHECK api SPENT");
    assert_eq!((unmatched.array()[0].int(), &unmatched.array()[8]), (1, &Value::Nil));
}

#[test]
fn options_come_in_any_order() {
    let world = World::new();
    let mut client = world.client();
    let asked = ask(&mut client, "TG.CHECK api SPENT COST 3 user 42");
    assert_eq!((asked.array().len(), asked.array()[2].int()), (9, 0));
    let spent = asked.array()[8].text();
    assert_eq!(ask(&mut client, &format!("TG.REFUND api SPENT {spent} AMOUNT 2 user 42")).int(), 2);
    assert_eq!(ask(&mut client, "TG.CHECK api COST 0 user 42").array()[2].int(), 2);
}

#[test]
fn an_attribute_may_be_called_spent() {
    let world = World::new();
    let mut client = world.client();
    for (command, elements) in [
        ("TG.CHECK api spent 1 user 42", 8),
        ("TG.CHECK api COST 1 spent 1", 8),
        ("TG.CHECK api SPENT spent 1 user 42", 9),
    ] {
        assert_eq!(ask(&mut client, command).array().len(), elements, "{command}");
    }
}

#[test]
fn hits_go_back_into_the_window_that_was_charged_and_nowhere_if_that_is_over() {
    let world = World::new();
    let mut client = world.client();
    let mut spend = |cost: u64| ask(&mut client, &format!("TG.CHECK api COST {cost} SPENT user 42"));
    let first = spend(3).array()[8].text();
    world.advance(Micros::from_secs(60));
    let second = spend(3).array()[8].text();
    let mut client = world.client();
    let mut refund = |words: &str| ask(&mut client, &format!("TG.REFUND api {words} user 42")).int();
    assert_eq!(refund(&format!("AMOUNT 3 SPENT {first}")), 3);
    let mut client = world.client();
    assert_eq!(
        ask(&mut client, "TG.CHECK api user 42").array()[0].int(),
        0,
        "the first hits went to the second"
    );
    assert_eq!(refund(&format!("SPENT {second}")), 1);
    assert_eq!(refund("amount 1"), 1);
    assert_eq!(ask(&mut client, "TG.CHECK api COST 0 user 42").array()[2].int(), 2);
}

#[test]
fn headers_of_a_check_are_those_of_http() {
    let world = World::new();
    let mut client = world.client();
    let shown = |reply: &Value, at: usize| -> Vec<String> {
        reply.array()[at].array().iter().map(Value::text).collect()
    };
    let reply = ask(&mut client, "TG.CHECK api HEADERS x-ratelimit user 77");
    assert_eq!(reply.array().len(), 9);
    let headers = shown(&reply, 8);
    assert_eq!(headers[..5], ["x-ratelimit-limit", "3", "x-ratelimit-remaining", "2", "x-ratelimit-reset"]);
    let reply = ask(&mut client, "TG.CHECK api headers IETF COST 2 SPENT user 77");
    assert_eq!(reply.array().len(), 10);
    assert_ne!(reply.array()[8], Value::Nil);
    assert_eq!(shown(&reply, 9)[0], "ratelimit-policy");
    let reply = ask(&mut client, "TG.CHECK api HEADERS all user 77");
    let headers = shown(&reply, 8);
    let [.., name, wait] = &headers[..] else { panic!("{headers:?}") };
    assert_eq!((reply.array()[0].int(), name.as_str()), (0, "retry-after"));
    // Whole seconds, rounded up: what is easily got wrong with milliseconds.
    assert_eq!(wait.parse::<i64>().unwrap(), (reply.array()[3].int() + 999) / 1000);
    let next = ask(&mut client, "TG.CHECK api HEADERS ietf-next COST 0 user 77");
    assert!(shown(&next, 8)[3].contains(";a=0;w="), "{next:?}");
    let none = ask(&mut client, "TG.CHECK api HEADERS all");
    assert_eq!((none.array()[0].int(), shown(&none, 8).len()), (1, 0));
    let wrong = ask(&mut client, "TG.CHECK api HEADERS some user 77");
    assert!(
        wrong.is_error() && wrong.text().contains("x-ratelimit, ietf, ietf-11, ietf-next or all"),
        "{wrong:?}"
    );
    let late = ask(&mut client, "TG.CHECK api user 77 HEADERS all");
    assert!(late.is_error() && late.text().contains("HEADERS goes before"), "{late:?}");
}
