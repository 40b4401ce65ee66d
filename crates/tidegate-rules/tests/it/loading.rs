//! Files and folders as they lie on a disk.

use std::fs;
use std::path::Path;

use tidegate_rules::load;

fn names(path: &Path) -> Vec<String> {
    let sources = load(path).expect("it can be read");
    let short = |name: &str| name.strip_prefix(&path.display().to_string()).unwrap_or(name).to_owned();
    sources.iter().map(|source| short(&source.name)).collect()
}

#[test]
fn a_folder_means_every_rule_file_below_it_by_name() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let path = folder.path();
    fs::create_dir(path.join("sub")).expect("a folder can be made");
    for name in ["b.yaml", "a.yml", "sub/c.json", "readme.md", ".hidden.yaml"] {
        fs::write(path.join(name), "x: 1").expect("a file can be written");
    }
    assert_eq!(names(path), ["/a.yml", "/b.yaml", "/sub/c.json"]);
}

#[cfg(unix)]
#[test]
fn the_files_of_a_mounted_config_map_are_read_once() {
    use std::os::unix::fs::symlink;

    let folder = tempfile::tempdir().expect("a folder can be made");
    let path = folder.path();
    fs::create_dir(path.join("..2026_11_15")).expect("a folder can be made");
    fs::write(path.join("..2026_11_15/rules.yaml"), "x: 1").expect("a file can be written");
    symlink("..2026_11_15", path.join("..data")).expect("a link can be made");
    symlink("..data/rules.yaml", path.join("rules.yaml")).expect("a link can be made");
    assert_eq!(names(path), ["/rules.yaml"]);
}

#[test]
fn what_cannot_be_read_says_which_and_why() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let empty = load(folder.path()).expect_err("it is empty");
    assert_eq!(empty.source.to_string(), "there is no .yaml, .yml or .json file in it");

    let binary = folder.path().join("binary.yaml");
    fs::write(&binary, [0xff, 0xfe]).expect("a file can be written");
    assert_eq!(load(&binary).expect_err("it is not text").path, binary);
    assert!(load(&folder.path().join("nowhere")).is_err());
}
