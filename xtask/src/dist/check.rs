//! Tries each package as its user would: unpacks, installs, runs, removes.

use std::fs;
use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::command::CommandLine;
use crate::dist::{Dist, cannot, deb, run_image, text};
use crate::steps::{Failure, Outcome};

/// The programs that this starts, of Debian's base system and of binutils.
const PROGRAMS: [&str; 7] = ["tar", "gzip", "dpkg", "dpkg-deb", "objcopy", "objdump", "unshare"];

/// Why packages cannot be tried here, if so.
pub(super) fn why_not(root: &Path) -> Option<String> {
    if CommandLine::new(["id", "-u"]).output(root).as_deref() != Some("0") {
        return Some("packages are installed and run as root only: sudo cargo xtask dist --check".to_owned());
    }
    let is_missing = |program: &&&str| !CommandLine::new([**program, "--version"]).succeeds(root);
    PROGRAMS
        .iter()
        .find(is_missing)
        .map(|program| format!("packages are not tried: there is no `{program}` here"))
}

pub(super) fn all(dist: &Dist) -> Result<Outcome, Failure> {
    let sums = CommandLine::new(["sha256sum", "--check", "--quiet", "SHA256SUMS"]);
    sums.run(&dist.out).map_err(|why| Failure::of_command(&sums, &why))?;
    archive(dist)?;
    unit(dist)?;
    package(dist)?;
    run_image::try_it(dist)?;
    Ok(Outcome::Done)
}

pub(super) fn expect(is_so: bool, what: &str) -> Result<(), Failure> {
    if is_so {
        return Ok(());
    }
    Err(Failure {
        what: format!("not so: {what}"),
        hint: "the packages are kept in target/packages".to_owned(),
    })
}

fn archive(dist: &Dist) -> Result<(), Failure> {
    let to = fresh(dist, "try-archive")?;
    let archive = text(&dist.out.join(format!("{}.tar.gz", dist.name())));
    dist.run(&CommandLine::new(["tar", "-C", &*text(&to), "-xf", &archive]))?;
    let binary = to.join(dist.name()).join("tidegate");
    let version = dist.output(&CommandLine::new([&*text(&binary), "--version"]))?;
    expect(version == format!("tidegate {}", dist.version), "the archive's binary says its version")?;
    let sections = dist.output(&CommandLine::new(["objdump", "-h", &*text(&binary)]))?;
    expect(
        // A few bytes of `.debug_gdb_scripts` stay: they are loaded with the program, so strip keeps them.
        !sections.contains(".debug_line") && sections.contains(".gnu_debuglink"),
        "the binary is stripped and linked to its debug information",
    )?;
    // A binary that somebody else built may not list them; what it lists must be there still.
    let lists = |sections: &str| sections.contains(".dep-v0");
    let listed = match &dist.built {
        None => true,
        Some(built) => lists(&dist.output(&CommandLine::new(["objdump", "-h", &*text(built)]))?),
    };
    expect(lists(&sections) == listed, "the binary lists its dependencies")?;
    let any = "0.0.0.0:0";
    let args = ["serve", "--http", any, "--grpc", any, "--resp", any, "--admin", "127.0.0.1:0"];
    serves(Command::new(&binary).args(args), &to)
}

/// The service file leaves the server no more than docs/guides/installing.md says.
fn unit(dist: &Dist) -> Result<(), Failure> {
    if !CommandLine::new(["systemd-analyze", "--version"]).succeeds(&dist.root) {
        eprintln!("not tried: the service file, because systemd-analyze is not installed");
        return Ok(());
    }
    println!("{}", exposure(&dist.root, &dist.root.join("deploy/systemd/tidegate.service"))?);
    Ok(())
}

/// What systemd says of a service's exposure, from 0 (none) to 10; an error above 1.2.
fn exposure(root: &Path, unit: &Path) -> Result<String, Failure> {
    let unit = text(unit);
    let score = CommandLine::new(["systemd-analyze", "security", "--offline=true", "--threshold=12", &unit]);
    let printed = score.output(root).ok_or_else(|| Failure::of_command(&score, "it is above 1.2"))?;
    Ok(printed.lines().last().unwrap_or_default().to_owned())
}

/// Installs the package into a root of its own, looks, removes it and purges it.
fn package(dist: &Dist) -> Result<(), Failure> {
    let root = fresh(dist, "try-deb")?;
    for dir in ["etc", "var/lib/dpkg/updates", "var/lib/dpkg/info", "var/log"] {
        dist.make(&root.join(dir))?;
    }
    for (file, content) in [
        ("var/lib/dpkg/status", ""),
        ("var/lib/dpkg/available", ""),
        ("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n"),
        ("etc/group", "root:x:0:\n"),
        ("etc/shadow", ""),
        ("etc/gshadow", ""),
    ] {
        dist.write(&root.join(file), content)?;
    }
    let dpkg = |words: &[&str]| {
        let root = format!("--root={}", text(&root));
        let forced = "--force-depends,script-chrootless,not-root";
        let dpkg = CommandLine::new(["dpkg", &root, forced, "--log=/dev/null"]).args(words.iter().copied());
        dist.run(&dpkg)
    };
    dpkg(&["--install", &text(&deb::file(dist))])?;
    let has = |path: &str| root.join(path).exists();
    for path in [
        "usr/lib/systemd/system/tidegate.service",
        "usr/share/man/man1/tidegate.1.gz",
        "usr/share/bash-completion/completions/tidegate",
        "var/lib/tidegate",
    ] {
        expect(has(path), &format!("the package installs /{path}"))?;
    }
    let unit = dist.read(&root.join("usr/lib/systemd/system/tidegate.service"))?;
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=/")).unwrap_or_default();
    let files: Vec<&str> = start.split_whitespace().filter(|word| word.contains('/')).collect();
    expect(
        files.len() == 2 && files.iter().all(|file| has(file.trim_start_matches('/'))),
        "the service starts the binary and reads the configuration where the package puts them",
    )?;
    let users = dist.read(&root.join("etc/passwd"))?;
    expect(users.contains("\ntidegate:x:"), "the package makes its user")?;
    let mode =
        dist.output(&CommandLine::new(["stat", "-c", "%a %U", &*text(&root.join("var/lib/tidegate"))]))?;
    expect(mode.starts_with("700 ") && !mode.ends_with(" root"), "its state is its user's alone")?;
    let binary = text(&root.join("usr/bin/tidegate"));
    let config = text(&root.join("etc/tidegate/tidegate.yaml"));
    dist.run(&CommandLine::new([&*binary, "validate", "--config", &config]))?;
    dpkg(&["--remove", "tidegate"])?;
    expect(
        !has("usr/bin/tidegate") && has("etc/tidegate/tidegate.yaml"),
        "a removal keeps the configuration",
    )?;
    dpkg(&["--purge", "tidegate"])?;
    expect(!has("etc/tidegate") && !has("var/lib/tidegate"), "a purge leaves nothing")?;
    let users = dist.read(&root.join("etc/passwd"))?;
    expect(!users.contains("tidegate"), "a purge takes the user too")
}

/// Starts a server that listens on free ports, asks it something, and ends it.
pub(super) fn serves(tidegate: &mut Command, dir: &Path) -> Result<(), Failure> {
    tidegate.current_dir(dir).env("TIDEGATE_DRAIN__DELAY", "0s");
    tidegate.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut server = tidegate.spawn().map_err(|error| cannot(dir, &error))?;
    let answered = asked(&mut server);
    let end = CommandLine::new(["kill", "-TERM", &server.id().to_string()]);
    let _ = end.succeeds(dir);
    let ended = server.wait().map_err(|error| cannot(dir, &error))?;
    expect(answered.is_some_and(|answer| answer.contains("\"allowed\":true")), "the server answers a check")?;
    expect(ended.success(), "the server ends as asked")
}

/// What the server answers to a check.
fn asked(server: &mut Child) -> Option<String> {
    let lines = BufReader::new(server.stdout.take()?).lines().map_while(Result::ok);
    let address =
        lines.into_iter().find_map(|line| line.strip_prefix("listening http ").map(str::to_owned))?;
    let mut stream = TcpStream::connect(address).ok()?;
    let body = r#"{"domain":"api","attributes":{"user":"42"}}"#;
    write!(
        stream,
        "POST /v1/check HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
    .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// An empty folder of this name.
pub(super) fn fresh(dist: &Dist, name: &str) -> Result<PathBuf, Failure> {
    let dir = dist.out.join(name);
    let _ = fs::remove_dir_all(&dir);
    dist.make(&dir)?;
    Ok(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_is_exposed_no_more_than_the_guide_says() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lives in the workspace root");
        let guide = fs::read_to_string(root.join("docs/guides/installing.md")).expect("the guide is there");
        assert!(guide.contains("rates the service 1.2"), "the guide says another number than this test");
        if !CommandLine::new(["systemd-analyze", "--version"]).succeeds(root) {
            return;
        }
        let unit = root.join("deploy/systemd/tidegate.service");
        let said = exposure(root, &unit).unwrap_or_else(|failure| panic!("{}", failure.what));
        assert!(said.contains("1.2"), "{said}");
        let dir = root.join(format!("target/exposed-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("target is writable");
        let looser = fs::read_to_string(&unit).expect("it is there").replace("CapabilityBoundingSet=\n", "");
        fs::write(dir.join("looser.service"), looser).expect("target is writable");
        let allowed = exposure(root, &dir.join("looser.service"));
        let _ = fs::remove_dir_all(&dir);
        assert!(allowed.is_err(), "{allowed:?}");
    }
}
