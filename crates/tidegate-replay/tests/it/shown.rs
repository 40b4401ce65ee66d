//! A report shows the same in every format.

use tidegate_replay::{Format, html, svg, text};

use crate::replay;

const FIVE_A_MINUTE: &str =
    "- { name: per-ip, key: [ip], limits: [{ algorithm: fixed_window, limit: 5, window: 1m }] }";

/// Callers 1 to 40 within a minute: each makes as many requests as its number.
fn forty_callers() -> String {
    let line = |caller: u64| {
        format!("203.0.113.{caller} - - [16/Jan/2027:00:00:01 +0000] \"GET / HTTP/1.1\" 200 1 \"-\" \"-\"\n")
    };
    (1..=40).flat_map(|caller| (0..caller).map(move |_| line(caller))).collect()
}

#[test]
fn in_a_terminal_everybody_above_the_limit_stands_below_its_line() {
    let shown = text(&replay(&forty_callers(), Format::Combined, FIVE_A_MINUTE, None), 80);
    // A bar is five wide: the one from 5 to 9 has one caller within the limit and four above it.
    let bars: Vec<Vec<&str>> = shown
        .lines()
        .skip_while(|line| !line.contains("callers by their peak"))
        .skip(1)
        .take_while(|line| !line.contains("suggested"))
        .map(|line| line.split_whitespace().filter(|word| !word.starts_with(['█', '─'])).collect())
        .collect();
    assert_eq!(
        bars[..4],
        [vec!["0-4", "4"], vec!["5", "1"], vec!["limit", "5", "35", "above"], vec!["6-9", "4"]]
    );
    let above = bars[3..].iter().map(|bar| bar[1].parse::<u64>().unwrap());
    assert_eq!(above.sum::<u64>(), 35, "{shown}");
}

#[test]
fn a_limit_that_nobody_reaches_stands_below_all_bars() {
    let hundred = FIVE_A_MINUTE.replace("limit: 5", "limit: 100");
    let shown = text(&replay(&forty_callers(), Format::Combined, &hundred, None), 80);
    let (before, after) = shown.split_once("limit 100 ──").expect("the line");
    assert!(before.contains("40-44 "), "{shown}");
    assert!(after.lines().next().unwrap().ends_with(" 0 above"), "{shown}");
}

#[test]
fn a_slider_says_that_it_moves_its_limit_alone_where_another_rule_refuses_first() {
    let log = forty_callers();
    let alone = html(&replay(&log, Format::Combined, FIVE_A_MINUTE, None));
    assert!(!alone.contains("data-together=\""), "there is nothing beside it");
    let all = "- { name: all, key: [], limits: [{ algorithm: fixed_window, limit: 1, window: 1h }] }";
    let report = replay(&log, Format::Combined, &format!("{FIVE_A_MINUTE}\n{all}"), None);
    let refused = report.rules.iter().find(|rule| rule.rule == "per-ip").unwrap().refused.now;
    let page = html(&report);
    let section = page.split_once("<h2>web/per-ip</h2>").unwrap().1.split_once("</section>").unwrap().0;
    // All but one were refused by the other rule: the table has none of the slider's.
    assert_eq!(refused, 0);
    assert!(section.contains("data-quota=\"5\" data-together=\"0\""), "{section}");
    // A rule that never refuses takes nothing away.
    let shadow = all.replace("key: []", "key: [], shadow: true");
    let report = replay(&log, Format::Combined, &format!("{FIVE_A_MINUTE}\n{shadow}"), None);
    let page = html(&report);
    let section = page.split_once("<h2>web/per-ip</h2>").unwrap().1.split_once("</section>").unwrap().0;
    assert!(!section.contains("data-together=\""), "{section}");
}

#[test]
fn a_chart_on_a_page_has_no_text_that_shrinks_and_no_colour_of_its_own() {
    let report = replay(&forty_callers(), Format::Combined, FIVE_A_MINUTE, None);
    let page = html(&report);
    let charts: Vec<&str> =
        page.split("<svg ").skip(1).map(|rest| rest.split_once("</svg>").unwrap().0).collect();
    assert_eq!(charts.len(), 3);
    for chart in charts {
        assert!(!chart.contains("<text") && !chart.contains('#') && !chart.contains("<style"), "{chart}");
    }
    // Five of 41: the bars end after the fortieth caller.
    assert!(page.contains("data-end=\"41\" style=\"left:12.19%\"><span>limit 5</span>"), "{page}");
    // Alone, a picture brings text and ground.
    let picture = svg(&report);
    assert!(picture.contains("fill=\"#fff\"/>") && picture.contains(">limit 5</text>"), "{picture}");
    assert_eq!((page, picture), (html(&report), svg(&report)), "the same report gives the same bytes");
}
