//! What is linked into the shipped programs, as CycloneDX JSON: from `cargo tree`, which resolves features
//! for one package, and from the lock file's checksums. The same sources make the same bytes: no random
//! serial number, and the commit's time. Called by `dist`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::{build, sh};

/// The packages that programs are made of, with the flags that `build` gives them.
const MADE_OF: [&[&str]; 3] = [&["gantry"], &["gantry-monitor"], &["gantry-unpack"]];

/// A crate.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Crate {
    name: String,
    version: String,
    license: String,
    /// The folder of one that is no registry's.
    path: Option<String>,
}

impl Crate {
    fn purl(&self) -> String {
        format!("pkg:cargo/{}@{}", self.name, self.version)
    }

    fn json(&self, kind: &str, checksum: Option<&String>) -> Value {
        let mut json = json!({
            "type": kind,
            "bom-ref": self.purl(),
            "name": self.name,
            "version": self.version,
            "purl": self.purl(),
            "licenses": [{ "expression": self.license }],
        });
        if let Some(checksum) = checksum.filter(|_| self.path.is_none()) {
            json["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
        }
        if let Some(path) = &self.path {
            json["properties"] = json!([{ "name": "gantry:source", "value": path }]);
        }
        json
    }
}

/// Crates, and what each is made of.
type Graph = BTreeMap<Crate, BTreeSet<String>>;

/// The document.
pub(super) fn of_the_lock_file(version: &str, date: &str) -> Result<Vec<u8>> {
    let mut graph = Graph::new();
    let root = sh::root().display().to_string();
    for flags in MADE_OF {
        let mut tree = sh::cargo(&["tree", "--locked", "--target", build::TARGET, "--prefix", "depth"]);
        tree.args(["--edges", "normal,no-proc-macro", "--format", "{p}\t{l}\t", "--package"]).args(flags);
        read(&String::from_utf8_lossy(&sh::output(&mut tree)?), &root, &mut graph)?;
    }
    let lock = fs::read_to_string(sh::root().join("Cargo.lock")).context("read Cargo.lock")?;
    let document = document(&graph, &checksums(&lock)?, version, date)?;
    let mut bytes = serde_json::to_vec_pretty(&document)?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// Reads `DEPTHNAME vVERSION (PATH)<tab>LICENSE<tab>` lines. What stands below a crate that was there before
/// is not repeated: its line ends with `(*)`.
fn read(tree: &str, root: &str, graph: &mut Graph) -> Result<()> {
    let mut above: Vec<Crate> = Vec::new();
    for line in tree.lines().filter(|line| !line.is_empty()) {
        let wrong = || format!("cargo tree: {line:?}");
        let digits = line.bytes().take_while(u8::is_ascii_digit).count();
        let (depth, rest) = line.split_at(digits);
        let depth: usize = depth.parse().with_context(wrong)?;
        let mut fields = rest.split('\t');
        let mut words = fields.next().with_context(wrong)?.splitn(3, ' ');
        let name = words.next().with_context(wrong)?.to_owned();
        let version = words.next().and_then(|word| word.strip_prefix('v')).with_context(wrong)?.to_owned();
        let path = words.next().map(|path| path.trim_matches(['(', ')']).to_owned());
        let path = path.map(|path| path.trim_start_matches(root).trim_start_matches('/').to_owned());
        // The slash is an old way to write it.
        let licenses: Vec<_> = fields.next().with_context(wrong)?.split('/').map(str::trim).collect();
        let license = licenses.join(" OR ");
        let found = Crate { name, version, license, path };
        above.truncate(depth);
        if let Some(parent) = above.last() {
            graph.entry(parent.clone()).or_default().insert(found.purl());
        }
        graph.entry(found.clone()).or_default();
        above.push(found);
    }
    Ok(())
}

/// By name and version.
fn checksums(lock: &str) -> Result<BTreeMap<(String, String), String>> {
    let lock: toml::Table = toml::from_str(lock).context("Cargo.lock")?;
    let packages =
        lock.get("package").and_then(toml::Value::as_array).context("no packages in Cargo.lock")?;
    let text = |package: &toml::Value, key: &str| Some(package.get(key)?.as_str()?.to_owned());
    Ok(packages
        .iter()
        .filter_map(|package| {
            Some(((text(package, "name")?, text(package, "version")?), text(package, "checksum")?))
        })
        .collect())
}

fn document(
    graph: &Graph,
    checksums: &BTreeMap<(String, String), String>,
    version: &str,
    date: &str,
) -> Result<Value> {
    let whole = graph.keys().find(|found| found.name == "gantry").context("gantry is not in its own tree")?;
    let parts = graph.keys().filter(|found| *found != whole);
    let components: Vec<Value> = parts
        .map(|part| part.json("library", checksums.get(&(part.name.clone(), part.version.clone()))))
        .collect();
    let dependencies: Vec<Value> =
        graph.iter().map(|(found, parts)| json!({ "ref": found.purl(), "dependsOn": parts })).collect();
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": date,
            "tools": { "components": [
                { "type": "application", "name": "cargo xtask dist", "version": version },
            ] },
            "component": whole.json("application", None),
        },
        "components": components,
        "dependencies": dependencies,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: &str = "0gantry v0.1.0 (/src/cli)\tApache-2.0\t\n1anyhow v1.0.1\tMIT/Apache-2.0\t\n\
                        1h2 v0.4.1 (/src/third_party/h2)\tMIT\t\n2bytes v1.2.3\tMIT / ISC\t\n1bytes v1.2.3\tMIT / ISC\t (*)\n";
    const LOCK: &str = "[[package]]\nname = \"bytes\"\nversion = \"1.2.3\"\nchecksum = \"abc\"\n";

    #[test]
    fn every_crate_is_there_once_with_what_it_is_made_of() {
        let mut graph = Graph::new();
        read(TREE, "/src", &mut graph).unwrap();
        let document = document(&graph, &checksums(LOCK).unwrap(), "1", "2026-01-01T00:00:00Z").unwrap();
        assert_eq!(document["metadata"]["component"]["purl"], "pkg:cargo/gantry@0.1.0");
        let components = document["components"].as_array().unwrap();
        let names: Vec<_> = components.iter().map(|component| component["name"].clone()).collect();
        assert_eq!(names, ["anyhow", "bytes", "h2"]);
        assert_eq!(components[0]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(components[1]["licenses"][0]["expression"], "MIT OR ISC");
        assert_eq!(components[1]["hashes"][0]["content"], "abc");
        assert_eq!(components[2]["properties"][0]["value"], "third_party/h2");
        let of = |purl: &str| {
            let all = document["dependencies"].as_array().unwrap();
            all.iter().find(|found| found["ref"] == purl).unwrap()["dependsOn"].clone()
        };
        assert_eq!(
            of("pkg:cargo/gantry@0.1.0"),
            json!(["pkg:cargo/anyhow@1.0.1", "pkg:cargo/bytes@1.2.3", "pkg:cargo/h2@0.4.1"])
        );
        assert_eq!(of("pkg:cargo/h2@0.4.1"), json!(["pkg:cargo/bytes@1.2.3"]));
    }

    #[test]
    fn a_line_of_another_form_is_an_error() {
        assert!(read("gantry v1\tMIT\t", "/src", &mut Graph::new()).is_err());
    }
}
