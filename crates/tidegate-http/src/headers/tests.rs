use proptest::prelude::*;
use sfv::{BareItem, List, ListEntry, Parser};

use super::*;

const MINUTE: Duration = Duration::from_secs(60);

fn policy(name: &str, quota: u64, window: Duration) -> Policy<'_> {
    let algorithm = Algorithm::SlidingWindow;
    Policy { name: name.into(), quota, window: Some(window), algorithm, partition: None, key: &[] }
}

/// What an admission of one hit reports.
fn reported(policy: Policy<'_>, remaining: u64, reset_after: Duration) -> Reported<'_> {
    Reported { policy, remaining, reset_after, retry_after: None, cost: 1 }
}

fn per_user() -> Reported<'static> {
    reported(policy("per-user", 100, MINUTE), 42, Duration::from_millis(37_001))
}

/// The items of a structured list by an independent parser: their strings, and their parameters as text.
fn parse(value: impl AsRef<[u8]>) -> Vec<(String, Vec<(String, String)>)> {
    let list = Parser::new(value.as_ref()).parse::<List>().expect("a structured list");
    let item = |entry: &ListEntry| {
        let ListEntry::Item(item) = entry else { panic!("a list within the list") };
        let BareItem::String(name) = &item.bare_item else { panic!("not a string") };
        let parameters = item.params.iter().map(|(key, value)| {
            let value = match value {
                BareItem::Integer(number) => i64::from(*number).to_string(),
                BareItem::String(text) => text.as_str().to_owned(),
                BareItem::ByteSequence(bytes) => format!("{bytes:?}"),
                other => panic!("neither number, text nor bytes: {other:?}"),
            };
            (key.as_str().to_owned(), value)
        });
        (name.as_str().to_owned(), parameters.collect())
    };
    list.iter().map(item).collect()
}

fn item(name: &str, parameters: &[(&str, &str)]) -> (String, Vec<(String, String)>) {
    let text = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    (name.to_owned(), parameters.iter().map(text).collect())
}

fn lines(headers: &HeaderMap) -> Vec<String> {
    headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect()
}

fn written(sets: HeaderSets, now: Duration) -> Vec<String> {
    let (mut headers, reported) = (HeaderMap::new(), per_user());
    sets.write([reported.policy.clone()].into_iter(), Some(&reported), now, &mut headers);
    lines(&headers)
}

fn sets<const N: usize>(sets: [HeaderSet; N]) -> HeaderSets {
    sets.into_iter().collect()
}

/// `r` and `t` of draft 11.
fn promised(reported: &Reported<'_>) -> (u64, Option<u64>) {
    let parsed = parse(reported.limit_value(Draft::Eleven));
    let number = |key: &str| {
        let found = parsed[0].1.iter().find(|(name, _)| name == key);
        found.map(|(_, value)| value.parse().unwrap())
    };
    (number("r").unwrap(), number("t"))
}

#[test]
fn x_ratelimit_counts_its_reset_in_unix_seconds_or_seconds_left_rounded_up() {
    let x = sets([HeaderSet::XRatelimit]);
    let now = Duration::from_secs(1_000);
    let expected = ["x-ratelimit-limit: 100", "x-ratelimit-remaining: 42", "x-ratelimit-reset: 1038"];
    assert_eq!(written(x, now), expected);
    assert_eq!(written(x.with_reset(ResetForm::Delta), now)[2], "x-ratelimit-reset: 38");
}

#[test]
fn the_ietf_set_reads_as_in_draft_11() {
    let expected = [r#"ratelimit-policy: "per-user";q=100;w=60"#, r#"ratelimit: "per-user";r=42;t=38"#];
    assert_eq!(written(sets([HeaderSet::Ietf]), Duration::ZERO), expected);
    assert_eq!(written(sets([HeaderSet::Ietf11]), Duration::ZERO), expected);
}

#[test]
fn the_next_draft_has_other_parameters() {
    let expected = [r#"ratelimit-policy: "per-user";q=100;w=60"#, r#"ratelimit: "per-user";a=42;w=38;c=1"#];
    assert_eq!(written(sets([HeaderSet::IetfNext]), Duration::ZERO), expected);
}

#[test]
fn the_next_draft_says_by_what_quotas_are_parted_where_keys_are_sent() {
    let key = ["user", "api_key"].map(str::to_owned);
    let unnamed = ["User-Agent".to_owned()];
    let parted = |name, key| Policy { partition: Some(Partition([0; 9])), key, ..policy(name, 100, MINUTE) };
    let policies =
        || [parted("per-user", &key[..]), policy("all", 1000, MINUTE), parted("agents", &unnamed[..])];
    let dimensions = |set| {
        let mut headers = HeaderMap::new();
        sets([set]).write(policies().into_iter(), None, Duration::ZERO, &mut headers);
        headers.get(IETF_PARTITION).map(|value| value.to_str().unwrap().to_owned())
    };
    let sent = dimensions(HeaderSet::IetfNext).unwrap();
    assert_eq!(sent, r#""per-user";api_key;user"#);
    assert_eq!(dimensions(HeaderSet::Ietf11), None, "draft 11 has no such header");
    let list = Parser::new(&sent).parse::<List>().unwrap();
    assert_eq!(list.len(), 1);
}

/// The examples of the draft's sections on both fields, made from the limits that they describe.
#[test]
fn the_examples_of_the_draft_have_the_same_structure() {
    let list = |policies: Vec<Policy<'_>>| {
        let mut headers = HeaderMap::new();
        sets([HeaderSet::Ietf]).write(policies.into_iter(), None, Duration::ZERO, &mut headers);
        parse(&headers[IETF_POLICY])
    };
    let seconds = Duration::from_secs;
    let burst_and_daily = [policy("burst", 100, MINUTE), policy("daily", 1000, seconds(86_400))];
    assert_eq!(list(burst_and_daily.into()), parse(r#""burst";q=100;w=60,"daily";q=1000;w=86400"#));
    assert_eq!(list([policy("default", 100, seconds(10))].into()), parse(r#""default";q=100;w=10"#));
    let several = [policy("permin", 50, MINUTE), policy("perhr", 1000, seconds(3_600))];
    assert_eq!(list(several.into()), parse(r#""permin";q=50;w=60,"perhr";q=1000;w=3600"#));
    let default = reported(policy("default", 100, MINUTE), 50, seconds(30));
    assert_eq!(parse(default.limit_value(Draft::Eleven)), parse(r#""default";r=50;t=30"#));
}

#[test]
fn places_are_counted_in_concurrent_requests_and_no_clock_returns_them() {
    let algorithm = Algorithm::Concurrency;
    let uploads =
        Policy { name: "uploads".into(), quota: 10, window: None, algorithm, partition: None, key: &[] };
    let mut headers = HeaderMap::new();
    let left = reported(uploads.clone(), 7, MINUTE);
    sets([HeaderSet::Ietf]).write([uploads].into_iter(), Some(&left), Duration::ZERO, &mut headers);
    assert_eq!(
        parse(&headers[IETF_POLICY]),
        [item("uploads", &[("q", "10"), ("qu", "concurrent-requests")])]
    );
    assert_eq!(parse(&headers[IETF_LIMIT]), [item("uploads", &[("r", "7")])]);
}

/// 1/s with a burst of 600 is full again after a second, and must not seem to let 599 pass in each.
#[test]
fn a_bucket_that_is_almost_full_does_not_promise_its_burst_every_second() {
    let bucket = policy("bucket", 600, Duration::from_secs(600));
    assert_eq!(promised(&reported(bucket, 599, Duration::from_secs(1))), (599, Some(599)));
}

/// The draft's example of what not to send: 10,000 in 1,000 seconds, ten seconds before the window ends.
#[test]
fn a_window_that_ends_soon_does_not_promise_its_quota_until_then() {
    let policy = policy("somepolicy", 10_000, Duration::from_secs(1_000));
    assert_eq!(promised(&reported(policy, 10_000, Duration::from_secs(10))), (10_000, Some(1_000)));
}

#[test]
fn a_refusal_names_the_time_of_its_retry_after_and_promises_no_more_than_that_brings() {
    let bucket = policy("bucket", 600, Duration::from_secs(600));
    let refused = Reported { retry_after: Some(Duration::from_millis(900)), ..reported(bucket, 2, MINUTE) };
    assert_eq!(promised(&refused), (1, Some(1)));
}

#[test]
fn partition_is_a_byte_sequence_of_both_fields() {
    let parts = |parts: &[&'static str]| {
        let bytes: Vec<&[u8]> = parts.iter().map(|part| part.as_bytes()).collect();
        PartitionSecret::new(b"secret").partition(bytes.into_iter())
    };
    let partition = parts(&["rule", "7"]);
    let mut headers = HeaderMap::new();
    let ours = per_user();
    let policy = Policy { partition: Some(partition), ..ours.policy.clone() };
    let ours = Reported { policy: policy.clone(), ..ours };
    sets([HeaderSet::Ietf]).write([policy].into_iter(), Some(&ours), Duration::ZERO, &mut headers);
    let bytes = format!("{:?}", partition.0);
    assert_eq!(
        parse(&headers[IETF_POLICY]),
        [item("per-user", &[("q", "100"), ("w", "60"), ("pk", &bytes)])]
    );
    assert_eq!(parse(&headers[IETF_LIMIT]), [item("per-user", &[("r", "42"), ("t", "38"), ("pk", &bytes)])]);
    // The same parts have the same, and no others; nor has another secret.
    assert_eq!(parts(&["rule", "7"]), partition);
    for others in [&["rule", "8"][..], &["rule7", ""], &["rule", "7", ""]] {
        assert_ne!(parts(others), partition, "{others:?}");
    }
    let parts = [&b"rule"[..], b"7"];
    assert_ne!(PartitionSecret::new(b"another").partition(parts.into_iter()), partition);
}

#[test]
fn no_set_means_no_header() {
    assert_eq!(written(HeaderSets::default(), Duration::ZERO), [""; 0]);
}

#[test]
fn a_window_that_is_no_whole_number_of_seconds_is_left_out() {
    let mut list = FieldValue::default();
    policy("per-user", 100, Duration::from_millis(1_500)).append_to(&mut list);
    assert_eq!(HeaderValue::from(list), r#""per-user";q=100"#);
}

#[test]
fn headers_of_the_answer_before_are_kept_and_ours_are_added() {
    let mut headers = HeaderMap::new();
    headers.insert(IETF_POLICY, HeaderValue::from_static(r#""theirs";q=5;w=1"#));
    headers.insert(IETF_LIMIT, HeaderValue::from_static(r#""theirs";r=4;t=1"#));
    let ours = per_user();
    HeaderSets::ALL.write([ours.policy.clone()].into_iter(), Some(&ours), Duration::ZERO, &mut headers);
    let all =
        |name| headers.get_all(name).iter().map(|one| one.to_str().unwrap()).collect::<Vec<_>>().join(", ");
    let theirs = item("theirs", &[("q", "5"), ("w", "1")]);
    assert_eq!(parse(all(IETF_POLICY)), [theirs, item("per-user", &[("q", "100"), ("w", "60")])]);
    let theirs = item("theirs", &[("r", "4"), ("t", "1")]);
    assert_eq!(parse(all(IETF_LIMIT)), [theirs, item("per-user", &[("r", "42"), ("t", "38")])]);
}

#[test]
fn of_two_x_ratelimits_the_stricter_one_is_sent() {
    let after = |theirs: &[(HeaderName, &'static str)]| {
        let mut headers = HeaderMap::new();
        for (name, value) in theirs {
            headers.insert(name, HeaderValue::from_static(value));
        }
        sets([HeaderSet::XRatelimit]).write([].into_iter(), Some(&per_user()), Duration::ZERO, &mut headers);
        [X_LIMIT, X_REMAINING].map(|name| headers.get(name).unwrap().to_str().unwrap().to_owned())
    };
    let theirs = |left: &'static str| [(X_LIMIT, "50"), (X_REMAINING, left), (X_RESET, "9")];
    assert_eq!(after(&theirs("41")), ["50", "41"]);
    assert_eq!(after(&theirs("43")), ["100", "42"]);
    assert_eq!(after(&theirs("many")), ["100", "42"]);
    // Their refusal: its numbers say why.
    assert_eq!(after(&[&theirs("43")[..], &[(RETRY_AFTER, "1")]].concat()), ["50", "43"]);
}

#[test]
fn retry_after_is_never_early() {
    for (span, expected) in [(0, "0"), (1, "1"), (999, "1"), (1_000, "1"), (1_001, "2")] {
        let mut headers = HeaderMap::new();
        write_retry_after(Duration::from_millis(span), &mut headers);
        assert_eq!(headers[RETRY_AFTER], expected, "{span} ms");
    }
}

#[test]
fn the_longest_spans_do_not_overflow() {
    let reported = Reported { reset_after: Duration::MAX, ..per_user() };
    let mut headers = HeaderMap::new();
    HeaderSets::ALL.write([].into_iter(), Some(&reported), Duration::MAX, &mut headers);
    assert_eq!(headers["x-ratelimit-reset"], u64::MAX.to_string());
}

proptest! {
    #[test]
    fn any_rule_and_numbers_make_valid_structured_fields(
        name in any::<String>(), limit: u64, remaining: u64, window in 1..u64::MAX, reset: u64,
        partition: [u8; Partition::BYTES],
    ) {
        let window_of = Duration::from_secs(window);
        let policy = Policy { partition: Some(Partition(partition)), ..policy(&name, limit, window_of) };
        let pk = format!("{partition:?}");
        let cap = |number: u64| number.min(999_999_999_999_999).to_string();
        let mut list = FieldValue::default();
        policy.append_to(&mut list);
        policy.append_to(&mut list);
        let parsed = parse(HeaderValue::from(list));
        prop_assert_eq!(parsed.len(), 2);
        prop_assert_eq!(percent_decoded(&parsed[1].0), name.as_bytes());
        prop_assert_eq!(&parsed[1].1, &[("q".to_owned(), cap(limit)), ("w".to_owned(), cap(window)), ("pk".to_owned(), pk)]);
        let reported = reported(policy, remaining, Duration::from_secs(reset));
        parse(reported.limit_value(Draft::Eleven));
        parse(reported.limit_value(Draft::Next));
    }

    /// Whoever sends `r` hits within `t` seconds sends at most as many as the rate lets pass in that time.
    #[test]
    fn no_promise_exceeds_the_rate(
        quota in 1..1_000_000_u64, window_ms in 1..100_000_000_u64, share in 0..=100_u64,
        reset_ms in 0..100_000_000_u64, retry_ms in proptest::option::of(1..100_000_000_u64),
    ) {
        let policy = policy("p", quota, Duration::from_millis(window_ms));
        let reported = Reported {
            retry_after: retry_ms.map(Duration::from_millis),
            ..reported(policy, quota * share / 100, Duration::from_millis(reset_ms))
        };
        let (r, t) = promised(&reported);
        let t = t.unwrap();
        prop_assert!(u128::from(r) * u128::from(window_ms) <= u128::from(t) * 1_000 * u128::from(quota));
        prop_assert!(retry_ms.is_none_or(|retry| t <= retry.div_ceil(1_000)), "t is after Retry-After");
    }
}

fn percent_decoded(text: &str) -> Vec<u8> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::new();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let digits = [bytes.next().unwrap(), bytes.next().unwrap()];
                u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
            }
            plain => plain,
        });
    }
    decoded
}

#[test]
fn no_decision_adds_more_headers_than_are_reserved() {
    let refused = Reported { retry_after: Some(Duration::from_secs(3)), ..per_user() };
    let mut headers = HeaderMap::with_capacity(MOST_HEADERS);
    let capacity = headers.capacity();
    HeaderSets::ALL.write([per_user().policy].into_iter(), Some(&refused), MINUTE, &mut headers);
    write_retry_after(Duration::from_secs(3), &mut headers);
    assert_eq!((headers.len(), headers.capacity()), (MOST_HEADERS, capacity));
}
