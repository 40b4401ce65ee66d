//! A wall clock that a test steps, read by a real process that believes it to be the machine's.
//!
//! A few lines of C (`stepped_clock.c`) are loaded into the process and add an offset that stands in a file. They are
//! compiled by the `cc` that Rust itself links with. `libfaketime` would do the same, but cannot be loaded into a Redis that
//! uses jemalloc, as Debian's does.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use tempfile::TempDir;

/// A clock, real until it is stepped. Clones are the same clock.
#[derive(Clone, Debug)]
pub struct SteppedClock {
    dir: Arc<TempDir>,
}

impl SteppedClock {
    /// A clock that shows the machine's time.
    ///
    /// # Panics
    /// Without a C compiler.
    #[must_use]
    #[track_caller]
    pub fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("tidegate-clock-").tempdir().expect("a temporary folder");
        let clock = Self { dir: Arc::new(dir) };
        let source = clock.dir.path().join("clock.c");
        fs::write(&source, include_str!("stepped_clock.c")).expect("a temporary folder is writable");
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(clock.library())
            .arg(&source)
            .output();
        let output = compiled.expect("`cc` runs, as it does when Rust links");
        assert!(output.status.success(), "cc: {}", String::from_utf8_lossy(&output.stderr));
        clock.set_ahead_of_the_machine(0);
        clock
    }

    /// From now on it is this many seconds ahead of the machine's clock, or behind it.
    pub fn set_ahead_of_the_machine(&self, seconds: i64) {
        // In place and never shorter: whoever reads it has the file mapped.
        let file = File::options().create(true).write(true).truncate(false).open(self.file());
        let written = file.and_then(|mut file| file.write_all(&seconds.to_ne_bytes()));
        written.expect("a temporary folder is writable");
    }

    /// What makes a process read this clock.
    #[must_use]
    pub fn env(&self) -> [(&'static str, PathBuf); 2] {
        [("LD_PRELOAD", self.library()), ("STEPPED_CLOCK_FILE", self.file())]
    }

    fn library(&self) -> PathBuf {
        self.dir.path().join("clock.so")
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("offset")
    }
}

impl Default for SteppedClock {
    fn default() -> Self {
        Self::new()
    }
}
