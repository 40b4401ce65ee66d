//! The attacks. Each names the promise that it tries to break.

mod calm;
mod churn;
mod clocks;
mod costs;
mod floods;
mod other_floods;
mod outages;
mod size;

use crate::attack::Attack;
use crate::checker::Kind;
use crate::random::Random;

/// The seeds to run: these, or those of the environment.
fn seeds(usual: &[u64]) -> Vec<u64> {
    match std::env::var("ATTACK_SEEDS") {
        Ok(seeds) => seeds.split(',').map(|seed| seed.trim().parse().expect("a number")).collect(),
        Err(_) => usual.to_vec(),
    }
}

/// How many acts an attack has.
fn acts() -> usize {
    std::env::var("ATTACK_ACTS").map_or(12, |acts| acts.parse().expect("a number"))
}

/// How often an attack is made that found nothing but slow scripts. The time of a script is wall time: it is slow if it is
/// slow every time.
const TRIES: usize = 3;

/// Makes an attack of each seed, and fails with what was broken and how to see it again.
#[track_caller]
fn attack_with(usual: &[u64], attack: impl Fn(&mut Random) -> Attack) {
    let _alone = crate::world::alone();
    let name = std::thread::current().name().unwrap_or("attack").to_owned();
    for seed in seeds(usual) {
        let tried = || attack(&mut Random::new(seed)).finish();
        let (mut history, mut violations) = tried();
        for _ in 1..TRIES {
            let only_slow = violations.iter().all(|found| found.kind == Kind::SlowScript);
            if violations.is_empty() || !only_slow {
                break;
            }
            violations.iter().for_each(|found| say(format_args!("{name}, seed {seed}: {found}: again?")));
            (history, violations) = tried();
        }
        let admitted = history.asked.iter().filter(|asked| asked.is_admitted()).count();
        say(format_args!(
            "{name}, seed {seed}: {} requests, {admitted} admitted, {} lease calls, {} troubles, {:.1} s, {} violations",
            history.asked.len(),
            history.lease_calls.len(),
            history.troubles.len(),
            history.asked.last().map_or(0.0, |asked| asked.received.as_secs_f64()),
            violations.len()
        ));
        let shown: String = violations.iter().take(12).map(|violation| format!("  {violation}\n")).collect();
        assert!(
            violations.is_empty(),
            "{name}, seed {seed}: {} promises broken\n{shown}repeat it with\n    \
             ATTACK_SEEDS={seed} cargo test -p tidegate-cli --test attack -- --exact {name}",
            violations.len(),
        );
    }
}

#[expect(clippy::print_stdout, reason = "what was measured is worth knowing")]
fn say(words: std::fmt::Arguments<'_>) {
    println!("{words}");
}
