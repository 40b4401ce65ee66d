//! Where the real servers are.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// Finds the program `name`: where `TIDEGATE_TOOL_<NAME>` says, in the private environment, or in the usual places.
///
/// # Panics
/// When it is nowhere; the message says how to get it.
#[must_use]
#[track_caller]
pub fn find_tool(name: &str) -> PathBuf {
    let variable = variable(name);
    if let Some(path) = env::var_os(&variable).filter(|path| !path.is_empty()) {
        return path.into();
    }
    match private(name).or_else(|| installed(name)) {
        Some(path) => path,
        None => panic!(
            "{name} is not installed\nhint: run `cargo xtask tools`, or set {variable}=/path/to/{name}"
        ),
    }
}

/// Finds the folder of the Node package `name`: where `TIDEGATE_TOOL_<NAME>` says, or in the private environment.
///
/// # Panics
/// When it is nowhere; the message says how to get it.
#[must_use]
#[track_caller]
pub fn find_node_package(name: &str) -> PathBuf {
    chosen_or_private(name, &format!("node/node_modules/{name}"))
}

/// Finds a Python interpreter that can import the package `name`: where `TIDEGATE_TOOL_<NAME>` says, or in the private environment.
///
/// # Panics
/// When it is nowhere; the message says how to get it.
#[must_use]
#[track_caller]
pub fn find_python_with(name: &str) -> PathBuf {
    chosen_or_private(name, "venv/bin/python")
}

#[track_caller]
fn chosen_or_private(name: &str, private: &str) -> PathBuf {
    let variable = variable(name);
    if let Some(path) = env::var_os(&variable).filter(|path| !path.is_empty()) {
        return path.into();
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools").join(private);
    assert!(
        path.exists(),
        "the package {name} is not installed\nhint: run `cargo xtask tools`, or set {variable}"
    );
    path
}

fn variable(name: &str) -> String {
    format!("TIDEGATE_TOOL_{}", name.to_uppercase().replace('-', "_"))
}

/// A program that a Python package in `.tools/venv` carries: Envoy as a file of its package, Caddy as a program.
fn private(name: &str) -> Option<PathBuf> {
    let venv = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools/venv");
    let program = venv.join("bin").join(name);
    let sites =
        fs::read_dir(venv.join("lib")).ok()?.filter_map(|lib| Some(lib.ok()?.path().join("site-packages")));
    let mut files = sites.map(|site| site.join(name).join("_bin").join(name));
    files.find(|path| path.is_file()).or_else(|| Some(program).filter(|path| path.is_file()))
}

fn installed(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    // Debian puts nginx where an ordinary user's PATH does not lead.
    let dirs = env::split_paths(&path).chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from));
    // Debian keeps PostgreSQL's servers apart by version.
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let dirs = dirs.chain(versions.filter_map(|version| Some(version.ok()?.path().join("bin"))));
    dirs.map(|dir| dir.join(name)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "run `cargo xtask tools`, or set TIDEGATE_TOOL_NO_SUCH_TOOL=")]
    fn a_missing_tool_says_how_to_get_it() {
        let _ = find_tool("no-such-tool");
    }

    #[test]
    fn an_installed_program_is_found() {
        assert!(find_tool("sh").ends_with("sh"));
    }
}
