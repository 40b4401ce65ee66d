//! Breaks the code on purpose, one mistake at a time, and demands that a test notices.
//!
//! Each row is a mistake that would hurt and that a person could make. The tests run on a copy of the checkout, so that
//! nothing here is ever broken by an interrupted run. The attack suite is shown the same way to find each kind of failure that
//! its checker knows: such a row names the attack, and what it must print.

mod table;

use std::fs;
use std::path::{Path, PathBuf};

use crate::command::CommandLine;
use crate::steps::Failure;
use table::MUTANTS;

/// One mistake: `code`, which stands once in `file`, becomes `broken`, and a test of `package` must fail, or an attack.
struct Mutant {
    what: &'static str,
    package: &'static str,
    file: &'static str,
    code: &'static str,
    broken: &'static str,
    /// Where the tests of the package do not count: the attack on real servers that must find it.
    attack: Option<Attack>,
}

/// One scenario of `crates/tidegate-cli/tests/attack`, and the kind of its finding.
struct Attack {
    scenario: &'static str,
    finding: &'static str,
}

/// Tries every mutant, or those whose name contains `only`.
pub(crate) fn run(root: &Path, only: Option<&str>) -> Result<(), Failure> {
    let chosen: Vec<&Mutant> =
        MUTANTS.iter().filter(|mutant| only.is_none_or(|word| mutant.name().contains(word))).collect();
    if chosen.is_empty() {
        let all: String = MUTANTS.iter().map(|mutant| format!("\n  {}", mutant.name())).collect();
        return Err(Failure { what: "no mutant is called that".to_owned(), hint: format!("they are:{all}") });
    }
    try_each(root, chosen)
}

/// Tries two of the mutants that need no server: which ones, the number says.
pub(crate) fn two(root: &Path, number: usize) -> Result<(), Failure> {
    let needs_none = |mutant: &&Mutant| mutant.attack.is_none() && mutant.package != "tidegate-store-redis";
    let all: Vec<&Mutant> = MUTANTS.iter().filter(needs_none).collect();
    try_each(root, [all[2 * number % all.len()], all[(2 * number + 1) % all.len()]])
}

fn try_each<'m>(root: &Path, mutants: impl IntoIterator<Item = &'m Mutant>) -> Result<(), Failure> {
    let copy = copy_of(root)?;
    let mut survivors = Vec::new();
    for mutant in mutants {
        let noticed = mutant.is_noticed(&copy)?;
        println!("{} {}", if noticed { "caught  " } else { "SURVIVED" }, mutant.name());
        survivors.extend((!noticed).then_some(mutant.what));
    }
    if survivors.is_empty() {
        return Ok(());
    }
    Err(Failure {
        what: format!("no test notices that {}", survivors.join(", nor that ")),
        hint: "write the test that fails then".to_owned(),
    })
}

impl Mutant {
    /// What is broken where, and by which attack it is to be found.
    fn name(&self) -> String {
        let Mutant { what, package, attack, .. } = self;
        let attack =
            attack.as_ref().map(|Attack { scenario, finding }| format!(" (attack {scenario}: {finding})"));
        format!("{package}: {what}{}", attack.unwrap_or_default())
    }

    fn is_noticed(&self, copy: &Path) -> Result<bool, Failure> {
        let file = copy.join("crates").join(self.package).join(self.file);
        let cannot = |error: std::io::Error| Failure {
            what: format!("{}: {error}", file.display()),
            hint: "the rows are in xtask/src/mutants.rs".to_owned(),
        };
        let whole = fs::read_to_string(&file).map_err(cannot)?;
        if whole.matches(self.code).count() != 1 {
            return Err(Failure {
                what: format!("`{}` does not stand once in {}", self.code, file.display()),
                hint: "follow the code in xtask/src/mutants.rs".to_owned(),
            });
        }
        fs::write(&file, whole.replace(self.code, self.broken)).map_err(cannot)?;
        let test = match &self.attack {
            None => vec!["cargo", "test", "--quiet", "-p", self.package, "--all-features", "--tests"],
            Some(_) => vec!["cargo", "test", "--quiet", "-p", "tidegate-cli", "--test", "attack"],
        };
        let build = CommandLine::new(test.clone()).args(["--no-run"]).env("CARGO_TARGET_DIR", "target");
        let test = CommandLine::new(["timeout", "--kill-after", "5", "120"].into_iter().chain(test))
            .args(self.attack.as_ref().map(|attack| attack.scenario))
            .env("CARGO_TARGET_DIR", "target");
        let built = build.succeeds(copy);
        let noticed = built
            && match &self.attack {
                // A test that never ends has noticed too: some wait for what a mutant never gives.
                None => !test.succeeds(copy),
                Some(attack) => attack.finds_it(&test.printed(copy)),
            };
        fs::write(&file, whole).map_err(cannot)?;
        if built { Ok(noticed) } else { Err(Failure::of_command(&build, "a mutant does not compile")) }
    }
}

impl Attack {
    /// Whether the attack printed a finding of its kind; shows the first of them.
    fn finds_it(&self, printed: &str) -> bool {
        let begins = format!("  {}: ", self.finding);
        let found = printed.lines().find(|line| line.starts_with(&begins));
        if let Some(line) = found {
            println!("{}:\n{}", self.scenario, line.chars().take(300).collect::<String>());
        }
        found.is_some()
    }
}

/// What git tracks, as it stands in the checkout, in a folder of its own. Its builds are kept for the next time.
fn copy_of(root: &Path) -> Result<PathBuf, Failure> {
    let copy = root.join("target/mutants");
    let list = CommandLine::new(["git", "ls-files"]).output(root).ok_or_else(|| Failure {
        what: "cannot list the files of the checkout".to_owned(),
        hint: "run it in a git checkout".to_owned(),
    })?;
    for file in list.lines() {
        let (from, to) = (root.join(file), copy.join(file));
        let Ok(new) = fs::read(&from) else { continue };
        // What has not changed keeps its date, and so its build.
        if fs::read(&to).is_ok_and(|old| old == new) {
            continue;
        }
        let parent = to.parent().expect("a file of the checkout is in a folder");
        fs::create_dir_all(parent).and_then(|()| fs::write(&to, new)).map_err(|error| Failure {
            what: format!("cannot copy {file}: {error}"),
            hint: "make target/ writable for you".to_owned(),
        })?;
    }
    Ok(copy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mutant_still_finds_the_code_it_breaks() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lives in the workspace root");
        for mutant in MUTANTS {
            let file = root.join("crates").join(mutant.package).join(mutant.file);
            let text = fs::read_to_string(&file).expect("the file is there");
            assert_eq!(text.matches(mutant.code).count(), 1, "{}: {}", mutant.file, mutant.what);
        }
    }

    #[test]
    fn every_kind_of_finding_of_the_attacks_has_a_mistake_that_shows_it() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lives in the workspace root");
        let attacks = root.join("crates/tidegate-cli/tests/attack");
        let read = |path: PathBuf| fs::read_to_string(path).expect("the file is there");
        let checker = read(attacks.join("checker/mod.rs"));
        let kinds = checker.split("enum Kind {").nth(1).and_then(|rest| rest.split('}').next());
        let kinds = kinds.expect("the checker has kinds of findings").lines().map(str::trim);
        let mut kinds: Vec<&str> = kinds.filter_map(|line| line.strip_suffix(',')).collect();
        let shown = || MUTANTS.iter().filter_map(|mutant| mutant.attack.as_ref());
        let mut found: Vec<&str> = shown().map(|attack| attack.finding).collect();
        kinds.sort_unstable();
        found.sort_unstable();
        found.dedup();
        assert_eq!(found, kinds);
        let scenarios = fs::read_dir(attacks.join("scenarios")).expect("the folder is there");
        let scenarios: String =
            scenarios.map(|file| read(file.expect("a file of the folder").path())).collect();
        for attack in shown() {
            assert!(
                scenarios.contains(&format!("fn {}()", attack.scenario)),
                "no attack {}",
                attack.scenario
            );
        }
    }
}
