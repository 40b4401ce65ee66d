//! `cargo xtask pictures`: the README's pictures of the dashboard, taken again after it has changed.
//!
//! `pictures.cjs` starts a fleet of the `release` build on a real Redis, lets traffic pass until five minutes of it were calm, and has
//! Chromium look. It needs a machine that does nothing else, and fails where it never is calm.

use std::path::Path;

use crate::command::CommandLine;
use crate::steps::Failure;
use crate::tools;

const BUILD: [&str; 6] = ["cargo", "build", "--release", "--locked", "-p", "tidegate-cli"];

/// Writes `docs/images/overview.png` and `editor.png`. `PICTURES_BINARY` names a binary that was built before.
pub(crate) fn take(root: &Path) -> Result<(), Failure> {
    let found = tools::provide(root)?;
    let binary = match std::env::var("PICTURES_BINARY") {
        Ok(binary) => binary,
        Err(_) => {
            run(root, &CommandLine::new(BUILD))?;
            root.join("target/release/tidegate").display().to_string()
        }
    };
    let script = CommandLine::new(["node", "xtask/src/pictures.cjs"])
        .env("BINARY", binary)
        .env("REDIS", found.path("redis-server"))
        .env("CHROMIUM", found.path("chromium"))
        .env("PLAYWRIGHT", found.path("playwright-core"))
        .env("TO", root.join("docs/images").display().to_string());
    run(root, &script)
}

fn run(root: &Path, command: &CommandLine) -> Result<(), Failure> {
    command.run(root).map_err(|why| Failure::of_command(command, &why))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    /// Three seconds of three healthy nodes, in which `change` changes something, and the last trouble that is found in them.
    fn last_trouble_after(change: &str) -> String {
        let script = format!(
            "const stats = {{ from: '1970-01-01T00:01:40Z', step_s: 1, total: {{ allowed: [5, 5, 5], fallback: [0, 0, 0] }},
               decision_p99_us: [900, 900, 900], store_p99_us: [500, 500, 500],
               incomplete: [false, false, false], partial: [false, false, false] }};
             const alerts = {{ active: [], resolved: [] }};
             const node = (name) => ({{ name, health: 'healthy' }});
             const nodes = {{ warnings: [], nodes: ['a', 'b', 'c'].map(node) }};
             {change};
             const [{{ at, what, shown }}] = require('./src/pictures.cjs').troubles({{ stats, alerts, nodes }}, 103);
             process.stdout.write(`${{at}} ${{what}}${{shown ? ', shown' : ''}}`);"
        );
        let ran = Command::new("node")
            .args(["-e", &script])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .expect("node runs");
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        String::from_utf8_lossy(&ran.stdout).into_owned()
    }

    #[test]
    fn alerts_gaps_and_slow_seconds_are_no_healthy_fleet() {
        let alert = |ended: &str, severity: &str| {
            format!(
                "[{{ summary: 'The store is slow', severity: '{severity}', since_s: 101, ended_s: {ended} }}]"
            )
        };
        for (change, expected) in [
            (String::new(), "99 the time before"),
            ("stats.total.allowed = [null, 5, null]".to_owned(), "100 a gap, shown"),
            ("stats.total.allowed = [5, null, 5]".to_owned(), "101 a gap, shown"),
            ("stats.total.allowed = [null, null, null]".to_owned(), "103 nothing is known, shown"),
            ("stats.incomplete[2] = true".to_owned(), "102 a node was not heard, shown"),
            ("stats.total.fallback[1] = 1".to_owned(), "101 requests without the store, shown"),
            ("stats.store_p99_us[1] = 385_000".to_owned(), "101 a p99 of 385 ms"),
            (
                format!("alerts.resolved = {}", alert("102", "warning")),
                "102 the alert: The store is slow, shown",
            ),
            (format!("alerts.resolved = {}", alert("102", "info")), "99 the time before"),
            (format!("alerts.active = {}", alert("null", "info")), "103 the alert: The store is slow, shown"),
            ("nodes.warnings = ['clocks']".to_owned(), "103 clocks, shown"),
            ("nodes.nodes.pop()".to_owned(), "103 2 nodes, shown"),
            ("nodes.nodes[1].health = 'degraded'".to_owned(), "103 b is not healthy, shown"),
        ] {
            assert_eq!(last_trouble_after(&change), expected, "{change}");
        }
    }
}
