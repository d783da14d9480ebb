//! What the demo shows, in order. Owns the order, and checks of each step that it showed what it
//! promised; never how it looks (that is `stage`). Called by `super`.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gantry_tests::image::{Image, Layer};
use gantry_tests::node::Roots;
use gantry_tests::poll::poll;
use gantry_tests::registry::Registry;
use gantry_tests::standalone::Standalone;
use gantry_tests::{http, place, proc};
use serde_json::Value;

use super::stage::{self, title};

/// As in demo/web.yaml.
const REGISTRY_PORT: u16 = 5000;
const PORT: u16 = 8080;
const HOST_PORT: u16 = 8088;
/// Of the built-in network.
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 87, 0, 1);

/// The whole of it; gives back the folders of the node.
pub(super) fn show(roots: Roots, out: &Path) -> Result<Roots> {
    title("an image of three layers", "served by a registry on loopback: nothing comes from the internet");
    let registry = Registry::start_at((Ipv4Addr::LOCALHOST, REGISTRY_PORT).into())?;
    println!("pushed {}", registry.push("demo/web", "v1", &image()?.build()?)?);

    title("a pod", "an init container writes a page, a server serves it, a sidecar visits it");
    let mut web = stage::run(roots, "web.yaml")?;
    let shown = life_of_web(&mut web, out);
    let roots = ended(web, shown)?;

    title(
        "a pod that wants too much",
        "the kernel ends what exceeds its memory limit; Gantry tells who it was",
    );
    let mut hog = stage::run(roots, "hog.yaml")?;
    let shown = life_of_hog(&mut hog);
    ended(hog, shown)
}

/// Waits for the end of `gantry run`, or shows what it said when something went wrong.
fn ended(mut run: Standalone, shown: Result<()>) -> Result<Roots> {
    if shown.is_err() {
        stage::said(&run);
    }
    shown?;
    let status = run.await_end()?;
    println!("\nmeanwhile `gantry run` said:");
    stage::said(&run);
    ensure!(status.success(), "gantry run ended with {status}");
    let roots = run.into_roots();
    for name in ["run.out", "run.err"] {
        std::fs::remove_file(roots.path(name)).with_context(|| format!("remove {name}"))?;
    }
    Ok(roots)
}

fn life_of_web(run: &mut Standalone, out: &Path) -> Result<()> {
    let ip = run.await_pods("the pod to be ready", 60, |pods| {
        let pod = &pods.first()?;
        let ready = pod.pointer("/containers/0/ready")? == true;
        ready.then(|| pod["ip"].as_str().map(str::to_owned))?
    })?;
    stage::gantry(run, "ps", &["-o", "wide"])?;

    title("the page", "by the pod's own address, and by its hostPort on loopback and on the bridge");
    let pod: Ipv4Addr = ip.parse().with_context(|| format!("the pod's address {ip:?}"))?;
    for (host, port) in [(pod, PORT), (Ipv4Addr::LOCALHOST, HOST_PORT), (GATEWAY, HOST_PORT)] {
        fetch((host, port).into())?;
    }
    let log = stage::gantry(run, "logs", &["web", "-c", "server", "--tail", "3"])?;
    ensure!(log.contains("GET / HTTP/1.1"), "the log does not hold the requests");

    title("where did the time go?", "each stage of the start, from the YAML file to ready");
    let waterfall = stage::gantry(run, "timeline", &["web"])?;
    ensure!(waterfall.contains("sandbox"), "a waterfall without stages");
    let picture = out.join(super::PICTURE);
    stage::gantry(run, "timeline", &["web", "--svg", &picture.display().to_string()])?;
    ensure!(picture.is_file(), "{} was not written", picture.display());

    title("kill the server", "once: it is back at once; twice: only after 10 s, then 20 s, and so on");
    kill_server(run, 0)?;
    await_restarts(run, 1)?;
    stage::gantry(run, "ps", &[])?;
    kill_server(run, 1)?;
    run.await_pods("the back-off", 20, |pods| {
        let reason = pods.first()?.pointer("/containers/0/reason")?;
        (reason == "CrashLoopBackOff").then_some(())
    })?;
    stage::gantry(run, "ps", &[])?;
    stage::gantry(run, "explain", &["web"])?;
    println!("… waiting for it to come back");
    await_restarts(run, 2)?;
    stage::gantry(run, "ps", &[])?;
    fetch((Ipv4Addr::LOCALHOST, HOST_PORT).into())?;
    stage::gantry(run, "events", &["web"])?;

    title("the end", "the server is asked to end first, the sidecar after it");
    let stopped = stage::gantry(run, "stop", &["web"])?;
    ensure!(stopped.contains("exit code 0"), "the exit code is not the server's own");
    Ok(())
}

fn life_of_hog(run: &mut Standalone) -> Result<()> {
    run.await_pods("the pod to be out of memory twice", 60, |pods| {
        let container = pods.first()?.pointer("/containers/0")?;
        (container["lastReason"] == "OOMKilled" && container["reason"] == "CrashLoopBackOff").then_some(())
    })?;
    stage::gantry(run, "ps", &[])?;
    let told = stage::gantry(run, "explain", &["hog"])?;
    ensure!(told.contains("OOMKilled"), "the explanation does not name the cause");
    stage::gantry(run, "events", &["hog"])?;
    stage::gantry(run, "stop", &["hog"])?;
    Ok(())
}

fn fetch(addr: SocketAddr) -> Result<()> {
    println!("$ curl http://{addr}/");
    let page = poll("the page", Duration::from_secs(20), || {
        http::get(addr, "/").map_err(|error| format!("{error:#}"))
    })?;
    println!("{}", page.text());
    ensure!(page.status == 200 && page.text().contains("crane"), "that is not the image's page");
    Ok(())
}

/// The server that runs after so many restarts.
fn kill_server(run: &mut Standalone, restarts: u64) -> Result<()> {
    run.await_pods("the server to run", 20, |pods| {
        let server = pods.first()?.pointer("/containers/0")?;
        (server["state"] == "running" && server["restartCount"] == restarts).then_some(())
    })?;
    let is_server = |pid| proc::command_line(pid).starts_with("/workload web");
    let servers = proc::all()?.into_iter().map(|process| process.pid).filter(|&pid| is_server(pid));
    let [pid] = servers.collect::<Vec<_>>()[..] else {
        anyhow::bail!("there is not exactly one server");
    };
    println!("$ kill -9 {pid}");
    proc::kill(pid)
}

fn await_restarts(run: &mut Standalone, count: u64) -> Result<()> {
    run.await_pods("the server to be back", 40, |pods| {
        let server: &Value = pods.first()?.pointer("/containers/0")?;
        (server["restartCount"] == count && server["ready"] == true).then_some(())
    })
}

fn image() -> Result<Image> {
    let workload = place::bin_dir()?.join("gantry-workload");
    let workload = std::fs::read(&workload).with_context(|| format!("read {}", workload.display()))?;
    Ok(Image {
        layers: vec![
            Layer::busybox()?,
            Layer::default().file("workload", 0o755, workload),
            Layer::default()
                .dir("srv", 0o755)
                .file("srv/motto", 0o644, "a gantry is the crane that loads containers\n")
                .file("etc/motd", 0o644, "built on the spot\n"),
        ],
        entrypoint: vec!["/workload".into(), "web".into()],
        env: vec!["PATH=/bin".into()],
        user: "web".into(),
        workdir: "/srv".into(),
        ..Image::default()
    })
}
