//! The CRI suite (`tests/go/cri`) against one runtime: its images, its command line, its verdicts.
//! Owns the run; the checks are the Go program's, and never know which runtime they see. Called by
//! the CRI tier.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::image::{Image, Layer};
use crate::peers::Programs;
use crate::place;
use crate::registry::Registry;

/// Set to a regular expression, it picks checks by name, for work by hand.
pub const RUN: &str = "GANTRY_SUITE_RUN";

/// References of what was pushed.
#[derive(Debug, Clone)]
pub struct Images {
    /// What most checks use; the others lie beside it.
    pub basic: String,
    /// For a runtime whose pause is an image.
    pub pause: String,
    /// Every one that a check may pull.
    pub all: Vec<String>,
}

const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nweb:x:1000:1000::/home/web:/bin/sh\n";

/// Pushes all images that the suite asks for.
///
/// # Errors
/// When busybox-static is missing or the registry refuses.
pub fn push_images(registry: &Registry) -> Result<Images> {
    let basic = basic()?;
    let mut all = Vec::new();
    let mut push = |name: &str, tag: &str, image: &Image| -> Result<String> {
        let reference = registry.push(&format!("suite/{name}"), tag, &image.build()?)?;
        all.push(reference.clone());
        Ok(reference)
    };
    let on_top = |layer: Layer| Image {
        layers: basic.layers.iter().cloned().chain([layer]).collect(),
        ..basic.clone()
    };
    let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
    let entry =
        Image { entrypoint: words(&["/bin/echo", "entry:"]), cmd: words(&["from-image"]), ..basic.clone() };
    push("entry", "1", &entry)?;
    push("nothing", "1", &Image { cmd: Vec::new(), ..basic.clone() })?;
    push("username", "1", &Image { user: "web".into(), ..basic.clone() })?;
    push("uid", "1", &Image { user: "1000:1234".into(), ..basic.clone() })?;
    let twin = on_top(Layer::default().file("etc/twin", 0o644, "twin\n"));
    push("twin", "1", &twin)?;
    push("twin", "2", &twin)?;
    push("other", "1", &on_top(other()))?;
    let script = "trap 'exit 11' USR2; echo ready; while :; do sleep 0.1; done";
    let signal = Image { cmd: words(&["/bin/sh", "-c", script]), ..basic.clone() };
    let signal = signal.build_with(|config| config["config"]["StopSignal"] = "SIGUSR2".into())?;
    let signal = registry.push("suite/stopsignal", "1", &signal)?;
    let pause = std::fs::read(place::bin_dir()?.join("gantry-pause")).context("read gantry-pause")?;
    let pause = Image {
        layers: vec![Layer::default().file("pause", 0o755, pause)],
        entrypoint: words(&["/pause"]),
        ..Image::default()
    };
    let basic = push("basic", "1", &basic)?;
    let pause = registry.push("suite/pause", "1", &pause.build()?)?;
    all.push(signal);
    Ok(Images { basic, pause, all })
}

fn basic() -> Result<Image> {
    let more = Layer::default()
        .file("etc/passwd", 0o644, PASSWD)
        .dir("home", 0o755)
        .dir("home/web", 0o755)
        .owned(1000, 1000)
        .dir("mnt", 0o755)
        .dir("work", 0o755)
        .file("gone", 0o644, "to be whited out\n")
        .dir("opaque", 0o755)
        .file("opaque/old", 0o644, "to be hidden\n")
        .symlink("escape", "/tmp");
    Ok(Image {
        layers: vec![Layer::busybox()?, more],
        cmd: vec!["/bin/sh".into()],
        env: vec!["PATH=/bin".into(), "FROM_IMAGE=yes".into(), "ALSO_IMAGE=yes".into()],
        workdir: "/work".into(),
        ..Image::default()
    })
}

fn other() -> Layer {
    Layer::default()
        .file("etc/other", 0o644, "other\n")
        .file(".wh.gone", 0o644, "")
        .dir("opaque", 0o755)
        .file("opaque/.wh..wh..opq", 0o644, "")
        .file("opaque/new", 0o644, "")
        .file("owned", 0o4711, "")
        .owned(1000, 1234)
}

/// Runs the suite on a peer; its lines go to stdout. A check that is skipped there tells what the peer
/// does not have.
///
/// # Errors
/// Names the checks that failed.
pub fn run(socket: &Path, images: &Images, cgroup_tag: &str) -> Result<()> {
    judge(socket, images, cgroup_tag, None)
}

/// Runs it on our own runtime: every check passes but those of `not_yet`, which fail or are skipped. One
/// of them that passes has to leave the list, and no other may be skipped.
///
/// # Errors
/// Names the checks that did not come out so.
pub fn run_but(socket: &Path, images: &Images, cgroup_tag: &str, not_yet: &[&str]) -> Result<()> {
    judge(socket, images, cgroup_tag, Some(not_yet))
}

#[expect(clippy::print_stdout, reason = "one line for each check is what the suite is read by")]
fn judge(socket: &Path, images: &Images, cgroup_tag: &str, not_yet: Option<&[&str]>) -> Result<()> {
    let mut command = Command::new(Programs::suite()?);
    command
        .arg(format!("--endpoint=unix://{}", socket.display()))
        .arg(format!("--image={}", images.basic))
        .arg(format!("--cgroup-parent=/{cgroup_tag}"))
        .stdin(Stdio::null())
        .stderr(Stdio::inherit());
    if let Ok(run) = std::env::var(RUN) {
        command.arg(format!("--run={run}"));
    }
    let mut child = command.stdout(Stdio::piped()).spawn().context("start the CRI suite")?;
    let stdout = child.stdout.take().context("the CRI suite's stdout")?;
    let (mut failed, mut lacking) = (Vec::new(), 0);
    for line in BufReader::new(stdout).lines() {
        let line = line.context("read the CRI suite's lines")?;
        println!("{line}");
        let (verdict, rest) = line.split_once(' ').unwrap_or((&line, ""));
        let name = rest.split_whitespace().next().unwrap_or_default();
        let expected = not_yet.is_some_and(|list| list.contains(&name));
        match (verdict, expected) {
            ("PASS", true) => {
                failed.push(format!("{line}: passes now, take it off the list of what is not there yet"));
            }
            ("FAIL", true) => lacking += 1,
            ("FAIL", false) => failed.push(line),
            ("SKIP", false) if not_yet.is_some() => failed.push(line),
            _ => {}
        }
    }
    let status = child.wait().context("wait for the CRI suite")?;
    if !failed.is_empty() {
        bail!("{} checks failed:\n{}", failed.len(), failed.join("\n"));
    }
    // With failures the suite ends with 1.
    if !status.success() && lacking == 0 {
        bail!("the CRI suite ended with {status}");
    }
    Ok(())
}
