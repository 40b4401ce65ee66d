//! A command line that can be shown, tested and run: what the summary prints is what was executed.

use std::fmt;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

/// A program, its arguments and the variables set for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CommandLine {
    program: String,
    args: Vec<String>,
    /// Where it runs, if not where its runner says.
    folder: Option<String>,
    env: Vec<(String, String)>,
    /// Set for the child but not shown: they make no difference to someone who repeats the command by hand.
    quiet_env: Vec<(String, String)>,
}

impl CommandLine {
    /// `words` are the program and its arguments.
    pub(crate) fn new<S: Into<String>>(words: impl IntoIterator<Item = S>) -> Self {
        let mut words = words.into_iter().map(Into::into);
        let program = words.next().expect("a command line names a program");
        Self { program, args: words.collect(), folder: None, env: Vec::new(), quiet_env: Vec::new() }
    }

    pub(crate) fn args<S: Into<String>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    pub(crate) fn within(mut self, folder: &str) -> Self {
        self.folder = Some(folder.to_owned());
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    pub(crate) fn quiet_env(mut self, vars: impl IntoIterator<Item = (String, String)>) -> Self {
        self.quiet_env.extend(vars);
        self
    }

    /// Runs it in `dir`, its output going to ours.
    pub(crate) fn run(&self, dir: &Path) -> Result<(), String> {
        eprintln!("$ {self}");
        match self.command(dir).status() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(status.to_string()),
            Err(error) => Err(self.cannot_start(&error)),
        }
    }

    /// Runs it in `dir` and gives back what it writes to stdout.
    pub(crate) fn run_captured(&self, dir: &Path) -> (Result<(), String>, String) {
        eprintln!("$ {self}");
        match self.command(dir).stderr(Stdio::inherit()).output() {
            Ok(output) => {
                let printed = String::from_utf8_lossy(&output.stdout).into_owned();
                let ended = if output.status.success() { Ok(()) } else { Err(output.status.to_string()) };
                (ended, printed)
            }
            Err(error) => (Err(self.cannot_start(&error)), String::new()),
        }
    }

    /// Whether it runs and succeeds, showing nothing.
    pub(crate) fn succeeds(&self, dir: &Path) -> bool {
        let silent =
            self.command(dir).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        silent.is_ok_and(|status| status.success())
    }

    /// What it prints on stdout, without the final newline; nothing if it fails.
    pub(crate) fn output(&self, dir: &Path) -> Option<String> {
        let output = self.command(dir).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim_end().to_owned())
    }

    /// What it prints on stdout, whether or not it succeeds, showing nothing.
    pub(crate) fn printed(&self, dir: &Path) -> String {
        let output = self.command(dir).stdin(Stdio::null()).stderr(Stdio::null()).output();
        output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
    }

    fn command(&self, dir: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args).current_dir(self.folder.as_deref().map_or(dir, Path::new));
        command.envs(self.env.iter().chain(&self.quiet_env).map(|(name, value)| (name, value)));
        command
    }

    fn cannot_start(&self, error: &io::Error) -> String {
        format!("cannot start {}: {error}", self.program)
    }
}

impl fmt::Display for CommandLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(folder) = &self.folder {
            write!(f, "cd {} && ", quoted(folder))?;
        }
        for (name, value) in &self.env {
            write!(f, "{name}={} ", quoted(value))?;
        }
        f.write_str(&quoted(&self.program))?;
        self.args.iter().try_for_each(|arg| write!(f, " {}", quoted(arg)))
    }
}

/// `word` as a shell reads it back.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_@%+=:,./-".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_back_what_is_shown() {
        let awkward = ["plain", "two words", "it's", "", "$HOME", "a;b"];
        let shown = CommandLine::new(["printf", "%s\\n"]).args(awkward).to_string();
        let read_back = CommandLine::new(["sh", "-c", &shown]).output(Path::new("/")).expect("sh runs");
        assert_eq!(read_back, awkward.join("\n"));
    }

    #[test]
    fn variables_are_shown_before_the_program() {
        let line = CommandLine::new(["cargo", "doc"]).env("RUSTDOCFLAGS", "-D warnings");
        assert_eq!(line.to_string(), "RUSTDOCFLAGS='-D warnings' cargo doc");
    }

    #[test]
    fn a_failing_command_reports_its_status() {
        let failed = CommandLine::new(["false"]).run(Path::new("/"));
        assert_eq!(failed, Err("exit status: 1".into()));
    }
}
