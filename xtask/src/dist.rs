//! `cargo xtask dist`: what is given to people who do not compile: an archive, a Debian package, a container image.
//!
//! Everything is made by programs of Debian's base system (tar, dpkg-deb, binutils, sha256sum); no daemon, no network.
//! `--check` then installs, unpacks and runs each of them, which takes root for `chroot` and `dpkg --root`. CI does all that
//! with the binary of its tests, because the `dist` build alone takes longer than the rest.

mod check;
mod deb;
mod image;
mod run_image;
mod sbom;

use std::fs;
use std::path::{Path, PathBuf};

use crate::command::CommandLine;
use crate::steps::{Failure, Outcome, Steps};
use crate::tools;

const CARGO_AUDITABLE: &str = "0.7.7";

/// What is being packed, and where.
struct Dist {
    root: PathBuf,
    /// Where everything ends up.
    out: PathBuf,
    version: String,
    /// The machine as Rust calls it: x86_64, aarch64.
    machine: &'static str,
    /// A binary that was built before, if none is to be built.
    built: Option<PathBuf>,
}

/// Builds every package; with `check`, tries each.
pub(crate) fn run(root: &Path, check: bool) -> Result<(), Failure> {
    let dist = Dist::new(root, "packages", std::env::var_os("DIST_BINARY").map(PathBuf::from))?;
    let mut steps = Steps::default();
    let done = dist.steps(&mut steps, check);
    eprintln!("{}", steps.summary());
    done
}

/// Packs the binary that the tests have built, and tries each package. What a release made is left alone.
pub(crate) fn of_tests(root: &Path) -> Result<Outcome, Failure> {
    if let Some(why) = check::why_not(root) {
        return Ok(Outcome::Skipped(why));
    }
    let dist = Dist::new(root, "packages-of-tests", Some(target(root).join("debug/tidegate")))?;
    dist.steps(&mut Steps::default(), true)?;
    let _ = fs::remove_dir_all(&dist.out);
    Ok(Outcome::Done)
}

/// Where Cargo builds.
fn target(root: &Path) -> PathBuf {
    root.join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

impl Dist {
    fn new(root: &Path, folder: &str, built: Option<PathBuf>) -> Result<Dist, Failure> {
        Ok(Dist {
            root: root.to_owned(),
            out: target(root).join(folder),
            version: version(root)?,
            machine: std::env::consts::ARCH,
            built,
        })
    }

    fn steps(&self, steps: &mut Steps, check: bool) -> Result<(), Failure> {
        steps.run("build", || self.build())?;
        steps.run("archive", || self.archive())?;
        steps.run("deb", || deb::build(self))?;
        steps.run("image", || image::build(self))?;
        steps.run("sums", || self.sums())?;
        if check {
            steps.run("check", || check::all(self))?;
        }
        self.print_sizes()
    }

    /// The folder of files that all packages share: stripped binary, debug information, manuals, completions, SBOM.
    fn parts(&self) -> PathBuf {
        self.out.join("parts")
    }

    fn binary(&self) -> PathBuf {
        self.parts().join("tidegate")
    }

    /// The name that archive and folder share.
    fn name(&self) -> String {
        format!("tidegate-{}-{}-linux", self.version, self.machine)
    }

    fn build(&self) -> Result<Outcome, Failure> {
        let _ = fs::remove_dir_all(&self.out);
        self.make(&self.parts())?;
        let built = match &self.built {
            Some(binary) => binary.clone(),
            None => {
                let build = ["build", "--profile", "dist", "--locked", "-p", "tidegate-cli"];
                self.run(&self.auditable()?.args(build))?;
                target(&self.root).join("dist/tidegate")
            }
        };
        let (built, binary, debug) = (text(&built), text(&self.binary()), text(&self.debug()));
        self.run(&CommandLine::new([
            "objcopy",
            "--only-keep-debug",
            "--compress-debug-sections",
            &built,
            &debug,
        ]))?;
        let link = format!("--add-gnu-debuglink={debug}");
        self.run(&CommandLine::new(["objcopy", "--strip-all", &link, &built, &binary]))?;
        let man = text(&self.parts().join("man"));
        self.run(&CommandLine::new([&*binary, "man", "--dir", &man]))?;
        for shell in ["bash", "zsh", "fish"] {
            let script = self.output(&CommandLine::new([&*binary, "completions", shell]))?;
            self.write(&self.parts().join(shell), &(script + "\n"))?;
        }
        let listed = sbom::write(self)?;
        eprintln!("{listed} crates are in the SBOM");
        Ok(Outcome::Done)
    }

    /// `cargo auditable`, which puts the list of dependencies into the binary, for `cargo audit bin`.
    fn auditable(&self) -> Result<CommandLine, Failure> {
        let cargo = |words: &[&str]| {
            CommandLine::new(["cargo"]).args(words.to_vec()).quiet_env(tools::installed_path(&self.root))
        };
        if !cargo(&["auditable", "--version"]).succeeds(&self.root) {
            let install = ["install", "cargo-auditable", "--debug", "--locked", "--root", ".tools"];
            self.run(&cargo(&install).args(["--version", CARGO_AUDITABLE]))?;
        }
        Ok(cargo(&["auditable"]))
    }

    fn debug(&self) -> PathBuf {
        self.parts().join("tidegate.debug")
    }

    fn sbom(&self) -> PathBuf {
        self.parts().join("tidegate.cdx.json")
    }

    fn archive(&self) -> Result<Outcome, Failure> {
        let folder = self.out.join(self.name());
        for (from, to) in [
            (self.binary(), "tidegate"),
            (self.sbom(), "tidegate.cdx.json"),
            (self.root.join("LICENSE"), "LICENSE"),
            (self.root.join("README.md"), "README.md"),
            (self.root.join("CHANGELOG.md"), "CHANGELOG.md"),
            (self.root.join("deploy/systemd/tidegate.service"), "tidegate.service"),
            (self.parts().join("bash"), "completions/tidegate.bash"),
            (self.parts().join("zsh"), "completions/_tidegate"),
            (self.parts().join("fish"), "completions/tidegate.fish"),
        ] {
            self.copy(&from, &folder.join(to))?;
        }
        self.copy_manuals(&folder.join("man"))?;
        self.tar(&self.out, &self.name(), &format!("{}.tar.gz", self.name()))?;
        self.copy(&self.debug(), &self.out.join(format!("{}.debug", self.name())))?;
        self.copy(&self.sbom(), &self.out.join(format!("{}.cdx.json", self.name())))?;
        fs::remove_dir_all(&folder).map_err(|error| cannot(&folder, &error))?;
        Ok(Outcome::Done)
    }

    fn sums(&self) -> Result<Outcome, Failure> {
        let names = self.products()?;
        let sum = CommandLine::new(["sha256sum"]).args(names);
        let sums = sum.output(&self.out).ok_or_else(|| Failure::of_command(&sum, "it failed"))?;
        self.write(&self.out.join("SHA256SUMS"), &(sums + "\n"))?;
        Ok(Outcome::Done)
    }

    /// The files that people get.
    fn products(&self) -> Result<Vec<String>, Failure> {
        let entries = fs::read_dir(&self.out).map_err(|error| cannot(&self.out, &error))?;
        let files = entries.flatten().filter(|entry| entry.path().is_file());
        let mut names: Vec<String> =
            files.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort_unstable();
        Ok(names)
    }

    fn print_sizes(&self) -> Result<(), Failure> {
        let kilobytes = |path: &Path| fs::metadata(path).map_or(0, |found| found.len().div_ceil(1024));
        println!("{:>8} KB  the binary, stripped", kilobytes(&self.binary()));
        for name in self.products()? {
            println!("{:>8} KB  {name}", kilobytes(&self.out.join(&name)));
        }
        println!("in {}", self.out.display());
        Ok(())
    }

    /// The manual pages, compressed as Debian wants them, without a time inside.
    fn copy_manuals(&self, to: &Path) -> Result<(), Failure> {
        let from = self.parts().join("man");
        let pages = fs::read_dir(&from).map_err(|error| cannot(&from, &error))?;
        for page in pages.flatten() {
            self.copy(&page.path(), &to.join(page.file_name()))?;
        }
        let gzip = CommandLine::new(["sh", "-c", "gzip -n9 -- *.1"]);
        gzip.run(to).map_err(|why| Failure::of_command(&gzip, &why))
    }

    /// Packs `what`, a path below `dir`, so that the same content gives the same bytes.
    fn tar(&self, dir: &Path, what: &str, to: &str) -> Result<(), Failure> {
        let to = text(&self.out.join(to));
        let tar =
            ["tar", "--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mtime=@0", "--format=gnu"];
        let kind = if to.ends_with(".gz") { "--use-compress-program=gzip -n9" } else { "--no-auto-compress" };
        self.run(&CommandLine::new(tar).args([kind, "-C", &*text(dir), "-cf", &to, what]))
    }

    fn make(&self, dir: &Path) -> Result<(), Failure> {
        fs::create_dir_all(dir).map_err(|error| cannot(dir, &error))
    }

    fn write(&self, path: &Path, text: &str) -> Result<(), Failure> {
        self.make(path.parent().expect("files are in folders"))?;
        fs::write(path, text).map_err(|error| cannot(path, &error))
    }

    fn read(&self, path: &Path) -> Result<String, Failure> {
        fs::read_to_string(path).map_err(|error| cannot(path, &error))
    }

    /// Copies a file with its mode.
    fn copy(&self, from: &Path, to: &Path) -> Result<(), Failure> {
        self.make(to.parent().expect("files are in folders"))?;
        fs::copy(from, to).map(drop).map_err(|error| cannot(from, &error))
    }

    fn run(&self, command: &CommandLine) -> Result<(), Failure> {
        command.run(&self.root).map_err(|why| Failure::of_command(command, &why))
    }

    fn output(&self, command: &CommandLine) -> Result<String, Failure> {
        command.output(&self.root).ok_or_else(|| Failure::of_command(command, "it failed"))
    }

    fn sha256(&self, path: &Path) -> Result<String, Failure> {
        let sum = self.output(&CommandLine::new(["sha256sum", &*text(path)]))?;
        Ok(sum.split(' ').next().unwrap_or_default().to_owned())
    }
}

/// The version of the workspace.
fn version(root: &Path) -> Result<String, Failure> {
    let path = root.join("Cargo.toml");
    let manifest = fs::read_to_string(&path).map_err(|error| cannot(&path, &error))?;
    let line = manifest.lines().find_map(|line| line.strip_prefix("version = \""));
    let version = line.and_then(|rest| rest.split('"').next());
    version.map(str::to_owned).ok_or_else(|| Failure {
        what: "the workspace has no version".to_owned(),
        hint: "it stands in Cargo.toml, under [workspace.package]".to_owned(),
    })
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

fn cannot(path: &Path, error: &std::io::Error) -> Failure {
    Failure {
        what: format!("{}: {error}", path.display()),
        hint: "look at that path, then run it again".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_name_packages_as_they_are_called() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lives in the workspace root");
        let version = version(root).expect("the workspace has a version");
        let dist =
            Dist { root: root.to_owned(), out: PathBuf::new(), version, machine: "x86_64", built: None };
        let packages =
            [format!("{}.tar.gz", dist.name()), text(&deb::file(&dist)), text(&image::file(&dist))];
        let image = format!("tidegate:{}", dist.version);
        for (page, all) in
            [("README.md", true), ("docs/guides/installing.md", false), ("deploy/compose.yaml", false)]
        {
            let page_text = dist.read(&root.join(page)).expect("the page is there");
            let word_ends = |c: char| c.is_whitespace() || "`'\"|)".contains(c);
            let words: Vec<&str> = page_text.split(word_ends).collect();
            for word in &words {
                let name = word.rsplit('/').next().unwrap_or_default();
                let is_of_a_version = |start: &str| {
                    name.strip_prefix(start)
                        .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
                };
                if is_of_a_version("tidegate-") || is_of_a_version("tidegate_") {
                    assert!(
                        packages.iter().any(|package| package == name),
                        "{page} names {word}, not one of {packages:?}"
                    );
                }
                if is_of_a_version("tidegate:") {
                    assert_eq!(name, image, "{page}");
                }
            }
            for package in packages.iter().filter(|_| all) {
                let path = format!("target/packages/{package}");
                assert!(
                    words.iter().any(|word| word.trim_start_matches("./") == path),
                    "{page} has no {path}"
                );
            }
        }
    }
}
