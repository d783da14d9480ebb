//! `kind load`, by kind's own code: it finds `ctr` and `containerd`, which are gantry by those names, and upstream's
//! crictl.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gantry_tests::image::Built;
use gantry_tests::leakcheck::{Scope, Snapshot};
use gantry_tests::node::Roots;
use gantry_tests::peers::Programs;
use gantry_tests::poll::poll;
use gantry_tests::ready::web_image;
use gantry_tests::standalone::Standalone;
use gantry_tests::{place, saved};

/// The commands of a node of kind's, and the way from them to the runtime.
struct KindNode {
    path: String,
    socket: PathBuf,
}

impl KindNode {
    fn new(folder: &Path, socket: PathBuf) -> Result<Self> {
        std::fs::create_dir_all(folder)?;
        for name in ["ctr", "containerd"] {
            symlink(place::bin_dir()?.join("gantry"), folder.join(name))?;
        }
        let crictl = Programs::kind("crictl")?;
        symlink(crictl, folder.join("crictl"))?;
        Ok(Self { path: folder.display().to_string(), socket })
    }

    fn run(&self, program: &Path, words: &[&str]) -> Result<Output> {
        Command::new(program)
            .args(words)
            .env("PATH", &self.path)
            .env("CONTAINERD_ADDRESS", &self.socket)
            .env("CONTAINER_RUNTIME_ENDPOINT", format!("unix://{}", self.socket.display()))
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("run {}", program.display()))
    }

    /// What kind's own code says.
    fn kind(&self, words: &[&str]) -> Result<String> {
        let output = self.run(&Programs::kind("kind")?, words)?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "kind {}: {said}", words.join(" "));
        Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
    }
}

fn image(environment: &str) -> Result<Built> {
    let mut image = web_image()?;
    image.env.push(environment.to_owned());
    image.build()
}

/// Pods that never pull.
fn pods(images: &[(&str, &str)]) -> String {
    let pod = |(name, image): &(&str, &str)| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  terminationGracePeriodSeconds: 5\n  \
             containers:\n  - name: web\n    image: {image}\n    imagePullPolicy: Never\n"
        )
    };
    images.iter().map(pod).collect::<Vec<_>>().join("---\n")
}

fn await_running(run: &Standalone, pods: usize) -> Result<()> {
    poll(&format!("{pods} pods to run"), Duration::from_secs(60), || {
        let text = run.gantry_ok("ps", &[]).map_err(|error| format!("{error:#}"))?;
        if text.matches("1/1").count() == pods { Ok(()) } else { Err(text) }
    })
}

#[test]
fn pods_run_from_what_kind_loads_and_tags() -> Result<()> {
    place::require_own_namespaces()?;
    let roots = Roots::new()?;
    let scope = Scope { folders: Vec::new(), ..roots.scope() };
    let before = Snapshot::take(&scope)?;
    let node = KindNode::new(&roots.path("bin"), roots.path("agent.sock"))?;
    let archive = roots.path("images.tar");
    let file = archive.display().to_string();
    let (classic, layout, unnamed) = (image("OF=classic")?, image("OF=layout")?, image("OF=nobody")?);
    let manifest = pods(&[
        ("classic", "classic.example/web:v1"),
        ("layout", "docker.io/library/web:v1"),
        ("tagged", "tagged.example/web:v2"),
    ]);
    let mut run = Standalone::start(roots, &manifest)?;
    poll("the pods to want their images", Duration::from_secs(30), || {
        let text = run.gantry_ok("ps", &[]).map_err(|error| format!("{error:#}"))?;
        if text.matches("ErrImageNeverPull").count() == 3 { Ok(()) } else { Err(text) }
    })?;
    // kind loads where this fails.
    ensure!(node.kind(&["id", "classic.example/web:v1"]).is_err(), "there before it was loaded");

    std::fs::write(&archive, saved::classic(&classic, &["classic.example/web:v1"])?)?;
    node.kind(&["load", &file])?;
    std::fs::write(&archive, saved::layout(&layout, "docker.io/library/web:v1")?)?;
    node.kind(&["load", &file])?;
    await_running(&run, 2)?;
    assert_eq!(node.kind(&["id", "classic.example/web:v1"])?, classic.config.digest);
    // As the user of docker writes it.
    assert_eq!(node.kind(&["id", "web:v1"])?, layout.config.digest);

    assert_eq!(node.kind(&["tags", &classic.config.digest])?, "classic.example/web:v1");
    node.kind(&["tag", &classic.config.digest, "tagged.example/web:v2"])?;
    let tags = node.kind(&["tags", &classic.config.digest])?;
    assert_eq!(tags, "classic.example/web:v1\ntagged.example/web:v2");
    await_running(&run, 3)?;

    std::fs::write(&archive, saved::classic(&unnamed, &[])?)?;
    node.kind(&["load", &file])?;
    assert_eq!(node.kind(&["id", &unnamed.config.digest])?, unnamed.config.digest);
    assert_eq!(node.kind(&["tags", &unnamed.config.digest])?, "");

    let ctr = Path::new(&node.path).join("ctr");
    let refused = node.run(&ctr, &["--namespace=k8s.io", "containers", "ls"])?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(!refused.status.success() && said.contains("crictl"), "{said}");
    // A name of another image is taken only by force.
    let words = ["--namespace=k8s.io", "images", "tag", "web:v1", "tagged.example/web:v2"];
    let refused = node.run(&ctr, &words)?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(!refused.status.success() && said.contains("--force"), "{said}");

    run.interrupt()?;
    run.await_end()?;
    drop(run);
    before.await_clean(&scope)
}
