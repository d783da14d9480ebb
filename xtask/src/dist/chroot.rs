//! The tier `dist`: the package on a Debian system that has nothing else. Owns the system's start, one for
//! each case, and the cases' names; what a case does and expects is in `cases`. Never touches the host: mounts
//! and processes are in namespaces that end with the case. Called by the tiers.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::summary::Counts;
use crate::{clean_room, debian_repository, sh};

/// Words that all cases use.
const COMMON: &str = include_str!("cases/common.sh");

const CASES: [(&str, &str); 8] = [
    ("dist: programs, links, units and purge without a trace", include_str!("cases/whole.sh")),
    ("dist: an upgrade keeps links and what people changed", include_str!("cases/upgrade.sh")),
    (
        "dist: another package's kubelet is kept aside and given back",
        include_str!("cases/packaged_kubelet.sh"),
    ),
    ("dist: a kubelet put there by hand is kept aside and given back", include_str!("cases/own_kubelet.sh")),
    ("dist: network plugins of others stay", include_str!("cases/plugins.sh")),
    ("dist: no removal while pods run", include_str!("cases/running.sh")),
    ("dist: purge takes the runtime's state, and nothing through a mount", include_str!("cases/state.sh")),
    ("dist: the archive, as docs/install.md has it", include_str!("cases/archive.sh")),
];

/// Inside mount and process namespaces. $1 is the work folder.
const ENTER: &str = r#"
set -eu
work=$1; base=$2; dist=$3; script=$4
mount --make-rprivate /
cp -a --reflink=auto "$base" "$work/root"
mount --bind "$work/root" "$work/root"
mount -t proc proc "$work/root/proc"
mount --rbind /dev "$work/root/dev"
mkdir "$work/root/dist"
mount --bind "$dist" "$work/root/dist"
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
  chroot "$work/root" /bin/sh -euc "$script"
"#;

/// The package as such, then each case, or those whose name holds `filter`.
pub(crate) fn tests(filter: Option<&str>) -> Result<Counts> {
    sh::require_root("a package's installation")?;
    let made = super::make(false);
    let folder = made.as_ref().map(|made| made.folder.clone()).ok();
    let mut counts = Counts::check("dist: packed twice alike, no error by lintian", made.map(drop));
    let Some(folder) = folder else { return Ok(counts) };
    for (name, script) in CASES.iter().filter(|(name, _)| filter.is_none_or(|filter| name.contains(filter))) {
        counts += Counts::check(name, case(&folder, script));
    }
    Ok(counts)
}

fn case(dist: &Path, script: &str) -> Result<()> {
    let (base, work) = clean_room::system(&debian_repository::find()?)?;
    let mut enter = Command::new("unshare");
    enter.args(["--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child"]);
    enter.args(["--", "sh", "-c", ENTER, "sh"]).arg(work.path()).arg(&base).arg(dist);
    enter.arg(format!("{COMMON}\n{script}"));
    let status = enter.stdin(Stdio::null()).status().context("start unshare")?;
    if !status.success() {
        bail!("{status}; what it said stands above");
    }
    Ok(())
}
