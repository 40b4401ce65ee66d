//! The file of the embedded database: one that is there is used or reported, never passed over.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::control_world::{Node, rules_of};
use crate::{ran, tidegate};

const PAGE: usize = 4096;

/// A data directory that a node left behind, with rules of its own.
struct Left {
    dir: TempDir,
    whole: Vec<u8>,
}

impl Left {
    fn by_a_node() -> Left {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let mut node = Node::start_with("", &[("TIDEGATE_DATA", data.to_str().unwrap())]);
        assert_eq!(node.publish(&rules_of(5)).status, 200);
        node.server.terminate();
        let whole = fs::read(dir.path().join("data/tidegate.db")).unwrap();
        assert!(whole.len() > 8 * PAGE, "{}", whole.len());
        Left { dir, whole }
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("data/tidegate.db")
    }

    /// `serve` on it. Its HTTP port cannot be taken, so that it ends in any case.
    fn serve(&self) -> Command {
        let data = self.dir.path().join("data");
        let listen = ["--grpc", "off", "--resp", "off", "--admin", "127.0.0.1:0", "--http", "192.0.2.1:1"];
        let mut command = tidegate(&["serve", "--data", data.to_str().unwrap()]);
        command.args(listen).env_remove("TIDEGATE_DATA").current_dir(&self.dir);
        command
    }

    /// It stops with exit code 1, names the file and what is wrong, and leaves the file as it is.
    #[track_caller]
    fn stops(&self, mut serve: Command, says: &[&str]) {
        let before = fs::read(self.file()).ok();
        let told = ran(&serve.output().unwrap());
        let file = self.file().display().to_string();
        for expected in [&["exit 1", "cannot use the database", &file, "hint: "], says].concat() {
            assert!(told.contains(expected), "{expected}: {told}");
        }
        assert_eq!(fs::read(self.file()).ok(), before);
    }
}

#[test]
fn damaged_database_stops_the_start() {
    let left = Left::by_a_node();
    let whole = &left.whole;
    let zeroed = |from: usize, to: usize| [&whole[..from], &vec![0; to - from], &whole[to..]].concat();
    let damages: [(&str, Vec<u8>); 7] = [
        ("the last page is cut", whole[..whole.len() - PAGE].to_vec()),
        ("half of it is cut", whole[..whole.len() / 2].to_vec()),
        ("the schema page is zeroed", zeroed(0, PAGE)),
        ("the schema is zeroed, its head is not", zeroed(100, PAGE)),
        ("a page is zeroed", zeroed(PAGE, 2 * PAGE)),
        ("cut in its head", whole[..10].to_vec()),
        ("empty", Vec::new()),
    ];
    for (what, bytes) in damages {
        println!("{what}");
        fs::write(left.file(), bytes).unwrap();
        left.stops(left.serve(), &["is damaged", "move it away"]);
    }
    fs::write(left.file(), whole).unwrap();
    let told = ran(&left.serve().output().unwrap());
    assert!(told.contains("192.0.2.1:1") && !told.contains("database"), "the whole one gets further: {told}");
}

#[test]
fn missing_database_whose_log_is_there_stops_the_start() {
    let left = Left::by_a_node();
    fs::remove_file(left.file()).unwrap();
    fs::write(left.dir.path().join("data/tidegate.db-wal"), [1; 100]).unwrap();
    left.stops(left.serve(), &["is damaged", "it is missing"]);
}

#[test]
fn link_without_its_target_stops_the_start() {
    let left = Left::by_a_node();
    fs::remove_file(left.file()).unwrap();
    std::os::unix::fs::symlink("/nowhere/tidegate.db", left.file()).unwrap();
    left.stops(left.serve(), &["cannot open", "its target is missing"]);
}

#[test]
fn locked_database_stops_the_start() {
    let left = Left::by_a_node();
    let _lock = Lock::of(&left.file());
    left.stops(left.serve(), &["cannot open", "database is locked", "end the program that holds it"]);
}

/// Another program that holds the file: SQLite's own locks, which are those of `fcntl`, belong to a process.
struct Lock(std::process::Child);

impl Lock {
    fn of(file: &Path) -> Lock {
        let script = "import sqlite3, sys\n\
            db = sqlite3.connect(sys.argv[1], isolation_level=None)\n\
            db.execute('PRAGMA locking_mode = EXCLUSIVE')\n\
            db.execute('BEGIN EXCLUSIVE')\n\
            print('locked', flush=True)\n\
            sys.stdin.read()\n";
        let mut child = Command::new("python3")
            .args(["-c", script, file.to_str().unwrap()])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let stdout = child.stdout.as_mut().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
        assert_eq!(line, "locked\n");
        Lock(child)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[test]
fn database_without_rights_stops_the_start() {
    let left = Left::by_a_node();
    // Root may read anything, so it starts the server as nobody.
    let is_root = fs::metadata("/proc/self").unwrap().uid() == 0;
    let serve = || {
        let mut serve = left.serve();
        if is_root {
            serve.uid(65_534);
        }
        serve
    };
    let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let data = left.dir.path().join("data");
    let (file_mode, open) = if is_root { (0o600, 0o755) } else { (0, 0o700) };
    set(left.dir.path(), open);
    set(&data, open);
    set(&left.file(), file_mode);
    let told = ran(&serve().output().unwrap());
    assert!(told.contains("exit 1") && told.contains("cannot open"), "no rights to the file: {told}");
    set(&left.file(), 0o600);
    set(&data, if is_root { 0o700 } else { 0 });
    let told = ran(&serve().output().unwrap());
    set(&data, open);
    assert!(told.contains("exit 1") && told.contains("cannot use the database"), "to the directory: {told}");
    assert!(!told.contains("192.0.2.1:1"), "{told}");
}

#[test]
fn database_files_are_their_owners_alone() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    fs::create_dir(&data).unwrap();
    fs::set_permissions(&data, fs::Permissions::from_mode(0o755)).unwrap();
    let mut node = Node::start_with("", &[("TIDEGATE_DATA", data.to_str().unwrap())]);
    assert_eq!(node.publish(&rules_of(5)).status, 200);
    let modes = || {
        let mut files: Vec<(String, u32)> = fs::read_dir(&data)
            .unwrap()
            .map(|file| file.unwrap())
            .map(|file| (file.file_name().into_string().unwrap(), file.metadata().unwrap().mode() & 0o777))
            .collect();
        files.sort();
        files
    };
    let private = ["tidegate.db", "tidegate.db-shm", "tidegate.db-wal"].map(|name| (name.to_owned(), 0o600));
    assert_eq!(modes(), private);
    // As an earlier release made them.
    for (name, _) in modes() {
        fs::set_permissions(data.join(name), fs::Permissions::from_mode(0o644)).unwrap();
    }
    node.come_back();
    assert_eq!(modes(), private);
}
