//! Finds the real servers that tests start, installs those that are missing, and tells the tests where they are.
//!
//! Nothing here starts a server, and nothing is downloaded when all that is needed now is found.

mod find;
mod plan;
mod table;

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use find::Places;
use plan::Machine;
pub(crate) use table::Tool;
use table::{TOOLS, Wanted};

use crate::steps::Failure;

/// Where each tool that was found is.
#[derive(Default)]
pub(crate) struct ToolEnv {
    found: Vec<(&'static Tool, PathBuf)>,
}

impl ToolEnv {
    /// The variables by which a test finds its servers: `TIDEGATE_TOOL_REDIS_SERVER` and so on.
    pub(crate) fn vars(&self) -> impl Iterator<Item = (String, String)> {
        self.found.iter().map(|(tool, path)| (tool.variable(), path.display().to_string()))
    }

    /// Where a tool is.
    ///
    /// # Panics
    /// If it is not in the table, or was not provided.
    pub(crate) fn path(&self, name: &str) -> String {
        let found = self.found.iter().find(|(tool, _)| tool.name == name);
        found.unwrap_or_else(|| panic!("{name} is provided before it is used")).1.display().to_string()
    }

    fn look(places: &Places) -> Result<Self, Failure> {
        let mut found = Vec::new();
        for tool in TOOLS {
            if let Some(path) = find::find(tool, places)? {
                found.push((tool, path));
            }
        }
        Ok(Self { found })
    }

    fn has(&self, tool: &Tool) -> bool {
        self.found.iter().any(|(found, _)| found.name == tool.name)
    }

    fn missing(&self, asked: &[&str]) -> Vec<&'static Tool> {
        let is_wanted = |tool: &&Tool| tool.wanted == Wanted::Now || asked.contains(&tool.name);
        TOOLS.iter().filter(|tool| is_wanted(tool) && !self.has(tool)).collect()
    }
}

/// `PATH` with the cargo commands that we installed first.
pub(crate) fn installed_path(root: &Path) -> Option<(String, String)> {
    let old = env::var_os("PATH").unwrap_or_default();
    let dirs = [root.join(".tools/bin")].into_iter().chain(env::split_paths(&old));
    Some(("PATH".to_owned(), env::join_paths(dirs).ok()?.into_string().ok()?))
}

/// Finds every tool, after installing those that are needed now and missing.
pub(crate) fn provide(root: &Path) -> Result<ToolEnv, Failure> {
    provide_with(root, &[])
}

/// The same, and those with these names.
pub(crate) fn provide_with(root: &Path, asked: &[&str]) -> Result<ToolEnv, Failure> {
    let places = Places::of_machine(root);
    let found = ToolEnv::look(&places)?;
    if found.missing(asked).is_empty() {
        return Ok(found);
    }
    let _turn = wait_for_turn(root)?;
    let missing = ToolEnv::look(&places)?.missing(asked);
    for command in plan::plan(&missing, &Machine::look(root))? {
        command.run(root).map_err(|why| Failure::of_command(&command, &why))?;
    }
    let found = ToolEnv::look(&places)?;
    match found.missing(asked)[..] {
        [] => Ok(found),
        [tool, ..] => Err(Failure {
            what: format!("{} was installed but cannot be found", tool.name),
            hint: format!("say where it is: {}=/path/to/it", tool.variable()),
        }),
    }
}

/// What is found, what is not, and who would use it.
pub(crate) fn listing(root: &Path, env: &ToolEnv) -> String {
    let row = |tool: &Tool| {
        let place = match env.found.iter().find(|(found, _)| found.name == tool.name) {
            Some((_, path)) => path.strip_prefix(root).unwrap_or(path).display().to_string(),
            None => "missing, and not needed yet".to_owned(),
        };
        format!("{:<16} {place}\n{:<16}   {}\n", tool.name, "", tool.used_by)
    };
    TOOLS.iter().map(row).collect::<String>().trim_end().to_owned()
}

/// Lets one process install at a time; the lock ends with the returned file.
fn wait_for_turn(root: &Path) -> Result<File, Failure> {
    let dir = root.join(".tools");
    let path = dir.join("lock");
    let lock = fs::create_dir_all(&dir).and_then(|()| File::create(&path)).and_then(|file| {
        file.lock()?;
        Ok(file)
    });
    lock.map_err(|error| Failure {
        what: format!("cannot lock {}: {error}", path.display()),
        hint: "make the checkout writable for you".to_owned(),
    })
}
