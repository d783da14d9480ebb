//! Programs of Debian's packages in the small VM, each tree of them out of the way of all others. Owns how they find their
//! libraries. Called by what puts such a tree in there.

use std::path::Path;

use anyhow::Result;

use super::add_libraries;
use crate::cpio::Cpio;

/// Puts the folder `tree` at `to`, and into `/usr/sbin` what starts its programs, named by folder and name.
pub(super) fn add(cpio: &mut Cpio, tree: &Path, to: &str, programs: &[(&str, &str)]) -> Result<()> {
    cpio.tree(tree, to)?;
    let library = |folder: &str| format!("{to}/{folder}/x86_64-linux-gnu");
    let libraries = format!("{}:{}", library("usr/lib"), library("lib"));
    for (folder, program) in programs {
        let script = format!("#!/bin/sh\nLD_LIBRARY_PATH={libraries} exec {to}/{folder}/{program} \"$@\"\n");
        cpio.file(&format!("/usr/sbin/{program}"), 0o755, script.as_bytes())?;
        add_libraries(cpio, &tree.join(folder).join(program))?;
    }
    Ok(())
}
