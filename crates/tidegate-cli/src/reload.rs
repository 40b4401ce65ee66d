//! Detects changes of rule files.
//!
//! It polls the files twice a second instead of using kernel notifications: a poll follows symbolic links, so Kubernetes'
//! swap of `..data`, an editor's rename, a rewrite in place and a network file system all work alike, and there is no event
//! to lose. It never reads the content of a file, and does not decide what to do about a change.

use std::collections::hash_map::DefaultHasher;
use std::fs::{self, Metadata};
use std::hash::{Hash, Hasher as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often to look while nothing changes.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long files must be unchanged: the author of one file of several may not be finished.
const SETTLE_FOR: Duration = Duration::from_millis(100);
/// Files that never stop changing are loaded after this many looks.
const MOST_SETTLING: u32 = 20;

/// The same bounds as for reading rule files: what is beyond them is not read either.
const MOST_FILES: usize = 10_000;
const DEEPEST: usize = 16;

/// Watches rule files and directories.
#[derive(Debug)]
pub(crate) struct Watch {
    paths: Vec<PathBuf>,
    /// The state that was last loaded.
    known: Fingerprint,
    /// The state at the last look, and how many consecutive looks have found it different from `known`.
    last: Fingerprint,
    settling: u32,
}

/// The result of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    Same,
    /// They differ, and may still be changing.
    Settling,
    /// They differ, and are stable.
    Changed,
}

impl Watch {
    /// Records the current state. Call it *before* reading the files: a change in between is then noticed later, not missed.
    pub(crate) fn new<'p>(paths: impl Iterator<Item = &'p Path>) -> Watch {
        let paths: Vec<PathBuf> = paths.map(Path::to_owned).collect();
        let now = Fingerprint::of(&paths);
        Watch { paths, known: now, last: now, settling: 0 }
    }

    /// Looks once.
    pub(crate) fn look(&mut self) -> Look {
        let now = Fingerprint::of(&self.paths);
        let stands_still = now == self.last;
        self.last = now;
        if now == self.known {
            self.settling = 0;
            return Look::Same;
        }
        self.settling += 1;
        if self.settling > 1 && (stands_still || self.settling > MOST_SETTLING) {
            self.known = now;
            self.settling = 0;
            return Look::Changed;
        }
        Look::Settling
    }

    /// Records the current state, because the files are about to be read for another reason.
    pub(crate) fn forget_changes(&mut self) {
        self.known = Fingerprint::of(&self.paths);
        self.last = self.known;
        self.settling = 0;
    }

    /// The pause after a look with this result.
    pub(crate) fn pause_after(look: Look) -> Duration {
        match look {
            Look::Same | Look::Changed => LOOK_EVERY,
            Look::Settling => SETTLE_FOR,
        }
    }
}

/// A hash of the files' names and metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fingerprint(u64);

impl Fingerprint {
    fn of(paths: &[PathBuf]) -> Fingerprint {
        let mut hasher = DefaultHasher::new();
        let mut budget = MOST_FILES;
        for path in paths {
            note(path, 0, &mut budget, &mut hasher);
        }
        Fingerprint(hasher.finish())
    }
}

/// Adds `path` and, if it is a directory, its contents. What cannot be read counts as absent.
fn note(path: &Path, depth: usize, budget: &mut usize, hasher: &mut DefaultHasher) {
    if *budget == 0 || depth > DEEPEST {
        return;
    }
    *budget -= 1;
    path.hash(hasher);
    let Ok(metadata) = fs::metadata(path) else {
        false.hash(hasher);
        return;
    };
    if !metadata.is_dir() {
        identity(&metadata).hash(hasher);
        return;
    }
    // A directory's own times change with every temporary file of an editor: only its visible entries count.
    let mut entries: Vec<PathBuf> = fs::read_dir(path)
        .map(|entries| entries.filter_map(|entry| Some(entry.ok()?.path())).collect())
        .unwrap_or_default();
    entries.retain(|entry| !is_hidden(entry));
    entries.sort_unstable();
    for entry in &entries {
        note(entry, depth + 1, budget, hasher);
    }
}

/// Differs whenever the content may: another file under the same name, another size, another modification time.
fn identity(metadata: &Metadata) -> impl Hash + use<> {
    let written = (metadata.mtime(), metadata.mtime_nsec());
    let changed = (metadata.ctime(), metadata.ctime_nsec());
    (metadata.dev(), metadata.ino(), metadata.size(), written, changed)
}

fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;

    fn watch(dir: &TempDir) -> Watch {
        Watch::new([dir.path()].into_iter())
    }

    #[track_caller]
    fn expect_one_change(watch: &mut Watch) {
        let looks = [watch.look(), watch.look(), watch.look()];
        assert_eq!(looks, [Look::Settling, Look::Changed, Look::Same]);
    }

    #[test]
    fn nothing_is_reported_while_nothing_changes() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a.yaml"), "one").unwrap();
        let mut watch = watch(&dir);
        assert_eq!([watch.look(), watch.look()], [Look::Same, Look::Same]);
    }

    #[test]
    fn a_rewrite_in_place_is_noticed_once() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.yaml");
        fs::write(&file, "one").unwrap();
        let mut watch = watch(&dir);
        fs::write(&file, "three").unwrap();
        expect_one_change(&mut watch);
    }

    #[test]
    fn a_rewrite_that_keeps_the_size_is_noticed_by_its_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.yaml");
        fs::write(&path, "one").unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        let written = file.metadata().unwrap().modified().unwrap();
        let mut watch = watch(&dir);
        fs::write(&path, "two").unwrap();
        file.set_modified(written + Duration::from_millis(10)).unwrap();
        expect_one_change(&mut watch);
    }

    #[test]
    fn an_editors_rename_over_the_file_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.yaml");
        fs::write(&file, "one").unwrap();
        let mut watch = watch(&dir);
        fs::write(dir.path().join(".a.yaml.swp"), "two").unwrap();
        assert_eq!(watch.look(), Look::Same, "a hidden temporary file is no change");
        fs::rename(dir.path().join(".a.yaml.swp"), &file).unwrap();
        expect_one_change(&mut watch);
    }

    /// Like the kubelet: the visible names are links through `..data`, which is itself a link that is replaced.
    #[test]
    fn the_symlink_swap_of_kubernetes_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for (generation, text) in [("..2026_1", "one"), ("..2026_2", "two")] {
            fs::create_dir(at(generation)).unwrap();
            fs::write(at(generation).join("a.yaml"), text).unwrap();
        }
        symlink("..2026_1", at("..data")).unwrap();
        symlink("..data/a.yaml", at("a.yaml")).unwrap();
        let mut watched_dir = watch(&dir);
        let mut watched_file = Watch::new([at("a.yaml").as_path()].into_iter());
        symlink("..2026_2", at("..data_tmp")).unwrap();
        fs::rename(at("..data_tmp"), at("..data")).unwrap();
        fs::remove_dir_all(at("..2026_1")).unwrap();
        expect_one_change(&mut watched_dir);
        expect_one_change(&mut watched_file);
    }

    #[test]
    fn files_that_come_and_go_are_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let mut watch = watch(&dir);
        let folder = dir.path().join("more");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("b.yaml"), "one").unwrap();
        expect_one_change(&mut watch);
        fs::remove_file(folder.join("b.yaml")).unwrap();
        expect_one_change(&mut watch);
    }

    #[test]
    fn a_file_that_does_not_exist_yet_can_be_watched() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("later.yaml");
        let mut watch = Watch::new([file.as_path()].into_iter());
        assert_eq!(watch.look(), Look::Same);
        fs::write(&file, "one").unwrap();
        expect_one_change(&mut watch);
    }

    #[test]
    fn a_change_is_reported_only_when_the_files_stand_still() {
        let dir = tempfile::tempdir().unwrap();
        let mut watch = watch(&dir);
        for name in ["a.yaml", "b.yaml", "c.yaml"] {
            fs::write(dir.path().join(name), "text").unwrap();
            assert_eq!(watch.look(), Look::Settling, "{name}");
        }
        assert_eq!(watch.look(), Look::Changed);
    }

    #[test]
    fn files_that_never_stand_still_are_taken_as_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let mut watch = watch(&dir);
        let looks = (0..=MOST_SETTLING).map(|number| {
            fs::write(dir.path().join(format!("{number}.yaml")), "text").unwrap();
            watch.look()
        });
        assert_eq!(looks.last(), Some(Look::Changed));
    }

    #[test]
    fn a_change_that_was_undone_in_time_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let mut watch = watch(&dir);
        fs::write(dir.path().join("a.yaml"), "one").unwrap();
        assert_eq!(watch.look(), Look::Settling);
        fs::remove_file(dir.path().join("a.yaml")).unwrap();
        assert_eq!([watch.look(), watch.look()], [Look::Same, Look::Same]);
    }

    #[test]
    fn what_was_read_for_another_reason_is_not_reported_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut watch = watch(&dir);
        fs::write(dir.path().join("a.yaml"), "one").unwrap();
        watch.forget_changes();
        assert_eq!(watch.look(), Look::Same);
    }

    #[test]
    fn a_circle_of_links_ends() {
        let dir = tempfile::tempdir().unwrap();
        symlink(dir.path(), dir.path().join("loop")).unwrap();
        assert_eq!(watch(&dir).look(), Look::Same);
    }
}
