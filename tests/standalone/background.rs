//! `gantry run --detach`, its death and its second life, and `gantry down`, as a user types them.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gantry_tests::leakcheck::{Scope, Snapshot};
use gantry_tests::node::{self, Roots};
use gantry_tests::poll::poll;
use gantry_tests::ready::web_image;
use gantry_tests::registry::Registry;
use gantry_tests::standalone::{flat, run_command};
use gantry_tests::{place, proc};
use rustix::process::{Pid, Signal};

fn pod(name: &str, image: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  terminationGracePeriodSeconds: 5\n  \
         containers:\n  - name: web\n    image: {image}\n"
    )
}

/// Two daemons on these roots; ended when dropped.
struct Background<'a> {
    roots: &'a Roots,
}

impl Background<'_> {
    /// `gantry run --detach pod.yaml --manifest-dir …`, in a folder that relative names need.
    fn up(&self, more: &[&str]) -> Result<Output> {
        run_command(self.roots, Path::new("pod.yaml"))?
            .args(["--detach", "--manifest-dir=manifests"])
            .args(more)
            .current_dir(self.roots.path(""))
            .output()
            .context("run gantry run --detach")
    }

    fn up_ok(&self) -> Result<String> {
        let output = self.up(&[])?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "{}: {said}{}", output.status, self.logs());
        Ok(said)
    }

    fn gantry(&self, words: &[&str]) -> Result<Output> {
        Command::new(place::bin_dir()?.join("gantry"))
            .args(words)
            .arg(format!("--agent-socket={}", self.roots.path("agent.sock").display()))
            .stdin(Stdio::null())
            .output()
            .context("run gantry")
    }

    /// Name, container ID and restarts of every pod, once this many run.
    fn containers(&self, count: usize) -> Result<Vec<(String, String, String)>> {
        poll("the pods to run", Duration::from_secs(60), || {
            let output = self.gantry(&["ps", "-o", "json"]).map_err(|error| format!("{error:#}"))?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let list = flat(&text).map_err(|error| format!("{error:#}{}", self.logs()))?;
            let mut found = Vec::new();
            for pod in &list {
                let container = &pod["containers"][0];
                if container["state"] == "running" {
                    let text = |value: &serde_json::Value| value.to_string().trim_matches('"').to_owned();
                    found.push((
                        text(&pod["name"]),
                        text(&container["id"]),
                        text(&container["restartCount"]),
                    ));
                }
            }
            found.sort();
            if found.len() == count && list.len() == count {
                Ok(found)
            } else {
                Err(format!("{text}{}", self.logs()))
            }
        })
    }

    fn down(&self) -> Result<Output> {
        self.gantry(&["down", &format!("--state={}", self.roots.path("state").display())])
    }

    /// Both daemons, by their flags.
    fn daemons(&self) -> Result<Vec<i32>> {
        let folder = self.roots.path("").display().to_string();
        let ours = |pid: &i32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).into_owned();
            line.contains("\0--daemon\0") && line.contains(&folder)
        };
        Ok(proc::all()?.into_iter().map(|process| process.pid).filter(ours).collect())
    }

    fn kill(&self) -> Result<usize> {
        let pids = self.daemons()?;
        for pid in &pids {
            let pid = Pid::from_raw(*pid).context("no pid")?;
            rustix::process::kill_process(pid, Signal::KILL)?;
        }
        // One without a command line answers nobody any more, though its socket may still take calls.
        poll("the daemons to be dead", Duration::from_secs(10), || match self.daemons() {
            Ok(left) if left.is_empty() => Ok(()),
            left => Err(format!("{left:?}")),
        })?;
        Ok(pids.len())
    }

    fn logs(&self) -> String {
        let tail = |name: &str| node::tail(&self.roots.path("state").join(name));
        format!("\nruntime: {}\nagent: {}", tail("runtime.log"), tail("agent.log"))
    }
}

impl Drop for Background<'_> {
    fn drop(&mut self) {
        // What it leaves is swept with the roots.
        let _ = self.kill();
    }
}

#[test]
fn a_detached_node_that_was_killed_whole_adopts_its_pods_and_goes_down_clean() -> Result<()> {
    place::require_own_namespaces()?;
    let registry = Registry::start()?;
    let image = registry.push("demo/web", "v1", &web_image()?.build()?)?;
    let roots = Roots::new()?;
    let scope = Scope { folders: Vec::new(), ..roots.scope() };
    let before = Snapshot::take(&scope)?;
    std::fs::write(roots.path("pod.yaml"), pod("web", &image))?;
    std::fs::create_dir(roots.path("manifests"))?;
    std::fs::write(roots.path("manifests/fixed.yaml"), pod("fixed", &image))?;
    let background = Background { roots: &roots };

    let said = background.up_ok()?;
    assert!(said.contains("1 pod runs in the background") && said.contains("gantry down"), "{said}");
    let first = background.containers(2)?;
    assert!(first[0].0.starts_with("fixed-") && first[1].0 == "web", "{first:?}");
    for pid in background.daemons()? {
        let pid = Pid::from_raw(pid).context("no pid")?;
        assert_eq!(rustix::process::getsid(Some(pid))?, pid, "each has a session of its own");
    }

    let again = background.up(&[])?;
    let said = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(again.status.code() == Some(1) && said.contains("gantry down --state"), "{said}");

    assert_eq!(background.kill()?, 2);
    background.up_ok()?;
    assert_eq!(background.containers(2)?, first, "same containers, no restart");

    // A pod of the folder goes with its file.
    std::fs::remove_file(roots.path("manifests/fixed.yaml"))?;
    assert_eq!(background.containers(1)?, [first[1].clone()]);

    let down = background.down()?;
    let said = format!("{}{}", String::from_utf8_lossy(&down.stdout), String::from_utf8_lossy(&down.stderr));
    assert!(down.status.success() && said.contains("the runtime has ended"), "{said}{}", background.logs());
    assert_eq!(background.daemons()?, Vec::<i32>::new());
    let nobody = background.down()?;
    assert!(!nobody.status.success(), "there is nothing to end");
    before.await_clean(&scope)
}

#[test]
fn a_daemon_that_cannot_start_is_shown_with_its_last_words_and_none_stays() -> Result<()> {
    place::require_own_namespaces()?;
    let roots = Roots::new()?;
    let scope = Scope { folders: Vec::new(), ..roots.scope() };
    let before = Snapshot::take(&scope)?;
    std::fs::write(roots.path("pod.yaml"), pod("web", "127.0.0.1:1/x:v1"))?;
    std::fs::create_dir(roots.path("manifests"))?;
    let background = Background { roots: &roots };
    // The runtime refuses the first, and the agent what is in its socket's place then.
    for (flag, word) in
        [("--unset-seccomp-profile=nonsense", "nonsense"), ("--cni-external", "is not a socket")]
    {
        let output = background.up(&[flag])?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{flag}: {said}");
        assert!(said.contains(word) && said.contains(".log"), "{flag}: {said}");
        assert_eq!(background.daemons()?, Vec::<i32>::new(), "{flag}: {said}");
        std::fs::create_dir_all(roots.path("agent.sock"))?;
    }
    before.await_clean(&scope)
}
