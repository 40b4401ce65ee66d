//! Keeps the committed gRPC code equal to what the vendored `.proto` files say.
//!
//! A build needs neither `protoc` nor a build script: the code is committed under `src/generated`, and this test
//! generates it again and compares. `TIDEGATE_REGENERATE=1 cargo test -p tidegate-server generated` rewrites it.

use prost::Message;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The only files that have to be named: the others come in as their imports.
const ROOT_PROTOS: [&str; 2] =
    ["envoy/service/ratelimit/v3/rls.proto", "envoy/service/rate_limit_quota/v3/rlqs.proto"];

#[test]
fn committed_code_is_what_the_protos_generate() {
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/generated");
    let expected = generate();

    if std::env::var_os("TIDEGATE_REGENERATE").is_some() {
        write_all(&committed, &expected);
    }
    let found = read_all(&committed);

    let expected_names: Vec<_> = expected.keys().collect();
    assert_eq!(found.keys().collect::<Vec<_>>(), expected_names, "files in src/generated; {HINT}");
    for (name, content) in &expected {
        assert!(found[name] == *content, "src/generated/{name} is stale; {HINT}");
    }
}

const HINT: &str = "hint: TIDEGATE_REGENERATE=1 cargo test -p tidegate-server generated";

fn generate() -> BTreeMap<String, Vec<u8>> {
    let proto = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
    let mut compiler = protox::Compiler::new([proto]).expect("the proto folder exists");
    compiler.include_source_info(true).include_imports(true);
    compiler.open_files(ROOT_PROTOS).expect("the vendored protos compile");
    let mut descriptors = compiler.file_descriptor_set();

    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("generated");
    let _ = fs::remove_dir_all(&out);
    fs::create_dir_all(&out).expect("cargo's scratch folder is writable");
    tonic_prost_build::configure()
        .build_transport(false)
        .bytes(".")
        .extern_path(".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry", "crate::rls::Entry")
        .extern_path(".envoy.service.rate_limit_quota.v3.BucketId", "crate::rlqs::BucketId")
        .emit_rerun_if_changed(false)
        .include_file("mod.rs")
        .out_dir(&out)
        .compile_fds(descriptors.clone())
        .expect("the descriptors generate");

    // Reflection serves names and numbers; comments would only make the binary larger.
    for file in &mut descriptors.file {
        file.source_code_info = None;
    }
    let mut files = read_all(&out);
    files.insert("descriptors.bin".to_owned(), descriptors.encode_to_vec());
    files
}

fn read_all(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let Ok(entries) = fs::read_dir(folder) else { return BTreeMap::new() };
    entries
        .map(|entry| {
            let path = entry.expect("a readable folder").path();
            let name = path.file_name().expect("a file").to_string_lossy().into_owned();
            (name, fs::read(&path).expect("a readable file"))
        })
        .collect()
}

fn write_all(folder: &Path, files: &BTreeMap<String, Vec<u8>>) {
    let _ = fs::remove_dir_all(folder);
    fs::create_dir_all(folder).expect("the source folder is writable");
    for (name, content) in files {
        fs::write(folder.join(name), content).expect("the source folder is writable");
    }
}
