//! A log file that is one of more than a process may have open.
//!
//! A few stay open while they are read. The others are reopened for each block, at the position where the last one ended,
//! and closed again. If the path names another file meanwhile (a rotated log), reading stops with an error: those would be
//! other lines.

use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The most log files that stay open: fewer than any system's limit for a process.
pub(super) const MOST_OPEN: usize = 16;

/// The number of log files that are open now.
#[derive(Clone, Debug, Default)]
pub(super) struct OpenFiles(Arc<AtomicUsize>);

/// A log file that is read from beginning to end.
#[derive(Debug)]
pub(super) struct RecordedFile {
    path: PathBuf,
    /// The device and inode, which identify the file whatever its name.
    identity: (u64, u64),
    read: u64,
    kept: Option<KeptOpen>,
}

#[derive(Debug)]
struct KeptOpen {
    file: File,
    files: OpenFiles,
}

impl RecordedFile {
    pub(super) fn open(path: &Path, files: &OpenFiles) -> io::Result<Self> {
        let file = File::open(path)?;
        let identity = identity(&file)?;
        let kept = match files.0.fetch_add(1, Ordering::Relaxed) < MOST_OPEN {
            true => Some(KeptOpen { file, files: files.clone() }),
            false => {
                files.0.fetch_sub(1, Ordering::Relaxed);
                None
            }
        };
        Ok(RecordedFile { path: path.to_owned(), identity, read: 0, kept })
    }

    fn read_again(&self, into: &mut [u8]) -> io::Result<usize> {
        let mut file = File::open(&self.path)?;
        if identity(&file)? != self.identity {
            return Err(io::Error::other("another file took its name while it was read"));
        }
        file.seek(SeekFrom::Start(self.read))?;
        file.read(into)
    }
}

impl Read for RecordedFile {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = match &mut self.kept {
            Some(kept) => kept.file.read(into)?,
            None => self.read_again(into)?,
        };
        self.read += read as u64;
        Ok(read)
    }
}

impl Drop for KeptOpen {
    fn drop(&mut self) {
        self.files.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn identity(file: &File) -> io::Result<(u64, u64)> {
    let known = file.metadata()?;
    Ok((known.dev(), known.ino()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// One more file than may stay open, each with its own text.
    fn opened(dir: &Path) -> (Vec<RecordedFile>, OpenFiles) {
        let files = OpenFiles::default();
        let open = |number: usize| {
            let path = dir.join(number.to_string());
            fs::write(&path, format!("text of {number}")).unwrap();
            RecordedFile::open(&path, &files).unwrap()
        };
        ((0..=MOST_OPEN).map(open).collect(), files)
    }

    #[test]
    fn a_file_that_does_not_stay_open_is_read_on_where_it_was_left() {
        let dir = tempfile::tempdir().unwrap();
        let (mut logs, _) = opened(dir.path());
        let mut last = logs.pop().unwrap();
        assert!(last.kept.is_none());
        let mut text = [0; 10];
        text.chunks_mut(3).for_each(|part| last.read_exact(part).unwrap());
        assert_eq!(text, *b"text of 16");
        assert_eq!(last.read(&mut text).unwrap(), 0, "and there it ends");
    }

    #[test]
    fn a_file_that_was_read_to_its_end_makes_room_for_another() {
        let dir = tempfile::tempdir().unwrap();
        let (mut logs, files) = opened(dir.path());
        logs.remove(0);
        assert!(RecordedFile::open(&dir.path().join("0"), &files).unwrap().kept.is_some());
    }

    #[test]
    fn a_file_that_another_took_the_name_of_is_not_read_on() {
        let dir = tempfile::tempdir().unwrap();
        let (mut logs, _) = opened(dir.path());
        let mut last = logs.pop().unwrap();
        last.read_exact(&mut [0; 3]).unwrap();
        fs::rename(&last.path, dir.path().join("rotated")).unwrap();
        fs::write(&last.path, "the lines of another").unwrap();
        let error = last.read(&mut [0; 3]).unwrap_err();
        assert_eq!(error.to_string(), "another file took its name while it was read");
    }
}
