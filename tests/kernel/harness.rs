//! The harness itself, where it needs root or a registry: a leak check that sees nothing would
//! make every other test of this tier green.

use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use gantry_tests::http;
use gantry_tests::image::{Image, Layer};
use gantry_tests::leakcheck::{Scope, Snapshot};
use gantry_tests::place;
use gantry_tests::registry::Registry;

#[test]
fn a_registry_serves_what_was_pushed_until_it_is_corrupted() -> Result<()> {
    let registry = Registry::start()?;
    let layer = Layer::default().file("x", 0o644, vec![7; 5000]);
    let built = Image { layers: vec![layer], ..Image::default() }.build()?;
    let reference = registry.push("a/b", "t", &built)?;
    assert_eq!(reference, format!("{}/a/b:t", registry.host()));
    let addr = registry.host().parse()?;
    let blob = format!("/v2/a/b/blobs/{}", built.layers[0].digest);
    assert_eq!(http::get(addr, &blob)?.body, built.layers[0].bytes);
    registry.corrupt(&built.layers[0].digest)?;
    let damaged = http::get(addr, &blob)?;
    assert_eq!(damaged.status, 200);
    assert_eq!(damaged.body.len(), built.layers[0].bytes.len());
    assert_ne!(damaged.body, built.layers[0].bytes);
    Ok(())
}

/// Runs a program of busybox, which both places have.
fn busybox(args: &[&str]) -> Result<()> {
    let status = Command::new("/bin/busybox").args(args).status().context("run busybox")?;
    anyhow::ensure!(status.success(), "busybox {args:?}: {status}");
    Ok(())
}

#[test]
fn a_leak_check_sees_processes_mounts_links_and_cgroups() -> Result<()> {
    place::require_own_namespaces()?;
    let folder = tempfile::tempdir()?;
    let point = folder.path().to_string_lossy().into_owned();
    let scope = Scope { cgroup_tag: "gantry-harness".into(), ..Scope::default() };
    let before = Snapshot::take(&scope)?;
    assert_eq!(before.added(&Snapshot::take(&scope)?), Vec::<String>::new());

    let mut child = Command::new("/bin/busybox").args(["sleep", "100"]).stdin(Stdio::null()).spawn()?;
    busybox(&["mount", "-t", "tmpfs", "none", &point])?;
    busybox(&["ip", "link", "add", "harness0", "type", "bridge"])?;
    let hierarchy = gantry_tests::leakcheck::mounts()?
        .into_iter()
        .find(|mount| mount.kind.starts_with("cgroup"))
        .context("no cgroup hierarchy is mounted")?;
    let cgroup = hierarchy.point.join("gantry-harness-pod");
    std::fs::create_dir(&cgroup)?;
    let added = before.added(&Snapshot::take(&scope)?);

    child.kill()?;
    child.wait()?;
    busybox(&["umount", &point])?;
    busybox(&["ip", "link", "del", "harness0"])?;
    std::fs::remove_dir(&cgroup)?;
    for kind in ["process", "mount", "link harness0", "cgroup"] {
        assert!(added.iter().any(|thing| thing.starts_with(kind)), "{kind} was not seen: {added:?}");
    }
    assert_eq!(added.len(), 4, "{added:?}");
    before.await_clean(&scope)
}
