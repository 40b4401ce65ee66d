//! The log of a real server to which the same happens again and again.

use std::time::Duration;

use tidegate_testkit::eventually;

use crate::redis_world::PATIENCE;
use crate::telemetry_out::Server;

const TIMES: usize = 25;

/// Lines of one place that are written in a row; after that one more every ten seconds.
const IN_A_ROW: usize = 10;

#[test]
fn a_line_that_repeats_is_withheld_and_how_often_is_counted_and_said() {
    let mut server = Server::start("memory:", "");
    let failures = |server: &Server| {
        server.metric("tidegate_config_reloads_total{result=\"failure\"}").unwrap_or_default() as usize
    };
    server.offer_rules("domain: [");
    for turn in 1..=TIMES {
        eventually("the rules are refused", PATIENCE, || failures(&server) >= turn);
        if turn < TIMES {
            server.server.reload();
        }
    }
    // Each refusal is two lines: that there was one, and what is wrong in which place.
    let total = 2 * failures(&server);
    let told = "repeated log lines were not written";
    let said = |server: &Server| -> usize {
        let log = server.server.stderr();
        let lines = log.lines().filter(|line| line.contains(told));
        let counts =
            lines.filter_map(|line| line.split("withheld=").nth(1)?.split(' ').next()?.parse::<usize>().ok());
        counts.sum()
    };
    let written = |server: &Server| {
        let log = server.server.stderr();
        ["rules not reloaded, the old ones keep running", "this is not valid YAML"]
            .map(|line| log.matches(line).count())
    };
    eventually("it is said how many were withheld", Duration::from_secs(60), || {
        said(&server) + written(&server).iter().sum::<usize>() == total
    });
    let withheld = server.metric("tidegate_log_lines_withheld_total");
    assert_eq!(withheld, Some(said(&server) as f64));
    // A machine that takes ten seconds over this earns one more line each.
    let most = IN_A_ROW + 2;
    assert!(written(&server).iter().all(|lines| (IN_A_ROW..=most).contains(lines)), "{:?}", written(&server));
}
