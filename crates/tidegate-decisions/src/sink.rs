//! Writes lines to a file or stdout on a separate thread, so that no request waits for a disk.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;
use std::{iter, thread};

use crate::config::FileConfig;
use crate::event::Entry;

/// The most lines in the queue; more are dropped and counted.
const MOST_WAITING: usize = 8_192;
/// Bytes per write. Longer than any line, so that a full disk takes whole lines or none.
const BUFFER: usize = 64 << 10;
/// The wait between attempts while the queue is full.
const FOR_ROOM: Duration = Duration::from_millis(5);

/// The queue of lines to write.
pub(crate) struct Sink {
    lines: SyncSender<Wanted>,
    dropped: Arc<AtomicU64>,
}

/// A message to the writer thread.
enum Wanted {
    Line(Entry),
    /// Reply once everything before it is written.
    Flush(SyncSender<()>),
}

impl Sink {
    /// Opens the file at once, so that a path that is not writable is an error at startup.
    pub(crate) fn open(file: Option<FileConfig>, stdout: bool) -> io::Result<Option<Sink>> {
        if file.is_none() && !stdout {
            return Ok(None);
        }
        let file = file.map(RotatingFile::open_regular).transpose()?;
        let (lines, waiting) = sync_channel(MOST_WAITING);
        let dropped = Arc::new(AtomicU64::new(0));
        let lost = dropped.clone();
        let writer = thread::Builder::new().name("decision-log".to_owned());
        writer.spawn(move || run(&waiting, file, stdout, &lost))?;
        Ok(Some(Sink { lines, dropped }))
    }

    pub(crate) fn write(&self, entry: &Entry) {
        if self.lines.try_send(Wanted::Line(entry.clone())).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until the lines so far are written, for at most `within`.
    pub(crate) fn flush(&self, within: Duration) -> bool {
        let (mut left, (done, is_done)) = (within, sync_channel(1));
        while !left.is_zero() {
            match self.lines.try_send(Wanted::Flush(done.clone())) {
                Ok(()) => return is_done.recv_timeout(left).is_ok(),
                Err(TrySendError::Full(_)) => thread::park_timeout(FOR_ROOM),
                Err(TrySendError::Disconnected(_)) => return false,
            }
            left = left.saturating_sub(FOR_ROOM);
        }
        false
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// Writes all queued lines, then flushes: few lines reach the file at once, many are batched.
fn run(waiting: &Receiver<Wanted>, mut file: Option<RotatingFile>, stdout: bool, lost: &AtomicU64) {
    let (mut failing, mut line) = (false, Vec::new());
    while let Ok(first) = waiting.recv() {
        let (mut written, mut asked) = (Ok(()), Vec::new());
        for wanted in iter::once(first).chain(waiting.try_iter().take(MOST_WAITING)) {
            let entry = match wanted {
                Wanted::Line(entry) => entry,
                Wanted::Flush(done) => {
                    asked.push(done);
                    continue;
                }
            };
            line.clear();
            entry.write_to(&mut line);
            let to_stdout = if stdout { io::stdout().lock().write_all(&line) } else { Ok(()) };
            let to_file = file.as_mut().map_or(Ok(()), |file| file.write(&line, lost));
            let one = to_stdout.and(to_file);
            lost.fetch_add(u64::from(one.is_err()), Ordering::Relaxed);
            written = written.and(one);
        }
        let flushed = file.as_mut().map_or(Ok(()), |file| file.flush(lost));
        let written = written.and(flushed);
        // Logged once per change of state, not per decision.
        match (&written, failing) {
            (Err(error), false) => {
                tracing::warn!(%error, "the decision log cannot be written: lines are lost")
            }
            (Ok(()), true) => tracing::info!("the decision log is written again"),
            _ => {}
        }
        failing = written.is_err();
        for done in asked {
            // The caller may have stopped waiting.
            let _ = done.try_send(());
        }
    }
}

/// A file that is rotated when it has grown.
struct RotatingFile {
    config: FileConfig,
    file: File,
    /// Whole lines not yet written.
    buffer: Vec<u8>,
    lines: u64,
    bytes: u64,
}

impl RotatingFile {
    /// Accepts only regular files: opening a pipe would wait for its reader, and a device cannot be renamed.
    fn open_regular(config: FileConfig) -> io::Result<Self> {
        match fs::metadata(&config.path) {
            Ok(known) if known.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
            Ok(known) if !known.is_file() => {
                Err(io::Error::other("it is a pipe or a device, not a regular file"))
            }
            _ => RotatingFile::open(config),
        }
    }

    fn open(config: FileConfig) -> io::Result<Self> {
        let mut file = append_to(&config.path)?;
        let mut bytes = file.metadata()?.len();
        // A killed process may have left half a line; end it, so that the next line does not continue it.
        let mut last = *b"\n";
        if bytes > 0 && file.read_exact_at(&mut last, bytes - 1).is_ok() && last != *b"\n" {
            file.write_all(b"\n")?;
            bytes += 1;
        }
        Ok(RotatingFile { config, file, buffer: Vec::with_capacity(BUFFER), lines: 0, bytes })
    }

    fn write(&mut self, line: &[u8], lost: &AtomicU64) -> io::Result<()> {
        let length = line.len() as u64;
        if self.bytes > 0 && self.bytes + length > self.config.most_bytes {
            self.flush(lost)?;
            self.rotate()?;
        }
        if self.buffer.len() + line.len() > BUFFER {
            self.flush(lost)?;
        }
        self.bytes += length;
        self.lines += 1;
        self.buffer.extend_from_slice(line);
        Ok(())
    }

    /// Writes the buffer; lines that cannot be written are lost, and counted. A partial write is truncated: lines stay
    /// whole.
    fn flush(&mut self, lost: &AtomicU64) -> io::Result<()> {
        let lines = std::mem::take(&mut self.lines);
        let written = self.write_buffer();
        if written.is_err() {
            lost.fetch_add(lines, Ordering::Relaxed);
        }
        self.buffer.clear();
        written
    }

    fn write_buffer(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let open = self.file.metadata()?;
        let before = if self.is_in_place(&open) {
            open.len()
        } else {
            self.file = append_to(&self.config.path)?;
            let before = self.file.metadata()?.len();
            self.bytes = before + self.buffer.len() as u64;
            before
        };
        self.file.write_all(&self.buffer).inspect_err(|_| {
            self.bytes = before;
            // If even that fails, readers find one torn line.
            let _ = self.file.set_len(before);
        })
    }

    /// Whether the path still names the open file. If the file or its directory was moved or deleted, nobody reads what is
    /// written to it.
    fn is_in_place(&self, open: &fs::Metadata) -> bool {
        fs::metadata(&self.config.path)
            .is_ok_and(|named| (named.dev(), named.ino()) == (open.dev(), open.ino()))
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
        // If another process has already moved the file, it only remains to create a new one.
        aside.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })?;
        self.file = append_to(path)?;
        self.bytes = 0;
        Ok(())
    }
}

/// Opens or creates a file that not every user may read: it names callers.
fn append_to(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).create(true).append(true).mode(0o640).open(path)
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
            file.write(line.as_bytes(), &lost).unwrap();
        }
        file.flush(&lost).unwrap();
        let text = |path: &Path| fs::read_to_string(path).unwrap();
        assert_eq!(
            [text(&numbered(&path, 2)), text(&numbered(&path, 1)), text(&path)],
            ["three\n", "four\nfive\n", "six\n"]
        );
        assert!(!numbered(&path, 3).exists());
        for file in [&path, &numbered(&path, 1)] {
            assert_eq!(fs::metadata(file).unwrap().mode() & 0o007, 0, "it is not for everybody");
        }
        // A restart continues the file.
        let mut again = RotatingFile::open(config).unwrap();
        again.write(b"7\n", &lost).unwrap();
        again.flush(&lost).unwrap();
        assert_eq!(text(&path), "six\n7\n");
    }

    #[test]
    fn a_line_that_a_killed_process_left_half_written_spoils_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("decisions.log");
        let lost = AtomicU64::new(0);
        for (left, expected) in [("one\nhal", "one\nhal\nnext\n"), ("one\n", "one\nnext\n"), ("", "next\n")] {
            fs::write(&path, left).unwrap();
            let config = FileConfig { path: path.clone(), most_bytes: 1 << 20, keep: 1 };
            let mut file = RotatingFile::open_regular(config).unwrap();
            file.write(b"next\n", &lost).unwrap();
            file.flush(&lost).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), expected);
            assert_eq!(file.bytes, expected.len() as u64);
        }
    }

    #[test]
    fn what_cannot_be_put_aside_is_refused_before_anybody_waits_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        for path in [pipe, "/dev/null".into(), dir.path().to_owned()] {
            let config = FileConfig { path: path.clone(), most_bytes: 1 << 20, keep: 1 };
            assert!(Sink::open(Some(config), false).is_err(), "{}", path.display());
        }
    }

    #[test]
    fn a_disk_that_is_full_loses_whole_lines_and_counts_them() {
        let config = FileConfig { path: "/dev/full".into(), most_bytes: 1 << 20, keep: 1 };
        let (mut file, lost) = (RotatingFile::open(config).unwrap(), AtomicU64::new(0));
        (0..10).for_each(|_| file.write(b"a line\n", &lost).unwrap());
        assert!(file.flush(&lost).is_err());
        assert_eq!(lost.into_inner(), 10);
    }

    #[test]
    fn a_file_that_somebody_else_moved_is_begun_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("decisions.log");
        let config = FileConfig { path: path.clone(), most_bytes: 10, keep: 1 };
        let (mut file, lost) = (RotatingFile::open(config).unwrap(), AtomicU64::new(0));
        file.write(b"123456\n", &lost).unwrap();
        file.flush(&lost).unwrap();
        fs::rename(&path, dir.path().join("elsewhere")).unwrap();
        file.write(b"7890123\n", &lost).unwrap();
        file.flush(&lost).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "7890123\n");
    }

    #[test]
    fn a_disk_that_is_full_counts_every_line_also_where_there_are_more_than_are_written_at_once() {
        let config = FileConfig { path: "/dev/full".into(), most_bytes: 1 << 20, keep: 1 };
        let (mut file, lost) = (RotatingFile::open(config).unwrap(), AtomicU64::new(0));
        let line = [b'x'; 1_000];
        let refused = (0..1_000).filter(|_| file.write(&line, &lost).is_err()).count() as u64;
        assert!(file.flush(&lost).is_err());
        // A line that finds the queue and the disk full is counted by its sender.
        assert_eq!(lost.into_inner() + refused, 1_000);
    }

    #[test]
    fn a_file_that_is_deleted_with_its_folder_is_begun_anew_once_the_folder_is_back() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, lost) = (dir.path().join("logs"), AtomicU64::new(0));
        fs::create_dir(&folder).unwrap();
        let path = folder.join("decisions.log");
        let config = FileConfig { path: path.clone(), most_bytes: 1 << 20, keep: 1 };
        let mut file = RotatingFile::open(config).unwrap();
        let mut write = |line: &str| {
            file.write(line.as_bytes(), &lost).unwrap();
            file.flush(&lost).is_ok()
        };
        assert!(write("one\n"));
        fs::remove_dir_all(&folder).unwrap();
        assert!(!write("two\n"), "there is no folder for it");
        fs::create_dir(&folder).unwrap();
        assert!(write("three\n"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "three\n");
        fs::remove_file(&path).unwrap();
        assert!(write("four\n"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "four\n");
        assert_eq!(lost.into_inner(), 1);
    }
}
