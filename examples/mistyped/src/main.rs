//! What a mistyped attribute looks like: the rule counts nobody, which the decision says, and the library warns of once.
//!
//! ```text
//! cargo run -p example-mistyped
//! ```

use tidegate::Ask;

const RULES: &str = "{ domain: api, rules: [{ name: per-user, key: [user], limits: [1/hour] }] }";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limiter = tidegate::in_memory(RULES)?;
    for _ in 0..3 {
        let decision = Ask::new("api").with("usr", "ann").check_blocking(&limiter)?;
        let skipped: Vec<&str> = decision.skipped().map(|rule| rule.name()).collect();
        println!("allowed {}, not counted by {skipped:?}", decision.allowed);
    }
    Ok(())
}
