//! Inputs of fuzz targets that are kept in `fuzz/corpus`: a finding that was mended stays so. Owns where they lie.
//! Called by the tests beside the targets' bodies.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Runs every kept input of `name` through its target.
///
/// # Panics
/// When the folder is missing or nearly empty, and when the target finds a fault.
pub fn replay(name: &str, target: fn(&[u8])) {
    let folder = checkout().join("fuzz/corpus").join(name);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut inputs = 0;
    for entry in entries {
        target(&std::fs::read(entry.unwrap().path()).unwrap());
        inputs += 1;
    }
    assert!(inputs > 10, "{inputs} inputs in {}", folder.display());
}

/// The checkout whose test this is. Not `env!`: checkouts that share a target folder share this binary.
fn checkout() -> PathBuf {
    let package = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap());
    let above = package.ancestors().find(|folder| folder.join("fuzz/corpus").is_dir());
    above.unwrap_or_else(|| panic!("no fuzz/corpus above {}", package.display())).to_owned()
}

/// Writes the inputs that a target begins with to the folder that `cargo xtask fuzz --seeds` names; without it, to
/// one that goes at once.
///
/// # Panics
/// When there are too few of them, or one can't be written.
pub fn write_seeds(targets: &[(&str, Vec<Vec<u8>>)]) {
    let scratch = tempfile::tempdir().unwrap();
    let folder = std::env::var_os("GANTRY_FUZZ_SEEDS").unwrap_or_else(|| OsString::from(scratch.path()));
    for (target, seeds) in targets {
        assert!(seeds.len() > 2, "{target}");
        let folder = Path::new(&folder).join(target);
        std::fs::create_dir_all(&folder).unwrap();
        for (number, seed) in seeds.iter().enumerate() {
            std::fs::write(folder.join(format!("seed-{number:02}")), seed).unwrap();
        }
    }
}

/// An input whose first byte says how the rest is read.
#[must_use]
pub fn with_prefix(how: u8, rest: &[u8]) -> Vec<u8> {
    [&[how][..], rest].concat()
}
