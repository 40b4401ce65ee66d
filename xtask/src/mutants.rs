//! Breaks the code on purpose, one mistake at a time, and demands that a test notices.
//!
//! Each row is a mistake that would hurt and that a person could make. The tests run on a copy of the checkout, so that
//! nothing here is ever broken by an interrupted run.

use std::fs;
use std::path::{Path, PathBuf};

use crate::command::CommandLine;
use crate::steps::Failure;

/// One mistake: `code`, which stands once in `file`, becomes `broken`, and a test of `package` must fail.
struct Mutant {
    what: &'static str,
    package: &'static str,
    file: &'static str,
    code: &'static str,
    broken: &'static str,
}

const MUTANTS: &[Mutant] = &[
    Mutant {
        what: "a refused request spends from the limits that had room",
        package: "tidegate-core",
        file: "src/request.rs",
        code: "if alone || !touches.clone().any(|touch| refuses(cells, touch)) {",
        broken: "let _ = refuses; if alone || touches.len() > 0 {",
    },
    Mutant {
        what: "a token bucket holds one unit of work more than its burst",
        package: "tidegate-core",
        file: "src/token_bucket.rs",
        code: "let capacity = self.meter.work_of(self.burst);\n        let wanted",
        broken: "let capacity = self.meter.work_of(self.burst) + 1;\n        let wanted",
    },
    Mutant {
        what: "retry_after comes one microsecond early",
        package: "tidegate-core",
        file: "src/meter.rs",
        code: "Micros::new(work.div_ceil(self.drained_per_us))",
        broken: "Micros::new(work / self.drained_per_us)",
    },
    Mutant {
        what: "a coarse meter drains faster than its rate",
        package: "tidegate-core",
        file: "src/meter.rs",
        code: "u128::from(rate.count) * u128::from(work_per_hit) / u128::from(rate.period.get());",
        broken: "(u128::from(rate.count) * u128::from(work_per_hit)).div_ceil(u128::from(rate.period.get()));",
    },
    Mutant {
        what: "a tick of the previous window fades before it is over",
        package: "tidegate-core",
        file: "src/sliding_window.rs",
        code: "ticks - now.since(start).get() / self.tick.get();",
        broken: "ticks - now.since(start).get().div_ceil(self.tick.get());",
    },
    Mutant {
        what: "a clock that steps back frees a fixed window",
        package: "tidegate-core",
        file: "src/fixed_window.rs",
        code: "cell.filter(|cell| cell.start >= start)",
        broken: "cell.filter(|cell| cell.start == start)",
    },
    Mutant {
        what: "a sliding log forgets its minimum interval",
        package: "tidegate-core",
        file: "src/sliding_log.rs",
        code: "since_newest(self.min_interval).max(until_room)",
        broken: "since_newest(Micros::ZERO).max(until_room)",
    },
    Mutant {
        what: "a leaky bucket lets everybody go at once",
        package: "tidegate-core",
        file: "src/leaky_bucket.rs",
        code: "Verdict::Admitted { delay: reset_after }",
        broken: "Verdict::Admitted { delay: Micros::ZERO }",
    },
    Mutant {
        what: "a released lease is still held",
        package: "tidegate-core",
        file: "src/concurrency.rs",
        code: "self.held.remove(at).map(|lease| lease.expires_at)",
        broken: "self.held.get(at).map(|lease| lease.expires_at)",
    },
    Mutant {
        what: "eviction frees those at their limit first",
        package: "tidegate-store",
        file: "src/memory/table.rs",
        code: "best.is_none_or(|(_, other)| rank < other)",
        broken: "best.is_none_or(|(_, other)| rank > other)",
    },
    Mutant {
        what: "two scopes with one key share a cell",
        package: "tidegate-store",
        file: "src/memory/mod.rs",
        code: "self.hash_keys[0] ^ digest[0], self.hash_keys[1] ^ digest[1]",
        broken: "self.hash_keys[0], self.hash_keys[1] ^ (digest[1] & 0)",
    },
    Mutant {
        what: "the deny cache refuses who asks for less",
        package: "tidegate-limiter",
        file: "src/deny_cache/mod.rs",
        code: "if cell.hits.get().max(1) < refusal.hits.get() {",
        broken: "if cell.hits.get().max(1) > refusal.hits.get() {",
    },
    Mutant {
        what: "a cached refusal outlives its second",
        package: "tidegate-limiter",
        file: "src/deny_cache/entry.rs",
        code: "self.retry_after.unwrap_or(LONGEST_REFUSAL).min(LONGEST_REFUSAL)",
        broken: "self.retry_after.unwrap_or(LONGEST_REFUSAL)",
    },
    Mutant {
        what: "a cached refusal tells callers to come back a round trip early",
        package: "tidegate-limiter",
        file: "src/deny_cache/entry.rs",
        code: "span.saturating_sub(now.since(self.received))",
        broken: "span.saturating_sub(now.since(self.sent))",
    },
    Mutant {
        what: "the breaker waits for one failure more",
        package: "tidegate-limiter",
        file: "src/remote/breaker.rs",
        code: "if failures + 1 < self.config.failures.get() =>",
        broken: "if failures < self.config.failures.get() =>",
    },
    Mutant {
        what: "what timed out is taken for never applied, and so asked again",
        package: "tidegate-store-redis",
        file: "src/failure.rs",
        code: "Failure::Lost(_) | Failure::TimedOut(_) => false,",
        broken: "Failure::Lost(_) | Failure::TimedOut(_) => true,",
    },
    Mutant {
        what: "a key in Redis never expires",
        package: "tidegate-store-redis",
        file: "lua/prelude.lua",
        code: "call(\"SET\", key, value, \"PXAT\", expires_s * 1000 + floor_div(fmod(now, 1000000), 1000))",
        broken: "call(\"SET\", key, value)",
    },
    Mutant {
        what: "a script takes a time that is not Redis's",
        package: "tidegate-store-redis",
        file: "lua/prelude.lua",
        code: "now = time[1] * 1000000 + time[2]",
        broken: "now = time[1] * 1000000 + time[2] + 3600000000",
    },
];

/// Tries every mutant, or those whose description or package contains `only`.
pub(crate) fn run(root: &Path, only: Option<&str>) -> Result<(), Failure> {
    let chosen: Vec<&Mutant> = MUTANTS
        .iter()
        .filter(|mutant| only.is_none_or(|word| mutant.what.contains(word) || mutant.package.contains(word)))
        .collect();
    if chosen.is_empty() {
        let all: String =
            MUTANTS.iter().map(|mutant| format!("\n  {}: {}", mutant.package, mutant.what)).collect();
        return Err(Failure { what: "no mutant is called that".to_owned(), hint: format!("they are:{all}") });
    }
    let copy = copy_of(root)?;
    let mut survivors = Vec::new();
    for mutant in chosen {
        let noticed = mutant.is_noticed(&copy)?;
        println!("{} {}: {}", if noticed { "caught  " } else { "SURVIVED" }, mutant.package, mutant.what);
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
        let test = ["cargo", "test", "--quiet", "-p", self.package, "--all-features", "--tests"];
        let build = CommandLine::new(test).args(["--no-run"]).env("CARGO_TARGET_DIR", "target");
        // A test that never ends has noticed too: some wait for what a mutant never gives.
        let test = CommandLine::new(["timeout", "--kill-after", "5", "120"].into_iter().chain(test));
        let test = test.env("CARGO_TARGET_DIR", "target");
        let built = build.succeeds(copy);
        let passed = built && test.succeeds(copy);
        fs::write(&file, whole).map_err(cannot)?;
        if built { Ok(!passed) } else { Err(Failure::of_command(&build, "a mutant does not compile")) }
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
}
