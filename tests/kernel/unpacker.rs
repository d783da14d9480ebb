//! The confined unpacker (ADR 0013), looked at from outside while it waits for bytes, and killed.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use gantry_tests::image::{Image, Layer};
use gantry_tests::node::Node;
use gantry_tests::paused_registry::PausedRegistry;
use gantry_tests::place;
use gantry_tests::poll::poll;

const PATIENCE: Duration = Duration::from_secs(30);
/// CHOWN, DAC_OVERRIDE, FOWNER, FSETID, MKNOD, SETFCAP by number.
const CAPABILITIES: u64 = 1 | 1 << 1 | 1 << 3 | 1 << 4 | 1 << 27 | 1 << 31;

fn start(args: &[&str]) -> Result<Child> {
    Command::new(place::bin_dir()?.join("gantry-unpack"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        // As the runtime does. A log that is longer than the file size allowed would kill it for its last words.
        .stderr(Stdio::null())
        .spawn()
        .context("start gantry-unpack")
}

/// `/proc/PID/status` as it is now.
fn status(child: &Child) -> Result<BTreeMap<String, String>> {
    let path = format!("/proc/{}/status", child.id());
    let text = fs::read_to_string(&path).context(path)?;
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    Ok(lines.map(|(key, value)| (key.to_owned(), value.trim().to_owned())).collect())
}

/// `/proc/PID/status` once the process has put up its walls, of which seccomp is the last.
fn read_confinement(child: &mut Child) -> Result<BTreeMap<String, String>> {
    poll("the process to confine itself", PATIENCE, || {
        if let Ok(Some(status)) = child.try_wait() {
            return Ok(Err(anyhow::anyhow!("it ended with {status}")));
        }
        let facts = status(child).map_err(|error| format!("{error:#}"))?;
        if facts["Seccomp"] == "2" { Ok(Ok(())) } else { Err(format!("{facts:?}")) }
    })
    .flatten()?;
    // Read again: the kernel writes line by line, so the lines above that one may be older than it.
    status(child)
}

fn capabilities(facts: &BTreeMap<String, String>) -> Result<Vec<u64>> {
    let sets = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"];
    sets.iter().map(|set| u64::from_str_radix(&facts[*set], 16).context(*set)).collect()
}

fn end(mut child: Child) -> Result<(Option<i32>, String)> {
    drop(child.stdin.take());
    let mut text = String::new();
    child.stdout.take().context("no stdout")?.read_to_string(&mut text)?;
    Ok((child.wait()?.code(), text))
}

#[test]
fn one_whose_runtime_is_killed_ends_with_bytes_left_in_its_pipe() -> Result<()> {
    place::require_own_namespaces()?;
    let folder = tempfile::Builder::new().prefix("gantry-unpack-").tempdir()?;
    let path = folder.path().to_str().context("not UTF-8")?;
    for args in [&["inflate", "gzip", "60"][..], &["unpack", path, "1000", "1000000", "60"]] {
        // A parent that is not this process, and a pipe that stays open.
        let script = "exec 3<&0; \"$@\" <&3 & echo $!; wait";
        let mut parent = Command::new("sh")
            .args(["-c", script, "sh"])
            .arg(place::bin_dir()?.join("gantry-unpack"))
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(parent.stdout.take().context("no stdout")?).read_line(&mut line)?;
        let status = format!("/proc/{}/status", line.trim());
        let fact = |key: &str| -> Option<String> {
            let text = fs::read_to_string(&status).ok()?;
            let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
            Some(line.trim().to_owned())
        };
        poll("the process to confine itself", PATIENCE, || match fact("Seccomp") {
            Some(mode) if mode == "2" => Ok(()),
            other => Err(format!("{other:?}")),
        })?;
        parent.kill()?;
        parent.wait()?;
        // Gone, or dead and waiting for whoever took it over to say so.
        poll("it to end", PATIENCE, || match fact("State") {
            Some(state) if !state.starts_with('Z') => Err(state),
            _ => Ok(()),
        })?;
    }
    Ok(())
}

#[test]
fn rt_1_9_bytes_are_unpacked_in_a_folder_with_nothing_around_it() -> Result<()> {
    place::require_own_namespaces()?;
    let folder = tempfile::Builder::new().prefix("gantry-unpack-").tempdir()?;
    let path = folder.path().to_str().context("not UTF-8")?;
    let mut child = start(&["unpack", path, "1000", "1000000", "60"])?;
    let facts = read_confinement(&mut child)?;
    assert_eq!(capabilities(&facts)?, [0, CAPABILITIES, CAPABILITIES, CAPABILITIES, 0]);
    assert_eq!(facts["NoNewPrivs"], "1");
    let proc = format!("/proc/{}", child.id());
    for namespace in ["mnt", "net", "ipc", "uts"] {
        let own = |proc: &str| fs::read_link(format!("{proc}/ns/{namespace}"));
        assert_ne!(own(&proc)?, own("/proc/self")?, "{namespace}");
    }
    let mounts = fs::read_to_string(format!("{proc}/mountinfo"))?;
    assert_eq!(mounts.lines().count(), 1, "{mounts}");
    for flag in ["nodev", "nosuid", "noexec"] {
        assert!(mounts.contains(flag), "{mounts}");
    }
    assert_eq!(fs::metadata(format!("{proc}/root/"))?.ino(), fs::metadata(folder.path())?.ino());
    let limits = fs::read_to_string(format!("{proc}/limits"))?;
    for (limit, value) in [("Max file size", "1000000"), ("Max cpu time", "60"), ("Max core file size", "0")]
    {
        let line = limits.lines().find(|line| line.starts_with(limit)).unwrap_or_default();
        assert!(line.contains(value), "{limit}: {line}");
    }
    let archive = Layer::default()
        .file("plain", 0o666, "y")
        .dir("d", 0o2755)
        .file("d/suid", 0o4755, "x")
        .with_owner(7, 8);
    let mut stdin = child.stdin.take().context("no stdin")?;
    stdin.write_all(&archive.archive()?)?;
    drop(stdin);
    let (code, verdict) = end(child)?;
    assert_eq!(code, Some(0), "{verdict}");
    let verdict: serde_json::Value = serde_json::from_str(&verdict)?;
    assert_eq!(verdict["Unpacked"]["entries"], 3, "{verdict}");
    // Made with its mode, whatever umask this process has.
    assert_eq!(fs::metadata(folder.path().join("plain"))?.permissions().mode() & 0o7777, 0o666);
    let file = fs::metadata(folder.path().join("d/suid"))?;
    assert_eq!((file.permissions().mode() & 0o7777, file.uid(), file.gid()), (0o4755, 7, 8));
    Ok(())
}

#[test]
fn rt_1_9_the_inflater_has_no_privileges_at_all() -> Result<()> {
    place::require_own_namespaces()?;
    let mut child = start(&["inflate", "gzip", "60"])?;
    let facts = read_confinement(&mut child)?;
    assert_eq!(capabilities(&facts)?, [0; 5]);
    child.stdin.take().context("no stdin")?.write_all(b"this is no gzip stream")?;
    assert_eq!(end(child)?.0, Some(3), "corrupt");
    Ok(())
}

#[test]
fn a_file_that_is_larger_than_allowed_is_named_and_kills_nobody() -> Result<()> {
    place::require_own_namespaces()?;
    let folder = tempfile::Builder::new().prefix("gantry-unpack-").tempdir()?;
    let path = folder.path().to_str().context("not UTF-8")?;
    let mut child = start(&["unpack", path, "1000", "1000", "60"])?;
    let archive = Layer::default().file("small", 0o644, "x").file("big", 0o644, vec![7; 4096]);
    child.stdin.take().context("no stdin")?.write_all(&archive.archive()?)?;
    let (code, verdict) = end(child)?;
    assert_eq!(code, Some(0), "{verdict}");
    let verdict: serde_json::Value = serde_json::from_str(&verdict)?;
    assert_eq!(verdict["Refused"]["kind"], "Invalid", "{verdict}");
    assert_eq!(verdict["Refused"]["message"], "file \"big\" is larger than its whole layer may be");
    Ok(())
}

/// The runtime's children of this name.
fn helpers(node: &Node) -> Vec<i32> {
    let children = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ours = children.filter_map(|entry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let args = fs::read(entry.path().join("cmdline")).ok()?;
        let args = String::from_utf8_lossy(&args).into_owned();
        let of_node = args.contains(&*node.root().to_string_lossy());
        (args.starts_with("gantry-unpack\0unpack") && of_node).then_some(pid)
    });
    ours.collect()
}

fn empty(folder: &Path) -> bool {
    fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none())
}

#[test]
fn an_unpacker_that_is_killed_fails_its_pull_and_leaves_nothing() -> Result<()> {
    place::require_own_namespaces()?;
    let noise: Vec<u8> = (0..2_000_000_u32).map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
    let built =
        Image { layers: vec![Layer::default().file("big", 0o644, noise)], ..Image::default() }.build()?;
    let (held, node) = (PausedRegistry::serve(&built)?, Node::start()?);
    let image = held.reference();
    let before = node.snapshot()?;
    let error = std::thread::scope(|scope| -> Result<tonic::Status> {
        let pull = scope.spawn(|| {
            let client = gantry_tests::cri::Cri::new(&node.roots().path("cri.sock"))?;
            let image = Some(gantry_proto::cri::ImageSpec { image: image.clone(), ..Default::default() });
            let request = gantry_proto::cri::PullImageRequest { image, ..Default::default() };
            anyhow::Ok(client.pull_image(request))
        });
        let found = poll("an unpacker at work", PATIENCE, || {
            helpers(&node).first().copied().ok_or_else(|| "none".to_owned())
        });
        let killed = found.and_then(|pid| {
            let pid = rustix::process::Pid::from_raw(pid).context("no pid")?;
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).context("kill it")
        });
        held.release();
        let answer = pull.join().expect("the pulling thread")?;
        killed?;
        Ok(answer.expect_err("its unpacker was killed"))
    })?;
    assert!(error.message().contains("unpacker ended early: by signal 9"), "{error:?}");
    assert!(helpers(&node).is_empty());
    for folder in ["ingest", "layers"] {
        assert!(empty(&node.root().join(folder)), "{folder}");
    }
    node.pull(&image).context("the next pull is a good one")?;
    let image = Some(gantry_proto::cri::ImageSpec { image, ..Default::default() });
    node.cri().remove_image(gantry_proto::cri::RemoveImageRequest { image })?;
    node.assert_clean(&before)
}
