use tidegate_metrics::MOST_RULE_SERIES;

use crate::world::{World, many_rules};

const DECISIONS: &str = "tidegate_decisions_total";

#[test]
fn a_set_of_twenty_thousand_rules_is_told_in_bounded_text_and_no_count_is_lost() {
    let world = World::new(&[&many_rules("rule", 20_000)]);
    for n in 0..20_000 {
        let _ = world.check(&[("n", &n.to_string())]);
    }
    let scrape = world.scrape();
    let others = [("domain", ""), ("rule", "others"), ("result", "allowed"), ("source", "store")];
    assert_eq!(scrape.get(DECISIONS, &others), Some(20_000.0 - MOST_RULE_SERIES as f64));
    assert_eq!(scrape.sum(DECISIONS), 20_000.0);
    assert_eq!(scrape.all(DECISIONS).count(), 2 * (MOST_RULE_SERIES + 1));
    assert_eq!(scrape.get("tidegate_rules_sharing_series", &[]), Some(20_000.0 - MOST_RULE_SERIES as f64));
}

#[test]
fn rules_that_are_gone_make_room_for_new_ones_and_their_counts_stay_in_the_sum() {
    let world = World::new(&[&many_rules("old", MOST_RULE_SERIES)]);
    let _ = world.check(&[("n", "7")]);
    world.replace_rules(&["{ domain: api, rules: [] }"]);
    world.replace_rules(&[&many_rules("new", MOST_RULE_SERIES)]);
    let _ = world.check(&[("n", "7")]);
    let scrape = world.scrape();
    assert_eq!(scrape.get("tidegate_rules_sharing_series", &[]), Some(0.0));
    assert_eq!(world.decisions("new-7", "allowed"), Some(1.0));
    assert_eq!(world.decisions("old-7", "allowed"), None);
    assert_eq!(scrape.sum(DECISIONS), 2.0);
}

#[test]
fn rules_in_use_keep_their_series_when_room_is_made() {
    let first = many_rules("old", MOST_RULE_SERIES);
    let world = World::new(&[&first]);
    let _ = world.check(&[("n", "7")]);
    world.replace_rules(&[&first]);
    let _ = world.check(&[("n", "7")]);
    assert_eq!(world.decisions("old-7", "allowed"), Some(2.0));
}

#[test]
fn a_rule_whose_name_is_too_long_for_a_label_is_counted_with_the_others() {
    let name = "x".repeat(1_000);
    let envoy = format!(
        "{{ domain: api, descriptors: [{{ key: {name}, rate_limit: {{ unit: hour, requests_per_unit: 9 }} }}] }}"
    );
    let world = World::new(&[&envoy]);
    let _ = world.check(&[(&name, "1")]);
    let others = [("domain", ""), ("rule", "others"), ("result", "allowed"), ("source", "store")];
    assert_eq!(world.scrape().get(DECISIONS, &others), Some(1.0));
    assert!(!world.text().contains(&name));
}

#[test]
fn nothing_is_said_of_others_while_there_are_none() {
    let world = World::new(&["{ domain: api, rules: [{ name: only, limits: [9/hour] }] }"]);
    assert!(world.scrape().all(DECISIONS).all(|(labels, _)| labels["rule"] == "only"));
}
