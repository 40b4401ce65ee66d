//! The Lua scripts, assembled from the files under `lua/`; each contains only the functions that it calls.
//!
//! Lua creates every function of a script on every call, so a script with all of them would spend more time on that than
//! on a decision. There are at most 256 scripts per driver, and in practice a handful.

use std::sync::OnceLock;

/// What a script does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driver {
    /// Decides requests that touch one cell each.
    DecideAlone,
    /// Decides requests.
    Decide,
    /// Decides parts of requests, and undoes them. One script for both: a server that can decide can also undo.
    DecideAndUndo,
    /// Changes cells outside requests.
    Change,
}

/// A set of algorithms, identified by their script letters, and whether a spend may go over its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Algorithms(u8);

/// Beyond the bits of the algorithms.
const OVER: u8 = 1 << 7;

/// A script and its Redis name.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) source: String,
    /// SHA-1 of the source in hexadecimal, for `EVALSHA`.
    pub(crate) name: String,
}

struct Source {
    letter: u8,
    files: &'static [&'static str],
}

macro_rules! lua {
    ($name:literal) => {
        include_str!(concat!("../lua/", $name, ".lua"))
    };
}

/// The files of each algorithm; a shared file is included once.
const SOURCES: [Source; 7] = [
    Source { letter: b'b', files: &[lua!("meter"), lua!("token_bucket")] },
    Source { letter: b'q', files: &[lua!("meter"), lua!("leaky_bucket")] },
    Source { letter: b'f', files: &[lua!("fixed_window")] },
    Source { letter: b'w', files: &[lua!("sliding_window")] },
    Source { letter: b'l', files: &[lua!("packed"), lua!("sliding_log")] },
    // Concurrency with and without counting refused requests.
    Source { letter: b'k', files: &[lua!("packed"), lua!("sliding_log"), lua!("concurrency")] },
    Source { letter: b'c', files: &[lua!("concurrency")] },
];

impl Algorithms {
    pub(crate) fn add_all(&mut self, others: Algorithms) {
        self.0 |= others.0;
    }

    pub(crate) fn add(&mut self, letter: u8) {
        let place = SOURCES.iter().position(|source| source.letter == letter);
        self.0 |= 1 << place.expect("every letter has its files");
    }

    /// A spend may go over its limit.
    pub(crate) fn add_over(&mut self) {
        self.0 |= OVER;
    }

    /// Whether any of them may count refused requests.
    fn may_count_refused(self) -> bool {
        let is_one = |(place, source): (usize, &Source)| {
            self.0 & (1 << place) != 0 && matches!(source.letter, b'l' | b'k')
        };
        SOURCES.iter().enumerate().any(is_one)
    }

    fn files(self) -> Vec<&'static str> {
        let wanted = SOURCES.iter().enumerate().filter(|(place, _)| self.0 & (1 << place) != 0);
        let mut files = Vec::new();
        for file in wanted.flat_map(|(_, source)| source.files) {
            if !files.contains(file) {
                files.push(*file);
            }
        }
        files
    }
}

impl Driver {
    /// The files that follow those of the algorithms.
    fn files(self) -> &'static [&'static str] {
        match self {
            Driver::DecideAlone => &[lua!("cells"), lua!("holds"), lua!("alone")],
            Driver::Decide => &[
                lua!("cells"),
                lua!("holds"),
                lua!("charge"),
                lua!("over"),
                lua!("reply"),
                lua!("passing"),
                lua!("spend"),
                lua!("trace"),
                lua!("doubt"),
                lua!("penalty"),
                lua!("decide"),
            ],
            Driver::DecideAndUndo => &[
                lua!("give_back"),
                lua!("cells"),
                lua!("holds"),
                lua!("charge"),
                lua!("over"),
                lua!("reply"),
                lua!("passing"),
                lua!("spend"),
                lua!("trace"),
                lua!("doubt"),
                lua!("penalty"),
                lua!("cancel"),
                lua!("decide"),
            ],
            Driver::Change => &[lua!("give_back"), lua!("charge"), lua!("change")],
        }
    }
}

/// The script of `driver` for `algorithms`, assembled once.
pub(crate) fn script(driver: Driver, algorithms: Algorithms) -> &'static Script {
    const SETS: usize = 2 * OVER as usize;
    static SCRIPTS: [[OnceLock<Script>; SETS]; 4] = [const { [const { OnceLock::new() }; SETS] }; 4];
    SCRIPTS[driver as usize][usize::from(algorithms.0)].get_or_init(|| assemble(driver, algorithms))
}

/// The script that publishes rules.
pub(crate) fn publish() -> &'static Script {
    static SCRIPT: OnceLock<Script> = OnceLock::new();
    SCRIPT.get_or_init(|| Script::new([lua!("publish")].into_iter()))
}

/// The script that replaces the published changes.
pub(crate) fn publish_changes() -> &'static Script {
    static SCRIPT: OnceLock<Script> = OnceLock::new();
    SCRIPT.get_or_init(|| Script::new([lua!("publish_changes")].into_iter()))
}

/// The script that compares the shard lists of nodes.
pub(crate) fn shards() -> &'static Script {
    static SCRIPT: OnceLock<Script> = OnceLock::new();
    SCRIPT.get_or_init(|| Script::new([lua!("shards")].into_iter()))
}

/// The script that reads the limiters' notes.
pub(crate) fn notes() -> &'static Script {
    static SCRIPT: OnceLock<Script> = OnceLock::new();
    SCRIPT.get_or_init(|| Script::new([lua!("notes")].into_iter()))
}

/// The script that asks all nodes a question.
pub(crate) fn ask() -> &'static Script {
    static SCRIPT: OnceLock<Script> = OnceLock::new();
    SCRIPT.get_or_init(|| Script::new([lua!("ask")].into_iter()))
}

/// The script that answers a question.
pub(crate) fn answer() -> &'static Script {
    static SCRIPT: OnceLock<Script> = OnceLock::new();
    SCRIPT.get_or_init(|| Script::new([lua!("answer")].into_iter()))
}

/// The script that sends a limiter's heartbeat.
pub(crate) fn heartbeat() -> &'static Script {
    static SCRIPT: OnceLock<Script> = OnceLock::new();
    SCRIPT.get_or_init(|| Script::new([lua!("heartbeat")].into_iter()))
}

/// The script that deletes a cell.
pub(crate) fn forget() -> &'static Script {
    static SCRIPT: OnceLock<Script> = OnceLock::new();
    SCRIPT.get_or_init(|| Script::new([lua!("forget")].into_iter()))
}

/// The script that writes and replaces records.
pub(crate) fn record() -> &'static Script {
    static SCRIPT: OnceLock<Script> = OnceLock::new();
    SCRIPT.get_or_init(|| Script::new([lua!("record")].into_iter()))
}

fn assemble(driver: Driver, algorithms: Algorithms) -> Script {
    let noting = algorithms.may_count_refused().then_some(lua!("note_refused"));
    let files = [lua!("prelude")].into_iter().chain(algorithms.files()).chain(noting);
    let is_needed =
        |file: &&str| algorithms.0 & OVER != 0 || driver == Driver::Change || *file != lua!("over");
    Script::new(files.chain(driver.files().iter().copied().filter(is_needed)))
}

impl Script {
    fn new(files: impl Iterator<Item = &'static str>) -> Self {
        // Redis keeps the source of every script, so comments are stripped.
        let lines = files.flat_map(str::lines).filter(|line| !line.starts_with("--") && !line.is_empty());
        let source = join_called(&in_blocks(lines));
        let name = redis::Script::new(&source).get_hash().to_owned();
        Script { source, name }
    }
}

/// Lines that belong together.
struct Block {
    /// The function's name, if it is one; an unused function is dropped.
    name: Option<&'static str>,
    lines: Vec<&'static str>,
}

/// Splits lines into functions, from the naming line to the unindented `end`, and the lines between them.
fn in_blocks(lines: impl Iterator<Item = &'static str>) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    for line in lines {
        let function = line.strip_prefix("local function ").and_then(|rest| rest.split('(').next());
        let goes_on = blocks.last().is_some_and(|last| match last.name {
            Some(_) => last.lines.last() != Some(&"end"),
            None => function.is_none(),
        });
        match blocks.last_mut() {
            Some(last) if goes_on => last.lines.push(line),
            _ => blocks.push(Block { name: function, lines: vec![line] }),
        }
    }
    blocks
}

/// Joins all top-level code and the functions that it calls, directly or not.
fn join_called(blocks: &[Block]) -> String {
    let mut wanted: Vec<bool> = blocks.iter().map(|block| block.name.is_none()).collect();
    // A function is defined before its callers.
    for place in (0..blocks.len()).rev() {
        let Some(name) = blocks[place].name else { continue };
        let later = blocks.iter().zip(&wanted).skip(place + 1).filter(|(_, wanted)| **wanted);
        wanted[place] =
            later.flat_map(|(block, _)| &block.lines).any(|line| words(line).any(|word| word == name));
    }
    let kept = blocks.iter().zip(&wanted).filter(|(_, wanted)| **wanted);
    kept.flat_map(|(block, _)| &block.lines).flat_map(|line| [*line, "\n"]).collect()
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|letter: char| !letter.is_alphanumeric() && letter != '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(letters: &[u8]) -> Algorithms {
        let mut algorithms = Algorithms::default();
        letters.iter().for_each(|letter| algorithms.add(*letter));
        algorithms
    }

    #[test]
    fn a_script_holds_the_algorithms_it_is_for_and_no_other() {
        let source = &script(Driver::Decide, of(b"bq")).source;
        assert_eq!(source.matches("local function meter_read").count(), 1);
        assert_eq!(source.matches("local function token_bucket_decide").count(), 1);
        assert_eq!(source.matches("local function leaky_bucket_decide").count(), 1);
        assert_eq!(source.matches("local function sliding_log_decide").count(), 0);
    }

    #[test]
    fn a_script_holds_the_functions_it_calls_and_no_other() {
        let source = &script(Driver::DecideAlone, of(b"b")).source;
        for called in ["token_bucket_decide", "meter_write", "expiry_beyond", "ceil_div"] {
            assert!(source.contains(&format!("local function {called}(")), "{called}");
        }
        for idle in ["token_bucket_refund", "token_bucket_charge", "is_refused", "trace"] {
            assert!(!source.contains(&format!("function {idle}(")), "{idle}");
        }
        assert!(script(Driver::Change, of(b"b")).source.contains("local function token_bucket_refund("));
    }

    /// Redis refuses a script at the moment when it reads a global that nobody set: perhaps seldom, and in a flood.
    #[test]
    fn constants_are_defined_before_they_are_used() {
        for driver in [Driver::DecideAlone, Driver::Decide, Driver::DecideAndUndo, Driver::Change] {
            let mut all = of(b"bqfwlkc");
            all.add_over();
            let mut defined = vec!["KEYS", "ARGV"];
            for line in script(driver, all).source.lines() {
                let code: String = line.split('"').step_by(2).collect();
                if let Some(names) = line.trim_start().strip_prefix("local ") {
                    defined.extend(words(names.split('=').next().unwrap()));
                }
                let is_constant = |word: &&str| {
                    word.len() > 1 && word.starts_with(char::is_uppercase) && *word == word.to_uppercase()
                };
                for used in words(&code).filter(is_constant) {
                    assert!(defined.contains(&used), "{driver:?}: {used} in {line}");
                }
            }
        }
    }

    #[test]
    fn the_name_of_a_script_is_the_sha1_of_its_source() {
        let script = script(Driver::Change, of(b"l"));
        assert_eq!(script.name.len(), 40);
        assert_ne!(script.name, super::script(Driver::Change, of(b"lb")).name);
    }
}
