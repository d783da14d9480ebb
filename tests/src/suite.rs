//! The CRI suite (`tests/go/cri`) against one runtime: its images, its command line, its verdicts.
//! Owns the run; the checks are the Go program's, and never know which runtime they see. Called by
//! the CRI tier.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::image::{Image, Layer};
use crate::peers::Programs;
use crate::place;
use crate::registry::{Guarded, Registry};

/// Set to a regular expression, it picks checks by name, for work by hand.
pub const RUN: &str = "GANTRY_SUITE_RUN";

/// Set to the name of a runtime handler, it has all pods be of that one, for work by hand.
pub const HANDLER: &str = "GANTRY_SUITE_HANDLER";

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

/// The runtime that is checked.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// Its CRI.
    pub socket: &'a Path,
    /// Cgroups of its pods are made below `/TAG`.
    pub cgroup_tag: &'a str,
    /// A process whose mount namespace it has, when that is another than ours: what a check mounts, it
    /// must see.
    pub within: Option<u32>,
    /// An image that its configuration pins.
    pub pinned: &'a str,
    /// Runtime handler of its pods; empty for the default one.
    pub handler: &'a str,
    /// A registry that asks for a password.
    pub guarded: &'a Guarded,
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
    push("private", "1", &on_top(Layer::default().file("etc/private", 0o644, "private\n")))?;
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
        .with_owner(1000, 1000)
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
        .with_owner(1000, 1234)
}

/// Runs the suite on a peer; its lines go to stdout. A check that is skipped there tells what the peer
/// does not have.
///
/// # Errors
/// Names the checks that failed.
pub fn run(subject: Subject<'_>, images: &Images) -> Result<()> {
    judge(subject, images, None)
}

/// Runs it on our own runtime: every check passes but those of `not_yet`, which are refused as not
/// supported. One of them that passes has to leave the list, and no other may be skipped.
///
/// # Errors
/// Names the checks that did not come out so.
pub fn run_but(subject: Subject<'_>, images: &Images, not_yet: &[&str]) -> Result<()> {
    judge(subject, images, Some(not_yet))
}

/// The command that runs a program where the subject is.
pub(crate) fn command_within(program: &Path, within: Option<u32>) -> Command {
    let Some(pid) = within else { return Command::new(program) };
    let mut command = Command::new("nsenter");
    command.arg(format!("--mount=/proc/{pid}/ns/mnt")).arg("--").arg(program);
    command
}

#[expect(clippy::print_stdout, reason = "one line for each check is what the suite is read by")]
fn judge(subject: Subject<'_>, images: &Images, not_yet: Option<&[&str]>) -> Result<()> {
    let mut command = command_within(&Programs::suite()?, subject.within);
    command
        .arg(format!("--endpoint=unix://{}", subject.socket.display()))
        .arg(format!("--image={}", images.basic))
        .arg(format!("--cgroup-parent={}", place::cgroup_parent(&[subject.cgroup_tag])))
        .arg(format!("--pinned-image={}", subject.pinned))
        .arg(format!("--private-image={}/suite/private:1", subject.guarded.host()))
        .arg(format!("--private-user={}", Guarded::USER))
        .arg(format!("--private-password={}", Guarded::PASSWORD))
        // Beside its socket, on ours and on the peer.
        .arg(format!("--cdi-dir={}", subject.socket.with_file_name("cdi").display()))
        .stdin(Stdio::null())
        .stderr(Stdio::inherit());
    if !subject.handler.is_empty() {
        command.arg(format!("--runtime-handler={}", subject.handler));
    }
    if let Ok(run) = std::env::var(RUN) {
        command.arg(format!("--run={run}"));
    }
    let mut child = command.stdout(Stdio::piped()).spawn().context("start the CRI suite")?;
    let stdout = child.stdout.take().context("the CRI suite's stdout")?;
    let mut verdicts = Verdicts::new(not_yet);
    for line in BufReader::new(stdout).lines() {
        let line = line.context("read the CRI suite's lines")?;
        println!("{line}");
        verdicts.read(&line);
    }
    let status = child.wait().context("wait for the CRI suite")?;
    verdicts.judge(status.code(), std::env::var_os(RUN).is_none())
}

/// Passed, failed, skipped.
type Tally = [u64; 3];

/// The suite's lines as they come by.
#[derive(Debug)]
struct Verdicts<'a> {
    /// None where whatever is skipped may be.
    not_yet: Option<&'a [&'a str]>,
    wrong: Vec<String>,
    /// Those of `not_yet` that had a line.
    told: BTreeSet<String>,
    counted: Tally,
    /// What the suite itself counted: its last line.
    summary: Option<Tally>,
}

impl<'a> Verdicts<'a> {
    fn new(not_yet: Option<&'a [&'a str]>) -> Self {
        Verdicts { not_yet, wrong: Vec::new(), told: BTreeSet::new(), counted: [0; 3], summary: None }
    }

    fn read(&mut self, line: &str) {
        let (verdict, rest) = line.split_once(' ').unwrap_or((line, ""));
        let name = rest.split_whitespace().next().unwrap_or_default();
        let expected = self.not_yet.is_some_and(|list| list.contains(&name));
        let Some(index) = ["PASS", "FAIL", "SKIP"].iter().position(|known| *known == verdict) else {
            self.summary = summary(line).or(self.summary);
            return;
        };
        self.counted[index] += 1;
        if expected {
            self.told.insert(name.to_owned());
        }
        // A check that fails for another reason than that the call is refused has found a bug.
        let refused = ["not supported yet", "Unimplemented", "not implemented"];
        let refused = refused.iter().any(|words| line.contains(words));
        match (verdict, expected) {
            ("PASS", true) => {
                self.wrong.push(format!("{line}: passes now, take it off the list of what is not there yet"));
            }
            ("FAIL" | "SKIP", true) if !refused => {
                self.wrong.push(format!("{line}: expected to be refused as not supported yet"));
            }
            ("FAIL", false) => self.wrong.push(line.to_owned()),
            // What a node lacks is not the runtime's doing; a suite that skips all has passed nothing.
            ("SKIP", false) if self.not_yet.is_some() && !rest.contains("): this node ") => {
                self.wrong.push(line.to_owned());
            }
            _ => {}
        }
    }

    /// With the suite's exit code; `whole` unless only some of its checks were asked for.
    fn judge(mut self, code: Option<i32>, whole: bool) -> Result<()> {
        let silent = self.not_yet.unwrap_or_default().iter().filter(|name| !self.told.contains(**name));
        if whole {
            self.wrong.extend(silent.map(|name| format!("{name}: no such check, take it off the list")));
        }
        if !self.wrong.is_empty() {
            bail!("{} checks did not come out as they should:\n{}", self.wrong.len(), self.wrong.join("\n"));
        }
        let Some(summary) = self.summary else {
            bail!("the CRI suite ended with {code:?} and without its closing line");
        };
        let [passed, failed, _] = self.counted;
        // As the suite's main says.
        let wanted = i32::from(failed > 0 || passed == 0);
        if summary != self.counted || code != Some(wanted) || passed == 0 {
            bail!("the CRI suite counted {summary:?} of {:?} and ended with {code:?}", self.counted);
        }
        Ok(())
    }
}

/// `12 passed, 1 failed, 0 skipped in 3.4 s`.
fn summary(line: &str) -> Option<Tally> {
    let mut parts = line.split_once(" in ")?.0.split(", ");
    let mut next = |word: &str| parts.next()?.strip_suffix(word)?.trim_end().parse().ok();
    Some([next("passed")?, next("failed")?, next("skipped")?])
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOT_YET: &[&str] = &["a/later", "b/later"];
    const REFUSED: &str =
        "FAIL a/later (3 ms): CreateContainer: rpc error: it is not supported yet: leave it unset";
    const UNKNOWN: &str = "SKIP b/later (1 ms): ListThings is not implemented";

    fn judge(not_yet: Option<&[&str]>, lines: &[&str], code: i32) -> Result<(), String> {
        let mut verdicts = Verdicts::new(not_yet);
        lines.iter().for_each(|line| verdicts.read(line));
        verdicts.judge(Some(code), true).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_refused_as_expected_is_good_when_the_suite_says_so_to_its_end() {
        let lines = ["PASS a/b (1 ms)", REFUSED, UNKNOWN, "1 passed, 1 failed, 1 skipped in 0.1 s"];
        assert_eq!(judge(Some(NOT_YET), &lines, 1), Ok(()));
        // It died after the last check, or was killed, or lost a line.
        assert!(judge(Some(NOT_YET), &lines[..3], 1).is_err());
        assert!(judge(Some(NOT_YET), &lines, 2).is_err());
        assert!(judge(Some(NOT_YET), &lines, 0).is_err());
        let short = ["PASS a/b (1 ms)", REFUSED, UNKNOWN, "2 passed, 1 failed, 1 skipped in 0.1 s"];
        assert!(judge(Some(NOT_YET), &short, 1).is_err());
    }

    #[test]
    fn every_name_of_the_list_has_to_be_refused() {
        let with = |line: &str, tally: &str, code| {
            judge(Some(NOT_YET), &["PASS a/b (1 ms)", REFUSED, line, &format!("{tally} in 0.1 s")], code)
        };
        let gone =
            judge(Some(NOT_YET), &["PASS a/b (1 ms)", REFUSED, "1 passed, 1 failed, 0 skipped in 0.1 s"], 1);
        assert!(gone.unwrap_err().contains("b/later: no such check"));
        let passes = with("PASS b/later (1 ms)", "2 passed, 1 failed, 0 skipped", 1);
        assert!(passes.unwrap_err().contains("passes now"));
        let broken = with("FAIL b/later (1 ms): panic: nil", "1 passed, 2 failed, 0 skipped", 1);
        assert!(broken.unwrap_err().contains("expected to be refused"));
    }

    #[test]
    fn other_failures_and_skips_are_named() {
        let lines = ["PASS a/b (1 ms)", "SKIP c/d (1 ms): no", "1 passed, 0 failed, 1 skipped in 0.1 s"];
        assert!(judge(Some(&[]), &lines, 0).unwrap_err().contains("SKIP c/d"));
        let lines = [
            "PASS a/b (1 ms)",
            "SKIP c/d (1 ms): this node has no x",
            "1 passed, 0 failed, 1 skipped in 0.1 s",
        ];
        assert_eq!(judge(Some(&[]), &lines, 0), Ok(()));
        let lines = ["PASS a/b (1 ms)", "SKIP c/d (1 ms): no", "1 passed, 0 failed, 1 skipped in 0.1 s"];
        // A peer may lack things.
        assert_eq!(judge(None, &lines, 0), Ok(()));
        let lines = ["FAIL a/b (1 ms): x", "0 passed, 1 failed, 0 skipped in 0.1 s"];
        assert!(judge(None, &lines, 1).unwrap_err().contains("FAIL a/b (1 ms): x"));
        assert!(judge(None, &["0 passed, 0 failed, 0 skipped in 0.0 s"], 1).is_err());
    }
}
