//! Lines to a file or to stdout, by a thread of their own: no request waits for a disk.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::{iter, thread};

use crate::config::FileConfig;
use crate::record::Record;

/// Lines that wait to be written; more are dropped, and counted.
const MOST_WAITING: usize = 8_192;

/// Where lines go to be written.
pub(crate) struct Sink {
    lines: SyncSender<Arc<Record>>,
    dropped: Arc<AtomicU64>,
}

impl Sink {
    /// Opens the file, so that a path that cannot be written to is noticed now.
    pub(crate) fn open(file: Option<FileConfig>, stdout: bool) -> io::Result<Option<Sink>> {
        if file.is_none() && !stdout {
            return Ok(None);
        }
        let file = file.map(RotatingFile::open).transpose()?;
        let (lines, waiting) = sync_channel(MOST_WAITING);
        let dropped = Arc::new(AtomicU64::new(0));
        let lost = dropped.clone();
        let writer = thread::Builder::new().name("decision-log".to_owned());
        writer.spawn(move || run(&waiting, file, stdout, &lost))?;
        Ok(Some(Sink { lines, dropped }))
    }

    pub(crate) fn write(&self, record: &Arc<Record>) {
        if self.lines.try_send(record.clone()).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// Writes whatever waits, then flushes: a line reaches its file at once when there are few, and with others when there are many.
fn run(waiting: &Receiver<Arc<Record>>, mut file: Option<RotatingFile>, stdout: bool, lost: &AtomicU64) {
    let mut failing = false;
    while let Ok(first) = waiting.recv() {
        let mut written = Ok(());
        for record in iter::once(first).chain(waiting.try_iter().take(MOST_WAITING)) {
            let line = record.line();
            let to_stdout = if stdout { writeln!(io::stdout().lock(), "{line}") } else { Ok(()) };
            let to_file = file.as_mut().map_or(Ok(()), |file| file.write(&line));
            let one = to_stdout.and(to_file);
            lost.fetch_add(u64::from(one.is_err()), Ordering::Relaxed);
            written = written.and(one);
        }
        let written = written.and(file.as_mut().map_or(Ok(()), RotatingFile::flush));
        // One line per change, not one per decision.
        match (&written, failing) {
            (Err(error), false) => {
                tracing::warn!(%error, "the decision log cannot be written: lines are lost")
            }
            (Ok(()), true) => tracing::info!("the decision log is written again"),
            _ => {}
        }
        failing = written.is_err();
    }
}

/// A file that is put aside when it has grown.
struct RotatingFile {
    config: FileConfig,
    file: BufWriter<File>,
    bytes: u64,
}

impl RotatingFile {
    fn open(config: FileConfig) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(&config.path)?;
        let bytes = file.metadata()?.len();
        Ok(RotatingFile { config, file: BufWriter::new(file), bytes })
    }

    fn write(&mut self, line: &str) -> io::Result<()> {
        let length = line.len() as u64 + 1;
        if self.bytes > 0 && self.bytes + length > self.config.most_bytes {
            self.rotate()?;
        }
        self.bytes += length;
        writeln!(self.file, "{line}")
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }

    fn rotate(&mut self) -> io::Result<()> {
        self.file.flush()?;
        let path = &self.config.path;
        for number in (1..self.config.keep).rev() {
            let (from, to) = (numbered(path, number), numbered(path, number + 1));
            if from.exists() {
                fs::rename(from, to)?;
            }
        }
        match self.config.keep {
            0 => fs::remove_file(path)?,
            _ => fs::rename(path, numbered(path, 1))?,
        }
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        (self.file, self.bytes) = (BufWriter::new(file), 0);
        Ok(())
    }
}

fn numbered(path: &Path, number: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_has_grown_is_put_aside_and_the_oldest_goes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("decisions.log");
        let config = FileConfig { path: path.clone(), most_bytes: 10, keep: 2 };
        let mut file = RotatingFile::open(config.clone()).unwrap();
        ["one", "two", "three", "four", "five", "six"].iter().for_each(|line| file.write(line).unwrap());
        file.flush().unwrap();
        let text = |path: &Path| fs::read_to_string(path).unwrap();
        assert_eq!(
            [text(&numbered(&path, 2)), text(&numbered(&path, 1)), text(&path)],
            ["three\n", "four\nfive\n", "six\n"]
        );
        assert!(!numbered(&path, 3).exists());
        // A restart goes on where the last one ended.
        RotatingFile::open(config).unwrap().write("7").unwrap();
        assert_eq!(text(&path), "six\n7\n");
    }
}
