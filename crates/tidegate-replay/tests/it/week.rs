//! A generated week with known results: counted here from the list of requests, by other means.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use tidegate_replay::{Format, Options, Report, html, svg, text};
use tidegate_store::MemoryConfig;

use crate::{replay, replay_with};

/// Monday, at midnight: 2027-01-18.
const START: u64 = 1_800_230_400;
const WEEK: u64 = 7 * 86_400;

/// One request: its second, and the last two bytes of its caller's address.
type Request = (u64, u16);

/// 60,000 requests: a daily rhythm, few callers that make many of them, and one that floods for an hour on Thursday.
fn week() -> Vec<Request> {
    let mut random = 0x2545_f491_4f6c_dd1du64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random >> 16
    };
    let mut requests = Vec::new();
    while requests.len() < 55_000 {
        let second = next() % WEEK;
        let hour = second / 3_600 % 24;
        // Nights are quieter.
        if (7..23).contains(&hour) || next() % 4 == 0 {
            let uniform = next() % 2_000;
            requests.push((START + second, u16::try_from(uniform * uniform / 2_000).unwrap()));
        }
    }
    let thursday = START + 3 * 86_400 + 14 * 3_600;
    requests.extend((0..5_000).map(|n| (thursday + n * 3_600 / 5_000, 60_000)));
    requests.sort_by_key(|(second, _)| *second);
    requests
}

fn address(caller: u16) -> String {
    format!("10.1.{}.{}", caller >> 8, caller & 255)
}

fn log_of(requests: &[Request]) -> String {
    let line = |(second, caller): &Request| {
        let at = jiff::Timestamp::from_second(i64::try_from(*second).unwrap()).unwrap();
        let at = at.to_zoned(jiff::tz::TimeZone::UTC).strftime("%d/%b/%Y:%H:%M:%S +0000").to_string();
        format!("{} - - [{at}] \"GET /items HTTP/1.1\" 200 12 \"-\" \"test\"\n", address(*caller))
    };
    requests.iter().map(line).collect()
}

/// The effect of a limit per clock hour, from the list alone.
struct Expected {
    refused: u64,
    callers: BTreeSet<u16>,
    first: Option<(u64, u16)>,
    peaks: BTreeMap<u16, u64>,
}

fn expected(requests: &[Request], limit: u64) -> Expected {
    let mut counts: HashMap<(u16, u64), u64> = HashMap::new();
    let mut expected = Expected { refused: 0, callers: BTreeSet::new(), first: None, peaks: BTreeMap::new() };
    for (second, caller) in requests {
        let count = counts.entry((*caller, second / 3_600)).or_default();
        *count += 1;
        let peak = expected.peaks.entry(*caller).or_default();
        *peak = (*peak).max(*count);
        if *count > limit {
            expected.refused += 1;
            expected.callers.insert(*caller);
            expected.first.get_or_insert((*second, *caller));
        }
    }
    expected
}

const HOURLY_6: &str =
    "- { name: per-ip, key: [ip], limits: [{ algorithm: fixed_window, limit: 6, window: 1h }] }";
const HOURLY_9: &str =
    "- { name: per-ip, key: [ip], limits: [{ algorithm: fixed_window, limit: 9, window: 1h }] }";

#[test]
fn a_week_has_the_answers_that_counting_gives() {
    let requests = week();
    let report = replay(&log_of(&requests), Format::Combined, HOURLY_6, Some(HOURLY_9));
    let (now, before) = (expected(&requests, 6), expected(&requests, 9));
    assert_eq!((report.lines.played, report.lines.bad), (requests.len() as u64, 0));
    let rule = &report.rules[0];
    assert!(now.refused > before.refused && before.callers.len() > 1, "the week makes a difference");
    assert_eq!((rule.refused.now, rule.refused.before), (now.refused, Some(before.refused)));
    assert_eq!((report.refused.now, report.refused.before), (now.refused, Some(before.refused)));
    // A larger limit refuses nothing that a smaller one admits.
    assert_eq!((report.newly_refused, report.newly_admitted), (Some(now.refused - before.refused), Some(0)));
    assert_eq!(rule.callers, now.peaks.len() as u64);
    let callers = (rule.callers_refused.now, rule.callers_refused.before);
    assert_eq!(callers, (now.callers.len() as u64, Some(before.callers.len() as u64)));
    assert_eq!(rule.callers_newly_refused, Some(now.callers.difference(&before.callers).count() as u64));
    let (second, caller) = now.first.unwrap();
    assert_eq!(rule.hit_first[0].first_refused_us, Some(second * 1_000_000));
    assert_eq!(rule.hit_first[0].caller, format!("ip={}", address(caller)));
    assert_eq!((&*rule.hit_most[0].caller, rule.hit_most[0].refused.now), ("ip=10.1.234.96", 5_000 - 6));
}

#[test]
fn peaks_are_what_each_caller_would_have_needed() {
    let requests = week();
    let report = replay(&log_of(&requests), Format::Combined, HOURLY_6, None);
    let mut peaks: Vec<u64> = expected(&requests, 6).peaks.into_values().collect();
    peaks.sort_unstable();
    let limit = &report.rules[0].limits[0];
    let counted: u64 = limit.peaks.iter().map(|peak| peak.count).sum();
    assert_eq!(counted, peaks.len() as u64);
    for peak in limit.peaks.iter().filter(|peak| peak.value < 128) {
        assert_eq!(peak.count, peaks.iter().filter(|known| **known == peak.value).count() as u64, "{peak:?}");
    }
    let suggestion = limit.suggestion.as_ref().unwrap();
    // The smallest limit that at least 99.9 % of callers stay within.
    let needed = (peaks.len() * 999).div_ceil(1_000);
    assert_eq!(suggestion.limit, peaks[needed - 1]);
    assert_eq!(suggestion.above, peaks.iter().filter(|peak| **peak > suggestion.limit).count() as u64);
    assert_eq!(suggestion.busiest[0], ("ip=10.1.234.96".to_owned(), 5_000));
    // The slider's number for a fixed window is its actual effect.
    let excess = |limit_to_be: u64| -> u64 {
        limit.runs.iter().map(|run| run.value.saturating_sub(limit_to_be) * run.count).sum()
    };
    let slack = 5_000 / 64;
    let moved = expected(&requests, 7).refused;
    assert!((moved..=moved + slack).contains(&excess(7)), "{} for {moved}", excess(7));
}

#[test]
fn refusals_come_in_the_hours_in_which_they_happened() {
    let requests = week();
    let report = replay(&log_of(&requests), Format::Combined, HOURLY_6, None);
    let timeline = &report.timeline;
    assert_eq!((timeline.start_s, timeline.width_s, timeline.buckets.len()), (START, 3_600, 168));
    for (hour, bucket) in (0..).zip(&timeline.buckets) {
        let within: Vec<Request> =
            requests.iter().filter(|(second, _)| (second - START) / 3_600 == hour).copied().collect();
        assert_eq!(*bucket, [within.len() as u64, expected(&within, 6).refused, 0], "hour {hour}");
    }
}

/// Columns from `from` on with the highest of `heights`.
fn highest<T: Ord + Copy>(heights: &[T]) -> (usize, usize) {
    let most = heights.iter().max().copied();
    let places = || (0..heights.len()).filter(|place| heights.get(*place).copied() == most);
    (places().next().unwrap(), places().count())
}

/// The hour of the flood, counted from Monday.
const FLOODED: usize = 3 * 24 + 14;

#[test]
fn the_hour_of_the_flood_is_the_highest_column_in_the_terminal() {
    let requests = week();
    let report = replay(&log_of(&requests), Format::Combined, HOURLY_6, Some(HOURLY_9));
    let drawn = text(&report, 240);
    let row = |name: &str| {
        let row =
            drawn.lines().find_map(|line| line.trim_start().strip_prefix(&format!("{name} |"))).unwrap();
        row.strip_suffix('|')
            .unwrap()
            .chars()
            .map(|block| if block == ' ' { 0 } else { u32::from(block) })
            .collect()
    };
    for name in ["now", "before"] {
        let columns: Vec<u32> = row(name);
        assert_eq!((columns.len(), highest(&columns)), (168, (FLOODED, 1)), "{drawn}");
        assert_eq!(columns[FLOODED], u32::from('█'));
    }
    // Half as wide: two hours to a column, said so, and the flood in the one that holds it.
    let drawn = text(&report, 100);
    let both = FLOODED as u64 / 2 * 2..FLOODED as u64 / 2 * 2 + 2;
    let within: Vec<Request> =
        requests.iter().filter(|(second, _)| both.contains(&((second - START) / 3_600))).copied().collect();
    let refused = expected(&within, 6).refused.to_string();
    let (thousands, ones) = refused.split_at(1);
    assert!(
        drawn.contains(&format!("a column is 2 h, the highest {thousands},{ones})")),
        "{refused}: {drawn}"
    );
    let now = drawn.lines().find_map(|line| line.trim_start().strip_prefix("now |")).unwrap();
    assert_eq!(now.chars().position(|block| block == '█'), Some(FLOODED / 2), "{drawn}");
}

/// The attributes of every element with this name and class, in order: the picture is ours, so its format is known.
fn elements<'s>(svg: &'s str, start: &str) -> Vec<HashMap<&'s str, u64>> {
    let found = svg.split(start).skip(1);
    let attributes = found.map(|rest| {
        let inside = rest.split_once("/>").expect("it ends").0;
        let pairs = inside.split_whitespace().map(|pair| pair.split_once('=').expect("name and value"));
        pairs.map(|(name, value)| (name, value.trim_matches('"').parse().expect("a number"))).collect()
    });
    attributes.collect()
}

#[test]
fn the_hour_of_the_flood_is_the_tallest_bar_of_the_picture_at_its_place() {
    let report = replay(&log_of(&week()), Format::Combined, HOURLY_6, None);
    let picture = svg(&report);
    // Every element that is opened is closed, in order.
    let mut open: Vec<&str> = Vec::new();
    for tag in picture.split('<').skip(1).map(|rest| rest.split_once('>').expect("a tag ends").0) {
        let name = tag.split_whitespace().next().unwrap();
        match name.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name), "{tag}"),
            None if tag.ends_with('/') => {}
            None => open.push(name),
        }
    }
    assert!(open.is_empty(), "{open:?}");
    // The first chart is of all rules: one bar for each hour with a refusal.
    let chart = picture.split("<g transform").nth(1).unwrap();
    let bars = elements(chart, "<rect class=\"now\"");
    let refusing = report.timeline.buckets.iter().filter(|bucket| bucket[1] > 0).count();
    assert_eq!(bars.len(), refusing);
    let heights: Vec<u64> = bars.iter().map(|bar| bar["height"]).collect();
    let (place, only) = highest(&heights);
    assert_eq!(only, 1);
    let tallest = &bars[place];
    // From 70 to 880 the week, from 34 down to 184 the numbers: 168 hours, of which the flood fills one.
    let left = 70 + FLOODED as u64 * 810 / 168;
    assert_eq!((tallest["x"], tallest["y"], tallest["height"]), (left, 34, 150));
    assert!((4..=5).contains(&tallest["width"]), "{tallest:?}");
    assert!(bars.iter().all(|bar| bar["y"] + bar["height"] == 184), "all stand on the axis");
    // Most callers have small peaks: the tallest bar is left of the limit.
    let chart = picture.split("<g transform").last().unwrap();
    let peaks = elements(chart, "<rect class=\"callers\"");
    let heights: Vec<u64> = peaks.iter().map(|bar| bar["height"]).collect();
    assert_eq!((highest(&heights), peaks[0]["x"]), ((0, 1), 70), "{heights:?}");
}

#[test]
fn a_page_says_who_is_hit_first_and_when_and_who_is_hit_most() {
    let requests = week();
    let page = html(&replay(&log_of(&requests), Format::Combined, HOURLY_6, None));
    let (second, caller) = expected(&requests, 6).first.unwrap();
    let at = jiff::Timestamp::from_second(i64::try_from(second).unwrap()).unwrap();
    let first_row = |title: &str| {
        let table = page.split_once(&format!("<th>{title}</th>")).expect("a table").1;
        table.split_once("<tbody>").unwrap().1.split_once("</tr>").unwrap().0.to_owned()
    };
    let first = first_row("hit first");
    assert!(first.contains(&format!("<code>ip={}</code>", address(caller))), "{first}");
    assert!(first.contains(&format!("<td>{at}</td>")), "{first}");
    assert!(first_row("hit most").contains("<code>ip=10.1.234.96</code>"), "the one that floods");
}

#[test]
fn a_sliding_log_and_a_bucket_refuse_what_a_plain_simulation_refuses() {
    let requests = week();
    let requests = &requests[..25_000];
    let log = log_of(requests);
    // At most 5 in any half hour: the seconds of those that passed, in a list.
    let mut passed: HashMap<u16, Vec<u64>> = HashMap::new();
    let mut refused = 0u64;
    for (second, caller) in requests {
        let list = passed.entry(*caller).or_default();
        list.retain(|earlier| second - earlier < 1_800);
        if list.len() < 5 { list.push(*second) } else { refused += 1 }
    }
    let sliding = "- { name: a, key: [ip], limits: [{ algorithm: sliding_log, limit: 5, window: 30m }] }";
    assert_eq!(replay(&log, Format::Combined, sliding, None).refused.now, refused);
    // A burst of 6, one more every 300 s: tokens times 300, which are whole numbers.
    let (mut buckets, mut refused): (HashMap<u16, (u64, u64)>, u64) = (HashMap::new(), 0);
    for (second, caller) in requests {
        let (tokens, since) = buckets.entry(*caller).or_insert((1_800, *second));
        *tokens = (*tokens + second - *since).min(1_800);
        *since = *second;
        if *tokens >= 300 { *tokens -= 300 } else { refused += 1 }
    }
    let bucket = "- { name: a, key: [ip], limits: [{ algorithm: token_bucket, rate: 12/h, burst: 6 }] }";
    assert_eq!(replay(&log, Format::Combined, bucket, None).refused.now, refused);
}

#[test]
fn the_same_input_gives_the_same_output_byte_for_byte() {
    let requests = week();
    let log = log_of(&requests[..10_000]);
    let all = || {
        let report = replay(&log, Format::Combined, HOURLY_6, Some(HOURLY_9));
        let json = serde_json::to_string(&report).unwrap();
        [json, text(&report, 100), svg(&report), html(&report)]
    };
    let (first, second) = (all(), all());
    assert!(first == second);
    assert!(first.iter().all(|part| part.len() > 500));
}

#[test]
fn what_is_forgotten_at_the_bound_of_memory_is_the_same_in_every_run() {
    let requests = week();
    let log = log_of(&requests[..10_000]);
    let all = || {
        let options = Options { memory: MemoryConfig::new().max_cells(64), ..Options::new("web") };
        replay_with(&log, Format::Combined, HOURLY_6, None, options)
    };
    let (first, second) = (all(), all());
    assert!(first.notes.iter().any(|note| note.contains("bound of memory")), "{:?}", first.notes);
    assert!(serde_json::to_string(&first).unwrap() == serde_json::to_string(&second).unwrap());
}

#[test]
fn callers_beyond_the_bound_are_sampled_and_the_report_says_so() {
    let requests: Vec<Request> =
        (0..40_000u64).map(|n| (START + n / 10, u16::try_from(n % 20_000).unwrap())).collect();
    let options = Options { most_callers: 1_000, ..Options::new("web") };
    let report: Report = replay_with(&log_of(&requests), Format::Combined, HOURLY_6, None, options);
    let rule = &report.rules[0];
    assert_eq!(rule.sampled_one_in, 32);
    assert!((17_000..23_000).contains(&rule.callers), "{}", rule.callers);
    assert!(report.notes.iter().any(|note| note.contains("one in 32")), "{:?}", report.notes);
    assert_eq!(rule.requests, 40_000, "requests are counted, not estimated");
}
