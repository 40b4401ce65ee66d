//! Lines to a file or to stdout, by a thread of their own: no request waits for a disk.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;
use std::{iter, thread};

use crate::config::FileConfig;
use crate::record::Record;

/// Lines that wait to be written; more are dropped, and counted.
const MOST_WAITING: usize = 8_192;
/// How much is written at once. Longer than any line, so that a disk that is full takes whole lines or none.
const BUFFER: usize = 64 << 10;
/// How long to wait for room before it is tried again.
const FOR_ROOM: Duration = Duration::from_millis(5);

/// Where lines go to be written.
pub(crate) struct Sink {
    lines: SyncSender<Wanted>,
    dropped: Arc<AtomicU64>,
}

/// What the writer is to do.
enum Wanted {
    Line(Arc<Record>),
    /// Everything before it is written: say so.
    Flush(SyncSender<()>),
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
        if self.lines.try_send(Wanted::Line(record.clone())).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until what was given so far is written, for at most so long.
    pub(crate) fn flush(&self, within: Duration) -> bool {
        let (done, is_done) = sync_channel(1);
        for _ in 0..within.as_millis() / FOR_ROOM.as_millis() {
            match self.lines.try_send(Wanted::Flush(done.clone())) {
                Ok(()) => return is_done.recv_timeout(within).is_ok(),
                Err(TrySendError::Full(_)) => thread::park_timeout(FOR_ROOM),
                Err(TrySendError::Disconnected(_)) => return false,
            }
        }
        false
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// Writes whatever waits, then flushes: a line reaches its file at once when there are few, and with others when there are many.
fn run(waiting: &Receiver<Wanted>, mut file: Option<RotatingFile>, stdout: bool, lost: &AtomicU64) {
    let mut failing = false;
    while let Ok(first) = waiting.recv() {
        let (mut written, mut asked) = (Ok(()), Vec::new());
        for wanted in iter::once(first).chain(waiting.try_iter().take(MOST_WAITING)) {
            let record = match wanted {
                Wanted::Line(record) => record,
                Wanted::Flush(done) => {
                    asked.push(done);
                    continue;
                }
            };
            let mut line = record.line();
            line.push('\n');
            let to_stdout = if stdout { io::stdout().lock().write_all(line.as_bytes()) } else { Ok(()) };
            let to_file = file.as_mut().map_or(Ok(()), |file| file.write(line.as_bytes()));
            let one = to_stdout.and(to_file);
            lost.fetch_add(u64::from(one.is_err()), Ordering::Relaxed);
            written = written.and(one);
        }
        let flushed = file.as_mut().map_or(Ok(()), |file| file.flush(lost));
        let written = written.and(flushed);
        // One line per change, not one per decision.
        match (&written, failing) {
            (Err(error), false) => {
                tracing::warn!(%error, "the decision log cannot be written: lines are lost")
            }
            (Ok(()), true) => tracing::info!("the decision log is written again"),
            _ => {}
        }
        failing = written.is_err();
        for done in asked {
            // Who asked may wait no more.
            let _ = done.try_send(());
        }
    }
}

/// A file that is put aside when it has grown.
struct RotatingFile {
    config: FileConfig,
    file: File,
    /// Whole lines that are not written yet.
    buffer: Vec<u8>,
    lines: u64,
    bytes: u64,
}

impl RotatingFile {
    fn open(config: FileConfig) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(&config.path)?;
        let bytes = file.metadata()?.len();
        Ok(RotatingFile { config, file, buffer: Vec::with_capacity(BUFFER), lines: 0, bytes })
    }

    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        let length = line.len() as u64;
        if self.bytes > 0 && self.bytes + length > self.config.most_bytes {
            self.flush(&AtomicU64::new(0))?;
            self.rotate()?;
        }
        if self.buffer.len() + line.len() > BUFFER {
            self.flush(&AtomicU64::new(0))?;
        }
        self.bytes += length;
        self.lines += 1;
        self.buffer.extend_from_slice(line);
        Ok(())
    }

    /// Writes what waits; what cannot be written is lost, and counted. A part of it that was is cut off again: lines are whole.
    fn flush(&mut self, lost: &AtomicU64) -> io::Result<()> {
        let (before, lines) =
            (self.file.metadata().map(|known| known.len()), std::mem::take(&mut self.lines));
        let written = self.file.write_all(&self.buffer);
        if let (Err(_), Ok(before)) = (&written, before) {
            lost.fetch_add(lines, Ordering::Relaxed);
            self.bytes = before;
            // Where even that fails, a reader finds one line torn.
            let _ = self.file.set_len(before);
        }
        self.buffer.clear();
        written
    }

    fn rotate(&mut self) -> io::Result<()> {
        let path = &self.config.path;
        for number in (1..self.config.keep).rev() {
            let (from, to) = (numbered(path, number), numbered(path, number + 1));
            if from.exists() {
                fs::rename(from, to)?;
            }
        }
        let aside = match self.config.keep {
            0 => fs::remove_file(path),
            _ => fs::rename(path, numbered(path, 1)),
        };
        // Somebody else may have moved it: then a new one is all that is missing.
        aside.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })?;
        self.file = OpenOptions::new().create(true).append(true).open(path)?;
        self.bytes = 0;
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
        let lost = AtomicU64::new(0);
        for line in ["one\n", "two\n", "three\n", "four\n", "five\n", "six\n"] {
            file.write(line.as_bytes()).unwrap();
        }
        file.flush(&lost).unwrap();
        let text = |path: &Path| fs::read_to_string(path).unwrap();
        assert_eq!(
            [text(&numbered(&path, 2)), text(&numbered(&path, 1)), text(&path)],
            ["three\n", "four\nfive\n", "six\n"]
        );
        assert!(!numbered(&path, 3).exists());
        // A restart goes on where the last one ended.
        let mut again = RotatingFile::open(config).unwrap();
        again.write(b"7\n").unwrap();
        again.flush(&lost).unwrap();
        assert_eq!(text(&path), "six\n7\n");
    }

    #[test]
    fn a_disk_that_is_full_loses_whole_lines_and_counts_them() {
        let config = FileConfig { path: "/dev/full".into(), most_bytes: 1 << 20, keep: 1 };
        let (mut file, lost) = (RotatingFile::open(config).unwrap(), AtomicU64::new(0));
        (0..10).for_each(|_| file.write(b"a line\n").unwrap());
        assert!(file.flush(&lost).is_err());
        assert_eq!(lost.into_inner(), 10);
    }

    #[test]
    fn a_file_that_somebody_else_moved_is_begun_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("decisions.log");
        let config = FileConfig { path: path.clone(), most_bytes: 10, keep: 1 };
        let (mut file, lost) = (RotatingFile::open(config).unwrap(), AtomicU64::new(0));
        file.write(b"123456\n").unwrap();
        file.flush(&lost).unwrap();
        fs::rename(&path, dir.path().join("elsewhere")).unwrap();
        file.write(b"7890123\n").unwrap();
        file.flush(&lost).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "7890123\n");
    }
}
