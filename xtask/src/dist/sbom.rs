//! The list of what is in the binary, as CycloneDX: each crate with its version, licence and checksum.

use std::collections::BTreeMap;

use crate::command::CommandLine;
use crate::dist::Dist;
use crate::steps::Failure;

/// Writes the SBOM beside the binary, and says how many crates it lists.
pub(super) fn write(dist: &Dist) -> Result<usize, Failure> {
    let tree = dist.output(&CommandLine::new([
        "cargo",
        "tree",
        "--locked",
        "-p",
        "tidegate-cli",
        "-e",
        "normal",
        "--prefix",
        "none",
        "--format",
        "{p}|{l}",
    ]))?;
    let lock = dist.read(&dist.root.join("Cargo.lock"))?;
    let components = components(&tree, &checksums(&lock));
    let document = format!(
        "{{\n  \"bomFormat\": \"CycloneDX\",\n  \"specVersion\": \"1.5\",\n  \"version\": 1,\n  \"metadata\": {{\n    \
         \"component\": {{\"type\": \"application\", \"name\": \"tidegate\", \"version\": \"{version}\", \
         \"bom-ref\": \"tidegate\", \"licenses\": [{{\"expression\": \"Apache-2.0\"}}]}}\n  }},\n  \
         \"components\": [\n    {}\n  ]\n}}\n",
        components.join(",\n    "),
        version = dist.version,
    );
    dist.write(&dist.sbom(), &document)?;
    Ok(components.len())
}

/// The checksum of each crate of the registry, by name and version, as `Cargo.lock` has it.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let field = |block: &str, name: &str| {
        let start = format!("{name} = \"");
        block.lines().find_map(|line| Some(line.strip_prefix(&*start)?.trim_end_matches('"').to_owned()))
    };
    let blocks = lock.split("[[package]]").skip(1);
    blocks
        .filter_map(|block| {
            Some(((field(block, "name")?, field(block, "version")?), field(block, "checksum")?))
        })
        .collect()
}

/// One line of JSON for each crate of `cargo tree`'s listing: `NAME vVERSION (NOTES)|LICENCE`.
fn components(tree: &str, checksums: &BTreeMap<(String, String), String>) -> Vec<String> {
    let mut listed = BTreeMap::new();
    for line in tree.lines() {
        let Some((package, licence)) = line.split_once('|') else { continue };
        let mut words = package.split(' ');
        let (Some(name), Some(version)) = (words.next(), words.next()) else { continue };
        let version = version.trim_start_matches('v');
        // A repeated crate is marked with a star behind its licence. Old manifests write a slash for "or".
        let licence = licence.trim_end_matches("(*)").trim().replace('/', " OR ");
        listed.insert((name.to_owned(), version.to_owned()), licence);
    }
    let component = |((name, version), licence): (&(String, String), &String)| {
        let hash = checksums.get(&(name.clone(), version.clone())).map_or_else(String::new, |sum| {
            format!(", \"hashes\": [{{\"alg\": \"SHA-256\", \"content\": \"{sum}\"}}]")
        });
        let licence = match licence.as_str() {
            "" => String::new(),
            licence => format!(", \"licenses\": [{{\"expression\": \"{licence}\"}}]"),
        };
        let purl = format!("pkg:cargo/{name}@{version}");
        format!(
            "{{\"type\": \"library\", \"bom-ref\": \"{purl}\", \"name\": \"{name}\", \"version\": \"{version}\", \
             \"purl\": \"{purl}\"{licence}{hash}}}"
        )
    };
    listed.iter().map(component).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_crate_is_listed_once_with_its_licence_and_checksum() {
        let lock = "[[package]]\nname = \"one\"\nversion = \"1.0.0\"\nchecksum = \"abc\"\n";
        let tree =
            "ours v0.1.0 (/here)|Apache-2.0\none v1.0.0|MIT/Apache-2.0\none v1.0.0|MIT/Apache-2.0 (*)\n";
        let found: Vec<serde_json::Value> = components(tree, &checksums(lock))
            .iter()
            .map(|line| serde_json::from_str(line).expect("each is JSON"))
            .collect();
        assert_eq!(found.len(), 2);
        assert_eq!(found[0]["purl"], "pkg:cargo/one@1.0.0");
        assert_eq!(found[0]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(found[0]["hashes"][0]["content"], "abc");
        assert_eq!(found[1]["name"], "ours");
    }
}
