//! Tries each package as its user would: unpacks, installs, runs, removes.

use std::fs;
use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::command::CommandLine;
use crate::dist::{Dist, cannot, deb, image, text};
use crate::steps::{Failure, Outcome};

pub(super) fn all(dist: &Dist) -> Result<Outcome, Failure> {
    let sums = CommandLine::new(["sha256sum", "--check", "--quiet", "SHA256SUMS"]);
    sums.run(&dist.out).map_err(|why| Failure::of_command(&sums, &why))?;
    archive(dist)?;
    unit(dist)?;
    package(dist)?;
    container(dist)?;
    Ok(Outcome::Done)
}

fn expect(is_so: bool, what: &str) -> Result<(), Failure> {
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
    // What DIST_BINARY names was built by somebody else.
    let is_ours = std::env::var_os("DIST_BINARY").is_none();
    expect(!is_ours || sections.contains(".dep-v0"), "the binary lists its dependencies")?;
    serves(&mut Command::new(&binary), &to)
}

/// The service file names the binary where the package puts it.
fn unit(dist: &Dist) -> Result<(), Failure> {
    let unit = text(&dist.root.join("deploy/systemd/tidegate.service"));
    if !CommandLine::new(["systemd-analyze", "--version"]).succeeds(&dist.root) {
        eprintln!("not tried: the service file, because systemd-analyze is not installed");
        return Ok(());
    }
    // Exposure from 0 (none) to 10, as systemd counts it.
    let score = CommandLine::new(["systemd-analyze", "security", "--offline=true", "--threshold=15", &unit]);
    let printed = dist.output(&score)?;
    println!("{}", printed.lines().last().unwrap_or_default());
    Ok(())
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

/// Unpacks the image as an engine would, and runs it without root, in a root of its own.
fn container(dist: &Dist) -> Result<(), Failure> {
    let layout = fresh(dist, "try-layout")?;
    dist.run(&CommandLine::new(["tar", "-C", &*text(&layout), "-xf", &*text(&image::file(dist))]))?;
    let digest = |text: &str, after: &str| {
        let rest = &text[text.find(after).map_or(text.len(), |at| at + after.len())..];
        let rest = rest.split_once("sha256:").map_or("", |(_, rest)| rest);
        rest.chars().take_while(char::is_ascii_hexdigit).collect::<String>()
    };
    let blob = |sum: &str| layout.join("blobs/sha256").join(sum);
    let index = dist.read(&layout.join("index.json"))?;
    let manifest = dist.read(&blob(&digest(&index, "manifests")))?;
    let layer = digest(&manifest, "layers");
    expect(dist.sha256(&blob(&layer))? == layer, "a blob is named by its sum")?;
    let root = fresh(dist, "try-image")?;
    dist.run(&CommandLine::new(["tar", "-C", &*text(&root), "-xzf", &*text(&blob(&layer))]))?;
    let kilobytes = dist.output(&CommandLine::new(["du", "-sk", &*text(&root)]))?;
    println!("{:>8} KB  the image, unpacked", kilobytes.split_whitespace().next().unwrap_or_default());
    if CommandLine::new(["umoci", "--version"]).succeeds(&dist.root) {
        let (image, bundle) =
            (format!("{}:tidegate:{}", text(&layout), dist.version), text(&dist.out.join("try-umoci")));
        let _ = fs::remove_dir_all(&bundle);
        dist.run(&CommandLine::new(["umoci", "unpack", "--rootless", "--image", &*image, &*bundle]))?;
    } else {
        eprintln!("not tried: the image with another program, because umoci is not installed");
    }
    let mut chroot = Command::new("chroot");
    chroot.arg(format!("--userspec={}", image::USER)).arg(&root).arg("/usr/bin/tidegate");
    chroot.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("TIDEGATE_DATA", "/var/lib/tidegate");
    serves(&mut chroot, &root)
}

/// Starts `tidegate serve` on free ports, asks it something, and ends it.
fn serves(tidegate: &mut Command, dir: &Path) -> Result<(), Failure> {
    // On all addresses, as in a container.
    let any = "0.0.0.0:0";
    let args = ["serve", "--http", any, "--grpc", any, "--resp", any, "--admin", "127.0.0.1:0"];
    tidegate.args(args).current_dir(dir).env("TIDEGATE_DRAIN__DELAY", "0s");
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
fn fresh(dist: &Dist, name: &str) -> Result<std::path::PathBuf, Failure> {
    let dir = dist.out.join(name);
    let _ = fs::remove_dir_all(&dir);
    dist.make(&dir)?;
    Ok(dir)
}
