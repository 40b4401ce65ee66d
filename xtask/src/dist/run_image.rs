//! Runs the container image as its configuration says: user, environment, command and folder are read from it.
//!
//! No engine does that here. A mount namespace gives the root file system read-only, as `--read-only` does, with a volume where
//! the documentation wants one. A port of zero takes the place of the usual ones, which may be in use.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::check::{expect, fresh, serves};
use crate::command::CommandLine;
use crate::dist::{Dist, image, text};
use crate::steps::Failure;

/// Mounts the root and perhaps a volume, then becomes the image's user there: `sh -c THIS sh ROOT VOLUME FOLDER UID GID COMMAND`.
const RUN: &str = "\
root=$1 volume=$2 folder=$3 uid=$4 gid=$5; shift 5
mount --bind \"$root\" \"$root\" && mount -o remount,bind,ro \"$root\" \"$root\" || exit 120
[ -z \"$volume\" ] || mount -t tmpfs -o mode=0777 tmpfs \"$root$volume\" || exit 120
exec unshare --root=\"$root\" --wd=\"$folder\" --setgid \"$gid\" --setuid \"$uid\" -- \"$@\"";

/// The folder that the documentation mounts a volume on.
const VOLUME: &str = "/var/lib/tidegate";

/// The image's configuration.
struct Config {
    user: String,
    env: Vec<String>,
    command: Vec<String>,
    folder: String,
}

/// Unpacks the image and runs it.
pub(super) fn try_it(dist: &Dist) -> Result<(), Failure> {
    let layout = fresh(dist, "try-layout")?;
    dist.run(&CommandLine::new(["tar", "-C", &*text(&layout), "-xf", &*text(&image::file(dist))]))?;
    let blob = |sum: &str| layout.join("blobs/sha256").join(sum);
    let index = dist.read(&layout.join("index.json"))?;
    expect(
        index.contains(&format!("\"org.opencontainers.image.ref.name\":\"tidegate:{}\"", dist.version)),
        "the image has its name",
    )?;
    let manifest = dist.read(&blob(digest(&index, "manifests")))?;
    let layer = digest(&manifest, "layers");
    let (config, packed) = (blob(digest(&manifest, "config")), blob(layer));
    expect(dist.sha256(&packed)? == layer, "a blob is named by its sum")?;
    let config = configuration(dist, &dist.read(&config)?)?;
    let root = fresh(dist, "try-image")?;
    dist.run(&CommandLine::new(["tar", "-C", &*text(&root), "-xzf", &*text(&packed)]))?;
    let kilobytes = dist.output(&CommandLine::new(["du", "-sk", &*text(&root)]))?;
    println!("{:>8} KB  the image, unpacked", kilobytes.split_whitespace().next().unwrap_or_default());
    unpacked_by_another(dist, &layout)?;
    run(dist, &config, &root)
}

/// The sum that follows this word.
fn digest<'t>(text: &'t str, after: &str) -> &'t str {
    let rest = text.split_once(&format!("\"{after}\"")).map_or("", |(_, rest)| rest);
    let rest = rest.split_once("sha256:").map_or("", |(_, rest)| rest);
    rest.split(|c: char| !c.is_ascii_hexdigit()).next().unwrap_or_default()
}

/// What the image says of itself, once that is what its users are promised.
fn configuration(dist: &Dist, json: &str) -> Result<Config, Failure> {
    expect(!json.contains('\\'), "the configuration has no escapes, which are not read here")?;
    let config = Config {
        user: value(json, "User").to_owned(),
        env: list(json, "Env"),
        command: [list(json, "Entrypoint"), list(json, "Cmd")].concat(),
        folder: value(json, "WorkingDir").to_owned(),
    };
    expect(config.command == ["/usr/bin/tidegate", "serve"], "the image serves when it is told nothing")?;
    expect(
        config.folder == VOLUME && value(json, "StopSignal") == "SIGTERM",
        "it has its folder and signal",
    )?;
    let (uid, gid) = config.user.split_once(':').unwrap_or_default();
    let is_somebody = |id: &str| id.parse::<u32>().is_ok_and(|id| id > 0);
    expect(is_somebody(uid) && is_somebody(gid), "the image's user is a number, and not root")?;
    for (label, wanted) in [("title", "tidegate"), ("version", &*dist.version), ("licenses", "Apache-2.0")] {
        let found = value(json, &format!("org.opencontainers.image.{label}"));
        expect(found == wanted, &format!("the image's label {label} is {wanted}"))?;
    }
    for (variable, port) in [("HTTP", "8080"), ("GRPC", "8081"), ("RESP", "6380")] {
        let listens = format!("TIDEGATE_LISTEN__{variable}=0.0.0.0:{port}");
        expect(config.env.contains(&listens), &format!("the image sets {listens}"))?;
        expect(json.contains(&format!("\"{port}/tcp\":{{}}")), &format!("the image exposes {port}"))?;
    }
    Ok(config)
}

/// The text of a field.
fn value<'j>(json: &'j str, field: &str) -> &'j str {
    let rest = json.split_once(&format!("\"{field}\":\"")).map_or("", |(_, rest)| rest);
    rest.split('"').next().unwrap_or_default()
}

/// The texts of a field's list.
fn list(json: &str, field: &str) -> Vec<String> {
    let rest = json.split_once(&format!("\"{field}\":[")).map_or("", |(_, rest)| rest);
    let inner = rest.split(']').next().unwrap_or_default();
    inner.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

fn unpacked_by_another(dist: &Dist, layout: &Path) -> Result<(), Failure> {
    if !CommandLine::new(["umoci", "--version"]).succeeds(&dist.root) {
        eprintln!("not tried: the image with another program, because umoci is not installed");
        return Ok(());
    }
    let (image, bundle) =
        (format!("{}:tidegate:{}", text(layout), dist.version), text(&dist.out.join("try-umoci")));
    let _ = fs::remove_dir_all(&bundle);
    dist.run(&CommandLine::new(["umoci", "unpack", "--rootless", "--image", &*image, &*bundle]))
}

/// Serves with a volume; serves without one, as the documentation has it; and may write into the volume alone.
fn run(dist: &Dist, config: &Config, root: &Path) -> Result<(), Failure> {
    if !CommandLine::new(["unshare", "--mount", "true"]).succeeds(&dist.root) {
        eprintln!("not tried: the image's root read-only, because this machine lets us mount nothing");
        let mut chroot = Command::new("chroot");
        chroot.arg(format!("--userspec={}", config.user)).arg(root).args(&config.command);
        return serves(within(config, &mut chroot), root);
    }
    let started = |volume: &str, command: &[String]| {
        let (uid, gid) = config.user.split_once(':').unwrap_or_default();
        let mut started = Command::new("unshare");
        started.args(["--mount", "--propagation=private", "sh", "-c", RUN, "sh"]);
        started.arg(root).args([volume, &config.folder, uid, gid]).args(command);
        within(config, &mut started);
        started
    };
    serves(&mut started(VOLUME, &config.command), root)?;
    serves(started("", &config.command).env("TIDEGATE_ADMIN__DATABASE", "none"), root)?;
    let program = &config.command[..1];
    for (folder, may) in [(PathBuf::from(VOLUME), true), (PathBuf::from("/tmp"), false)] {
        let write = ["man".to_owned(), "--dir".to_owned(), text(&folder.join("man"))];
        let output = started(VOLUME, &[program, &write].concat()).output();
        let output = output.map_err(|error| crate::dist::cannot(root, &error))?;
        let why = String::from_utf8_lossy(&output.stderr);
        let is_so = output.status.success() == may && (may || why.contains("Read-only file system"));
        let what = if may { "can" } else { "cannot" };
        expect(is_so, &format!("the image {what} write into {}: {why}", folder.display()))?;
    }
    Ok(())
}

/// The image's own variables and no others, but free ports.
fn within<'c>(config: &Config, command: &'c mut Command) -> &'c mut Command {
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    for variable in &config.env {
        let (name, value) = variable.split_once('=').unwrap_or((variable, ""));
        let value = match name.starts_with("TIDEGATE_LISTEN__") {
            true => format!("{}:0", value.split(':').next().unwrap_or_default()),
            false => value.to_owned(),
        };
        command.env(name, value);
    }
    command.env("TIDEGATE_LISTEN__ADMIN", "127.0.0.1:0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_is_read_field_by_field() {
        let json = r#"{"config":{"User":"1:2","Env":["A=b","C=d,e"],"Entrypoint":["/x"],"Cmd":[]}}"#;
        assert_eq!((value(json, "User"), list(json, "Env")), ("1:2", vec!["A=b".into(), "C=d,e".into()]));
        assert_eq!((list(json, "Cmd"), list(json, "Nothing")), (vec![], vec![]));
        assert_eq!(
            digest(
                r#"{"config":{"digest":"sha256:0af","size":1},"layers":[{"digest":"sha256:1b"}]}"#,
                "layers"
            ),
            "1b"
        );
    }
}
