//! The container image, written as an OCI layout by hand: one layer with the binary, its C library and certificates.
//!
//! No shell, no package manager, no root: user 65532. Time zones are compiled into the binary. `skopeo copy
//! oci-archive:FILE docker://…` or `podman load -i FILE` takes it from there.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::command::CommandLine;
use crate::dist::{Dist, cannot, text};
use crate::steps::{Failure, Outcome};

/// Nobody in particular; the number that other images without root use too.
pub(super) const USER: &str = "65532:65532";

/// The layout's folder.
pub(super) fn layout(dist: &Dist) -> PathBuf {
    dist.out.join("oci")
}

/// The archive's file.
pub(super) fn file(dist: &Dist) -> PathBuf {
    dist.out.join(format!("{}.oci.tar", dist.name()))
}

pub(super) fn build(dist: &Dist) -> Result<Outcome, Failure> {
    let rootfs = dist.out.join("rootfs");
    dist.copy(&dist.binary(), &rootfs.join("usr/bin/tidegate"))?;
    for library in libraries(dist)? {
        dist.copy(Path::new(&library), &rootfs.join(library.trim_start_matches('/')))?;
    }
    dist.copy(
        Path::new("/etc/ssl/certs/ca-certificates.crt"),
        &rootfs.join("etc/ssl/certs/ca-certificates.crt"),
    )?;
    dist.write(
        &rootfs.join("etc/passwd"),
        "root:x:0:0:root:/:/sbin/nologin\ntidegate:x:65532:65532:tidegate:/var/lib/tidegate:/sbin/nologin\n",
    )?;
    dist.write(&rootfs.join("etc/group"), "root:x:0:\ntidegate:x:65532:\n")?;
    dist.write(&rootfs.join("etc/nsswitch.conf"), "hosts: files dns\n")?;
    dist.copy(&dist.sbom(), &rootfs.join("usr/share/doc/tidegate/tidegate.cdx.json"))?;
    dist.copy(&dist.root.join("LICENSE"), &rootfs.join("usr/share/doc/tidegate/copyright"))?;
    for (dir, mode) in [("tmp", 0o1777), ("etc/tidegate", 0o755), ("var/lib/tidegate", 0o777)] {
        let dir = rootfs.join(dir);
        dist.make(&dir)?;
        fs::set_permissions(&dir, fs::Permissions::from_mode(mode)).map_err(|error| cannot(&dir, &error))?;
    }

    // A layer is known by two sums: unpacked in the configuration, packed in the manifest.
    dist.tar(&rootfs, ".", "layer.tar")?;
    let layer = dist.out.join("layer.tar");
    let unpacked = dist.sha256(&layer)?;
    dist.run(&CommandLine::new(["gzip", "-n9f", &*text(&layer)]))?;
    let layer = blob(dist, &dist.out.join("layer.tar.gz"), "application/vnd.oci.image.layer.v1.tar+gzip")?;
    let config = dist.out.join("config.json");
    dist.write(&config, &configuration(dist, &unpacked))?;
    let config = blob(dist, &config, "application/vnd.oci.image.config.v1+json")?;
    let manifest = dist.out.join("manifest.json");
    dist.write(
        &manifest,
        &format!(
            "{{\"schemaVersion\":2,\"mediaType\":\"application/vnd.oci.image.manifest.v1+json\",\"config\":{config},\
             \"layers\":[{layer}]}}"
        ),
    )?;
    let manifest = blob(dist, &manifest, "application/vnd.oci.image.manifest.v1+json")?;
    // The name by which tools find it.
    let named = manifest.replacen(
        '}',
        &format!(
            ",\"annotations\":{{\"org.opencontainers.image.ref.name\":\"tidegate:{}\"}}}}",
            dist.version
        ),
        1,
    );
    let layout = layout(dist);
    dist.write(&layout.join("index.json"), &format!("{{\"schemaVersion\":2,\"manifests\":[{named}]}}"))?;
    dist.write(&layout.join("oci-layout"), "{\"imageLayoutVersion\":\"1.0.0\"}")?;
    dist.tar(&layout, ".", &text(&file(dist)))?;
    Ok(Outcome::Done)
}

/// What the binary is linked with, its loader included.
fn libraries(dist: &Dist) -> Result<Vec<String>, Failure> {
    let listing = dist.output(&CommandLine::new(["ldd", &*text(&dist.binary())]))?;
    Ok(listing.split_whitespace().filter(|word| word.starts_with('/')).map(str::to_owned).collect())
}

/// Moves a file among the blobs, and gives its descriptor.
fn blob(dist: &Dist, file: &Path, media_type: &str) -> Result<String, Failure> {
    let sum = dist.sha256(file)?;
    let size = fs::metadata(file).map_err(|error| cannot(file, &error))?.len();
    let to = layout(dist).join("blobs/sha256").join(&sum);
    dist.make(to.parent().expect("blobs are in a folder"))?;
    fs::rename(file, &to).map_err(|error| cannot(file, &error))?;
    Ok(format!("{{\"mediaType\":\"{media_type}\",\"digest\":\"sha256:{sum}\",\"size\":{size}}}"))
}

/// How the image runs: it listens on all addresses, because a container has its own. Only the admin listener stays on
/// loopback until it is given tokens, without which the server would not start.
fn configuration(dist: &Dist, layer: &str) -> String {
    let architecture = match dist.machine {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let env = [
        "TIDEGATE_LISTEN__HTTP=0.0.0.0:8080",
        "TIDEGATE_LISTEN__GRPC=0.0.0.0:8081",
        "TIDEGATE_LISTEN__RESP=0.0.0.0:6380",
        "TIDEGATE_DATA=/var/lib/tidegate",
        "TIDEGATE_LOG__FORMAT=json",
        "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt",
    ];
    let env = env.map(|variable| format!("\"{variable}\"")).join(",");
    let label = |name: &str, value: &str| format!("\"org.opencontainers.image.{name}\":\"{value}\"");
    let labels = [
        label("title", "tidegate"),
        label("description", "A distributed rate limiter"),
        label("version", &dist.version),
        label("licenses", "Apache-2.0"),
    ]
    .join(",");
    format!(
        "{{\"architecture\":\"{architecture}\",\"os\":\"linux\",\"config\":{{\"User\":\"{USER}\",\
         \"ExposedPorts\":{{\"8080/tcp\":{{}},\"8081/tcp\":{{}},\"6380/tcp\":{{}}}},\"Env\":[{env}],\
         \"Entrypoint\":[\"/usr/bin/tidegate\"],\"Cmd\":[\"serve\"],\"WorkingDir\":\"/var/lib/tidegate\",\
         \"StopSignal\":\"SIGTERM\",\"Labels\":{{{labels}}}}},\"rootfs\":{{\"type\":\"layers\",\
         \"diff_ids\":[\"sha256:{layer}\"]}}}}"
    )
}
