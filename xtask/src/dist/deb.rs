//! The Debian package: binary, service, configuration, manuals, completions. Its texts are in `deploy/debian`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::command::CommandLine;
use crate::dist::{Dist, cannot, text};
use crate::steps::{Failure, Outcome};

/// The line of Cargo.toml that says who answers for the package, unless `DIST_MAINTAINER` does.
const MAINTAINER: &str = "maintainer = \"";

/// The package's file.
pub(super) fn file(dist: &Dist) -> PathBuf {
    dist.out.join(format!("tidegate_{}_{}.deb", dist.version, architecture(dist)))
}

/// The machine as Debian calls it.
fn architecture(dist: &Dist) -> &'static str {
    match dist.machine {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

pub(super) fn build(dist: &Dist) -> Result<Outcome, Failure> {
    let stage = dist.out.join("deb");
    let ours = dist.root.join("deploy/debian");
    for (from, to, mode) in [
        (dist.binary(), "usr/bin/tidegate", 0o755),
        (dist.root.join("deploy/systemd/tidegate.service"), "usr/lib/systemd/system/tidegate.service", 0o644),
        (ours.join("tidegate.yaml"), "etc/tidegate/tidegate.yaml", 0o644),
        (dist.root.join("LICENSE"), "usr/share/doc/tidegate/copyright", 0o644),
        (dist.sbom(), "usr/share/doc/tidegate/tidegate.cdx.json", 0o644),
        (dist.parts().join("bash"), "usr/share/bash-completion/completions/tidegate", 0o644),
        (dist.parts().join("zsh"), "usr/share/zsh/vendor-completions/_tidegate", 0o644),
        (dist.parts().join("fish"), "usr/share/fish/vendor_completions.d/tidegate.fish", 0o644),
        (ours.join("postinst"), "DEBIAN/postinst", 0o755),
        (ours.join("prerm"), "DEBIAN/prerm", 0o755),
        (ours.join("postrm"), "DEBIAN/postrm", 0o755),
    ] {
        let to = stage.join(to);
        dist.copy(&from, &to)?;
        fs::set_permissions(&to, fs::Permissions::from_mode(mode)).map_err(|error| cannot(&to, &error))?;
    }
    dist.copy_manuals(&stage.join("usr/share/man/man1"))?;
    dist.write(&stage.join("DEBIAN/conffiles"), "/etc/tidegate/tidegate.yaml\n")?;
    let sums = CommandLine::new(["sh", "-c", "find usr -type f -print0 | sort -z | xargs -0 md5sum"]);
    let sums = sums.output(&stage).ok_or_else(|| Failure::of_command(&sums, "it failed"))?;
    dist.write(&stage.join("DEBIAN/md5sums"), &(sums + "\n"))?;
    dist.write(&stage.join("DEBIAN/control"), &control(dist, &ours, &stage)?)?;
    dist.run(&CommandLine::new([
        "dpkg-deb",
        "--root-owner-group",
        "-Zgzip",
        "--build",
        &*text(&stage),
        &*text(&file(dist)),
    ]))?;
    Ok(Outcome::Done)
}

fn control(dist: &Dist, ours: &Path, stage: &Path) -> Result<String, Failure> {
    let size = dist.output(&CommandLine::new(["du", "-sk", &*text(stage)]))?;
    let manifest = dist.read(&dist.root.join("Cargo.toml"))?;
    let line = manifest.lines().find_map(|line| line.strip_prefix(MAINTAINER)?.strip_suffix('"'));
    let owner = line.ok_or_else(|| Failure {
        what: "Cargo.toml names no maintainer".to_owned(),
        hint: "add it under [workspace.metadata.owner]".to_owned(),
    })?;
    let maintainer = std::env::var("DIST_MAINTAINER").unwrap_or_else(|_| owner.to_owned());
    let symbols = dist.output(&CommandLine::new(["objdump", "-T", &*text(&dist.binary())]))?;
    let template = dist.read(&ours.join("control"))?;
    Ok(template
        .replace("@VERSION@", &dist.version)
        .replace("@ARCHITECTURE@", architecture(dist))
        .replace("@MAINTAINER@", &maintainer)
        .replace("@KILOBYTES@", size.split_whitespace().next().unwrap_or("0"))
        .replace("@GLIBC@", &newest_glibc(&symbols)))
}

/// The oldest C library that has all symbols: what is built on a newer system does not install on an older one.
fn newest_glibc(symbols: &str) -> String {
    let versions = symbols.split("GLIBC_").skip(1);
    let numbers = versions.filter_map(|rest| {
        let version = rest.split(|c: char| !c.is_ascii_digit() && c != '.').next()?;
        version.split('.').map(|number| number.parse::<u32>().ok()).collect::<Option<Vec<u32>>>()
    });
    let newest = numbers.max().unwrap_or_default();
    newest.iter().map(u32::to_string).collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_symbol_decides_by_number_not_by_text() {
        let symbols = "DF *UND* (GLIBC_2.9) a\nDF *UND* (GLIBC_2.34) b\nDF *UND* (GLIBC_2.2.5) c\n";
        assert_eq!(newest_glibc(symbols), "2.34");
    }
}
