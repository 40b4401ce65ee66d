use tidegate_core::Micros;

use crate::world::{World, compile, told};

fn per_user(limit: &str) -> String {
    format!("- {{ name: per-user, key: [user], limits: [{limit}] }}")
}

#[test]
fn a_raised_limit_counts_at_once_and_keeps_what_was_spent() {
    let world = World::new(&per_user("10/minute"));
    let _ = world.check_cost(&[("user", "1")], 10);
    assert!(!world.check(&[("user", "1")]).allowed);
    assert_eq!(world.limiter.use_rules(compile(&per_user("12/minute"))), 2);
    assert_eq!(told(&world.check(&[("user", "1")])), (Some("per-user"), 12, 1));
}

#[test]
fn a_changed_window_is_a_new_counter() {
    let world = World::new(&per_user("10/minute"));
    let _ = world.check_cost(&[("user", "1")], 10);
    world.limiter.use_rules(compile(&per_user("10/hour")));
    assert_eq!(told(&world.check(&[("user", "1")])), (Some("per-user"), 10, 9));
}

#[test]
fn a_decision_keeps_the_rules_it_was_made_under() {
    let world = World::new(&per_user("10/minute"));
    let decision = world.check(&[("user", "1")]);
    world.limiter.use_rules(compile("- { name: other, limits: [1/minute] }"));
    assert_eq!(told(&decision), (Some("per-user"), 10, 9));
}

#[test]
fn an_override_for_one_key_ends_when_it_says() {
    let world = World::new(
        "- { name: a, key: [user], limits: [1/minute], key_overrides: [{ when: { user: acme }, limits: [5/minute], until: 2027-01-16T00:01:00Z }] }",
    );
    let quota = |world: &World| told(&world.check_cost(&[("user", "acme")], 0)).1;
    assert_eq!(quota(&world), 5);
    world.advance(Micros::from_secs(60));
    assert_eq!(quota(&world), 1);
}
