//! `cargo xtask demo`: one pod from a YAML file, end to end, shown as a user would see it. Runs in
//! namespaces of its own, so that the host keeps its links and settings; afterwards it looks for
//! anything left. Never hides a command: each is printed before it runs. Called by `main`.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use gantry_tests::image::{Image, Layer};
use gantry_tests::leakcheck::{self, Scope, Snapshot};
use gantry_tests::poll::poll;
use gantry_tests::registry::Registry;
use gantry_tests::{http, place};
use serde_json::json;

use crate::cell::Cell;
use crate::leakcheck::checked as leakcheck_around;
use crate::{build, sh};

const BRIDGE: &str = "gantry-demo0";
const TAG: &str = "gantry-demo";
const PORT: u16 = 8080;

/// Builds, then runs the other half in new namespaces.
pub(crate) fn outside(release: bool) -> Result<()> {
    sh::require_root("the demo")?;
    let programs = build::build(release)?;
    let own = std::env::current_exe().context("find this program")?;
    let cell = Cell::new()?;
    let mut command = leakcheck_around(&cell)?;
    let ran = sh::run(command.arg(own).arg("demo-inside").env(place::BIN_DIR, programs));
    let closed = cell.close();
    ran.and(closed)
}

/// Everything the demo has on disk, and the agent under way.
struct Demo {
    folder: PathBuf,
    gantry: PathBuf,
}

/// The demo itself.
pub(crate) fn inside() -> Result<()> {
    place::require_own_namespaces()?;
    let scratch = tempfile::Builder::new().prefix("gantry-demo-").tempdir()?;
    let gantry = place::bin_dir()?.join("gantry");
    let demo = Demo { folder: scratch.path().to_owned(), gantry };
    let scope = Scope {
        cgroup_tag: TAG.to_owned(),
        folders: vec![demo.path("netns"), demo.path("cache")],
        leases: demo.path("leases"),
        ..Scope::default()
    };
    let before = Snapshot::take(&scope)?;
    let shown = demo.show();
    // The bridge outlives pods by design, as upstream's does; this one is the demo's own.
    leakcheck::remove_bridges(&[BRIDGE.to_owned()]);
    if let Err(error) = shown {
        leakcheck::sweep(&scope, scratch.path());
        return Err(error);
    }
    title("is anything left?");
    before.await_clean(&scope)?;
    // The node's own two root cgroups are empty now; a node that stayed would keep them.
    leakcheck::remove_node_cgroups(TAG)?;
    say("no process, mount, link, network namespace, cgroup or lease is left");
    Ok(())
}

impl Demo {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn show(&self) -> Result<()> {
        title("an image of three layers, served by a registry on loopback");
        let registry = Registry::start()?;
        let reference = push_image(&registry)?;
        say(&format!("pushed {reference}"));

        title("a pod");
        let manifest = manifest(&reference);
        println!("{manifest}");
        std::fs::write(self.path("pod.yaml"), &manifest)?;
        self.write_network()?;

        title("gantry run pod.yaml");
        let mut run = self.run()?;
        let done = self.watch(&mut run);
        if done.is_err() {
            // Its log is the best explanation there is.
            let said = std::fs::read_to_string(self.path("run.log")).unwrap_or_default();
            println!("{said}");
            // Ended already when this fails.
            let _ = run.kill();
        }
        let ended = run.wait().context("wait for gantry run")?;
        done?;
        title("what gantry run said");
        println!("{}", std::fs::read_to_string(self.path("run.log"))?);
        ensure!(ended.success(), "gantry run ended with {ended}");
        Ok(())
    }

    fn watch(&self, run: &mut Child) -> Result<()> {
        let ip = self.await_ip(run)?;
        self.gantry("ps", &[])?;
        title(&format!("the page of http://{ip}:{PORT}/"));
        let addr = format!("{ip}:{PORT}").parse().context("the pod's address")?;
        let page = poll("the page", Duration::from_secs(20), || {
            http::get(addr, "/").map_err(|error| format!("{error:#}"))
        })?;
        println!("{} {}", page.status, page.text());
        ensure!(page.status == 200 && page.text().contains("crane"), "that is not the image's page");
        let log = self.gantry("logs", &["web"])?;
        ensure!(log.contains("GET / HTTP/1.1"), "the log does not hold the request");
        self.gantry("timeline", &["web"])?;
        let stopped = self.gantry("stop", &["web"])?;
        ensure!(stopped.contains("exit code 0"), "the exit code is not the server's own");
        poll("gantry run to end", Duration::from_secs(30), || match run.try_wait() {
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err("still there".to_owned()),
            Err(error) => Err(error.to_string()),
        })
    }

    fn run(&self) -> Result<Child> {
        let log = File::create(self.path("run.log"))?;
        let at = |flag: &str, name: &str| format!("--{flag}={}", self.path(name).display());
        Command::new(&self.gantry)
            .arg("run")
            .arg(self.path("pod.yaml"))
            .args([at("root", "root"), at("state", "state"), at("cni-conf-dir", "net.d")])
            .args([at("cni-cache-dir", "cache"), at("cni-data-dir", "leases"), at("netns-dir", "netns")])
            .args([at("agent-socket", "agent.sock"), at("pod-logs-dir", "logs")])
            .args([
                format!("--cgroup-root=/{TAG}"),
                format!("--programs-dir={}", place::bin_dir()?.display()),
            ])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("start gantry run")
    }

    fn await_ip(&self, run: &mut Child) -> Result<String> {
        let running = poll("the pod to run", Duration::from_secs(60), || {
            if let Ok(Some(status)) = run.try_wait() {
                return Ok(Err(anyhow!("gantry run ended with {status}")));
            }
            let output = self.call("ps", &["--output=json"]).map_err(|error| format!("{error:#}"))?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let pods: serde_json::Value =
                serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))?;
            let pod = &pods[0];
            match (pod["phase"].as_str(), pod["ip"].as_str()) {
                (Some("Running"), Some(ip)) if !ip.is_empty() => Ok(Ok(ip.to_owned())),
                _ => Err(text),
            }
        });
        running.flatten()
    }

    /// A gantry command, shown with its output.
    fn gantry(&self, command: &str, args: &[&str]) -> Result<String> {
        title(&format!("gantry {command} {}", args.join(" ")));
        let output = self.call(command, args)?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        println!("{text}");
        if !output.status.success() {
            bail!("gantry {command}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
        }
        Ok(text)
    }

    fn call(&self, command: &str, args: &[&str]) -> Result<Output> {
        Command::new(&self.gantry)
            .arg(command)
            .args(args)
            .arg(format!("--agent-socket={}", self.path("agent.sock").display()))
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("run gantry {command}"))
    }

    fn write_network(&self) -> Result<()> {
        std::fs::create_dir_all(self.path("net.d"))?;
        let conflist = json!({
            "cniVersion": "1.1.0",
            "name": TAG,
            "plugins": [{
                "type": "bridge",
                "bridge": BRIDGE,
                "isGateway": true,
                "hairpinMode": true,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{ "subnet": "10.88.77.0/24" }]],
                    "routes": [{ "dst": "0.0.0.0/0" }],
                },
            }],
        });
        let path = self.path("net.d/10-demo.conflist");
        std::fs::write(&path, serde_json::to_vec_pretty(&conflist)?)
            .with_context(|| path.display().to_string())
    }
}

fn push_image(registry: &Registry) -> Result<String> {
    let workload = place::bin_dir()?.join("gantry-workload");
    let image = Image {
        layers: vec![
            Layer::busybox()?,
            Layer::default().file("workload", 0o755, read(&workload)?),
            Layer::default()
                .dir("srv", 0o755)
                .file("srv/index.html", 0o644, "a gantry is the crane that loads containers\n")
                .file("etc/motd", 0o644, "built on the spot\n"),
        ],
        entrypoint: vec!["/workload".into(), "web".into()],
        cmd: vec![PORT.to_string(), "/srv/index.html".into()],
        env: vec!["PATH=/bin".into()],
        user: "web".into(),
        workdir: "/srv".into(),
    };
    registry.push("demo/web", "v1", &image.build()?)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("read {}", path.display()))
}

fn manifest(reference: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\nspec:\n  restartPolicy: Never\n  containers:\n  \
         - name: web\n    image: {reference}\n    ports:\n    - containerPort: {PORT}\n    resources:\n      \
         requests:\n        cpu: 100m\n      limits:\n        cpu: 500m\n        memory: 64Mi\n"
    )
}

fn title(text: &str) {
    println!("\n=== {text}");
}

fn say(text: &str) {
    println!("{text}");
}
