//! Replays compared with results computed independently of the code under test.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

mod formats;
mod gateways;
mod hostile;
mod leases;
mod live;
mod nginx;
mod shown;
mod week;

use tidegate_replay::{Format, Options, Parser, Reader, Replay, Report};
use tidegate_rules::{Format as RuleFormat, RuleSet, Source};

/// These rules of the domain `web`.
fn rules(text: &str) -> RuleSet {
    let text = format!("domain: web\nrules:\n{text}");
    RuleSet::compile(&[Source::new("rules.yaml", text)], RuleFormat::Native)
        .unwrap_or_else(|bad| panic!("{bad}"))
}

fn replay(log: &str, format: Format, new: &str, old: Option<&str>) -> Report {
    replay_with(log, format, new, old, Options::new("web"))
}

fn replay_with(log: &str, format: Format, new: &str, old: Option<&str>, options: Options) -> Report {
    let mut replay = Replay::new(rules(new), old.map(rules), options);
    let mut parser = Parser::new(format).unwrap();
    replay.play_log(&mut Reader::new(log.as_bytes()), &mut parser, |_| ()).unwrap();
    replay.finish()
}
