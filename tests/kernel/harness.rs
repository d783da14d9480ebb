//! The harness itself, where it needs root or a registry: a leak check that sees nothing would
//! make every other test of this tier green.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gantry_tests::http;
use gantry_tests::image::{Image, Layer};
use gantry_tests::leakcheck::{Scope, Snapshot};
use gantry_tests::poll::poll;
use gantry_tests::registry::Registry;
use gantry_tests::{place, proc};

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

/// Runs a program to its end.
fn run(words: &[&str]) -> Result<()> {
    let status = Command::new(words[0]).args(&words[1..]).status().with_context(|| words.join(" "))?;
    ensure!(status.success(), "{words:?}: {status}");
    Ok(())
}

/// A process in a mount and a network namespace of its own, where a tmpfs is at `point`.
fn elsewhere(point: &str) -> Result<Child> {
    let mut child = Command::new("unshare")
        .args(["--mount", "--net", "sh", "-c", "mount -t tmpfs none \"$0\" && echo ready && exec sleep 1000"])
        .arg(point)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("start unshare")?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().context("no stdout")?).read_line(&mut line)?;
    ensure!(line == "ready\n", "the other namespaces are not as they should be: {line:?}");
    Ok(child)
}

fn scope(root: &Path) -> Scope {
    Scope {
        cgroup_tag: "gantry-harness".into(),
        folders: vec![root.join("files")],
        leases: root.join("leases"),
        ..Scope::default()
    }
}

/// What `leak` added, once `mend` has been called and everything is as before.
fn seen(
    leak: impl FnOnce(&Path) -> Result<()>,
    mend: impl FnOnce(&Path) -> Result<()>,
) -> Result<Vec<String>> {
    place::require_own_namespaces()?;
    let folder = tempfile::tempdir()?;
    std::fs::create_dir(folder.path().join("files"))?;
    std::fs::create_dir_all(folder.path().join("leases/net"))?;
    let scope = scope(folder.path());
    let before = Snapshot::take(&scope)?;
    assert_eq!(before.added(&Snapshot::take(&scope)?), Vec::<String>::new());
    let leaked = leak(folder.path());
    let added = Snapshot::take(&scope).map(|after| before.added(&after));
    mend(folder.path())?;
    leaked?;
    before.await_clean(&scope)?;
    added
}

fn assert_one(added: &[String], begins: &str) {
    assert!(added.len() == 1 && added[0].starts_with(begins), "not one {begins}: {added:?}");
}

#[test]
fn a_leaked_process_is_seen() -> Result<()> {
    let child = RefCell::new(None);
    let added = seen(
        |_| {
            let sleeping = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn()?;
            let pid = i32::try_from(sleeping.id())?;
            child.replace(Some(sleeping));
            // An exec lets its parent go on before it changes the name.
            poll("its name", Duration::from_secs(20), || match proc::one(pid) {
                Some(process) if process.name == "sleep" => Ok(()),
                other => Err(format!("{other:?}")),
            })
        },
        |_| {
            let mut child = child.take().context("not started")?;
            child.kill()?;
            child.wait()?;
            Ok(())
        },
    )?;
    assert_one(&added, "process ");
    assert!(added[0].contains(" sleep "), "{added:?}");
    Ok(())
}

#[test]
fn a_leaked_mount_is_seen() -> Result<()> {
    let at = |folder: &Path| folder.join("leases").to_string_lossy().into_owned();
    let added = seen(
        |folder| run(&["mount", "-t", "tmpfs", "none", &at(folder)]),
        |folder| run(&["umount", &at(folder)]),
    )?;
    assert_one(&added, "mount tmpfs /");
    Ok(())
}

#[test]
fn a_leaked_link_is_seen() -> Result<()> {
    let added = seen(
        |_| run(&["ip", "link", "add", "harness0", "type", "bridge"]),
        |_| run(&["ip", "link", "del", "harness0"]),
    )?;
    assert_one(&added, "link harness0");
    Ok(())
}

#[test]
fn a_leaked_rule_is_seen() -> Result<()> {
    run(&["nft", "add table ip harness; add chain ip harness c; add rule ip harness c counter accept"])?;
    let added = seen(
        |_| run(&["nft", "add", "rule", "ip", "harness", "c", "counter", "accept"]),
        |_| run(&["nft", "flush chain ip harness c; add rule ip harness c counter accept"]),
    );
    run(&["nft", "delete", "table", "ip", "harness"])?;
    assert_one(&added?, "nft table ip harness / chain c / counter accept #2");
    Ok(())
}

#[test]
fn a_leaked_cgroup_is_seen_in_each_hierarchy() -> Result<()> {
    let hierarchies = gantry_tests::leakcheck::mounts()?;
    let points: BTreeSet<PathBuf> = hierarchies
        .into_iter()
        .filter(|mount| mount.kind.starts_with("cgroup"))
        .map(|mount| mount.point.join("gantry-harness-pod"))
        .collect();
    assert!(!points.is_empty(), "no cgroup hierarchy is mounted");
    for point in points {
        let added = seen(|_| Ok(std::fs::create_dir(&point)?), |_| Ok(std::fs::remove_dir(&point)?))?;
        assert_one(&added, &format!("cgroup {}", point.display()));
    }
    Ok(())
}

#[test]
fn a_leaked_file_and_a_leaked_lease_are_seen() -> Result<()> {
    for (name, kind) in [("files/x", "file"), ("leases/net/10.0.0.9", "lease")] {
        let added = seen(
            |folder| Ok(std::fs::write(folder.join(name), "")?),
            |folder| Ok(std::fs::remove_file(folder.join(name))?),
        )?;
        assert_one(&added, &format!("{kind} /"));
    }
    Ok(())
}

/// In the namespaces of a process that was there before: the process is no leak, but these are.
#[test]
fn leaks_in_other_namespaces_are_seen() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let point = folder.path().to_str().context("a temporary folder that is not UTF-8")?;
    let mut child = elsewhere(point)?;
    let pid = child.id().to_string();
    let enter = |words: &[&str]| {
        let (mount, net) = (format!("--mount=/proc/{pid}/ns/mnt"), format!("--net=/proc/{pid}/ns/net"));
        run(&[&["nsenter", &mount, &net][..], words].concat())
    };
    let mount = seen(|_| enter(&["mount", "-t", "tmpfs", "none", point]), |_| enter(&["umount", point]));
    let link = seen(
        |_| enter(&["ip", "link", "add", "harness1", "type", "bridge"]),
        |_| enter(&["ip", "link", "del", "harness1"]),
    );
    let rule = seen(
        |_| enter(&["nft", "add", "table", "ip", "harness"]),
        |_| enter(&["nft", "delete", "table", "ip", "harness"]),
    );
    child.kill()?;
    child.wait()?;
    assert_one(&link?, "link of net:[");
    assert_one(&rule?, "nft of net:[");
    let mount = mount?;
    assert_one(&mount, "mount of mnt:[");
    // Over the one that was there.
    assert!(mount[0].ends_with(&format!("tmpfs {point} #2")), "{mount:?}");
    Ok(())
}
