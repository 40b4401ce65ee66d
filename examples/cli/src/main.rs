//! A command-line tool that calls a paid service: all who run it share a quota on Redis, and what a call turns out to cost is
//! settled afterwards.
//!
//! ```text
//! cargo run -p example-cli -- redis://127.0.0.1:6379 ann 3    # three calls for ann
//! ```

use std::time::Duration;

use tidegate::rules::{FixedWindow, OnStoreFailure, Rule, Rules};
use tidegate::{Ask, RedisConfig, on_redis_with};

/// A hundred units an hour for the whole team, forty for each of its members; nothing where Redis does not answer.
fn rules() -> Rules {
    let strict = |rule: Rule| rule.on_store_failure(OnStoreFailure::Closed);
    Rules::new("team")
        .rule(strict(Rule::new("team").limit(FixedWindow::per_hour(100))))
        .rule(strict(Rule::new("member").key(["member"]).limit(FixedWindow::per_hour(40))))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: example-cli URL MEMBER CALLS";
    let (url, member) = (arguments.next().ok_or(usage)?, arguments.next().ok_or(usage)?);
    let calls: u64 = arguments.next().ok_or(usage)?.parse()?;
    // A person waits, so Redis may take its time.
    let config = RedisConfig::default().timeout(Duration::from_secs(10));
    let limiter = on_redis_with(rules(), &url, &config)?;
    for call in 1..=calls {
        let mut spend = Ask::new("team").with("member", &member).cost(20).spend(&limiter).await?;
        if !spend.is_allowed() {
            let (rule, wait) = (spend.rule().unwrap_or("?"), spend.retry_after().unwrap_or_default());
            println!("call {call}: refused by `{rule}`, try again in {} s", wait.as_secs() + 1);
            continue;
        }
        let used = paid_service(call);
        spend.settle(used).await?;
        println!("call {call}: {used} units");
    }
    // Leaves nothing behind: no debt, no connection, no member of the fleet.
    limiter.shutdown().await?;
    Ok(())
}

/// Costs more every time, and tells how much only afterwards.
fn paid_service(call: u64) -> u64 {
    10 + call
}
