//! The same program under the name `kubelet`: its command line, static pods without an API server,
//! and its end.

mod cpus;
mod listens;
mod whole_node;

use std::fs::OpenOptions;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use gantry_tests::leakcheck::{Scope, Snapshot, tagged_cgroups};
use gantry_tests::node::{Node, Roots};
use gantry_tests::place;
use gantry_tests::poll::{bound, poll};
use gantry_tests::prometheus::{Labels, Scrape};
use gantry_tests::ready::web_image;
use gantry_tests::registry::Registry;
use rustix::process::{Pid, Signal, kill_process};

/// A kubelet beside a runtime; killed when dropped.
struct Kubelet {
    child: Child,
    log: PathBuf,
}

/// The mount that a kubelet makes of its root, and leaves for the next one.
struct SharedRootMount<'a>(&'a Roots);

impl SharedRootMount<'_> {
    fn is_there(&self) -> Result<bool> {
        let root = self.0.path("kubelet").canonicalize()?.display().to_string();
        let table = std::fs::read_to_string("/proc/self/mountinfo")?;
        let is_root = |line: &&str| line.split(' ').nth(4) == Some(root.as_str());
        Ok(table.lines().find(is_root).is_some_and(|line| line.contains(" shared:")))
    }
}

impl Drop for SharedRootMount<'_> {
    fn drop(&mut self) {
        // A kubelet that did not get so far made none.
        let _ = rustix::mount::unmount(self.0.path("kubelet"), rustix::mount::UnmountFlags::DETACH);
    }
}

fn link_as_kubelet(roots: &Roots) -> Result<PathBuf> {
    let path = roots.path("kubelet-program");
    std::fs::create_dir_all(&path)?;
    let path = path.join("kubelet");
    if !path.exists() {
        symlink(place::bin_dir()?.join("gantry"), &path)?;
    }
    Ok(path)
}

impl Kubelet {
    fn start(roots: &Roots, flags: &[String], variables: &[(&str, &str)]) -> Result<Self> {
        let mut command = Command::new(link_as_kubelet(roots)?);
        Self::spawn(roots, command.args(flags).envs(variables.iter().copied()))
    }

    fn spawn(roots: &Roots, command: &mut Command) -> Result<Self> {
        let log = roots.path("kubelet.log");
        let file = OpenOptions::new().create(true).append(true).open(&log)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .context("start the kubelet")?;
        Ok(Self { child, log })
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).context("a pid")?;
        Ok(kill_process(pid, signal)?)
    }

    fn ends(&mut self) -> Result<ExitStatus> {
        poll("the kubelet to end", Duration::from_secs(30), || match self.child.try_wait() {
            Ok(Some(status)) => Ok(status),
            other => Err(format!("{other:?}")),
        })
        .with_context(|| self.log())
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        // One that has ended is what was wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn output(roots: &Roots, words: &[&str]) -> Result<Output> {
    Command::new(link_as_kubelet(roots)?).args(words).output().context("run the kubelet")
}

/// The whole answer.
fn http(port: u16, request: &str) -> Result<String, String> {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(bound(Duration::from_secs(20))))?;
        write!(stream, "{request} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    };
    ask().map_err(|error| error.to_string())
}

fn healthy(kubelet: &Kubelet) -> Result<()> {
    poll("the kubelet to be well", Duration::from_secs(60), || {
        let text = http(10248, "GET /healthz").map_err(|error| format!("{error}\n{}", kubelet.log()))?;
        if text.starts_with("HTTP/1.1 200") && text.ends_with("ok") { Ok(()) } else { Err(text) }
    })
}

/// The configuration file and the flags of a kubelet on a node's roots.
fn flags(roots: &Roots, more: &str) -> Result<Vec<String>> {
    let at = |name: &str| roots.path(name).display().to_string();
    std::fs::create_dir_all(roots.path("manifests"))?;
    let config = format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nfailCgroupV1: false\n\
         failSwapOn: false\nstaticPodPath: manifests\npodLogsDir: {}\ncgroupRoot: /{}\n\
         containerRuntimeEndpoint: unix://{}\nfileCheckFrequency: 1s\nauthentication: {{webhook: {{enabled: false}}}}\n\
         authorization: {{mode: AlwaysAllow}}\nreadOnlyPort: 10255\nmaxOpenFiles: 4096\noomScoreAdj: 5\n{more}",
        at("logs"),
        roots.tag(),
        at("cri.sock"),
    );
    std::fs::write(roots.path("config.yaml"), config)?;
    Ok(vec![
        format!("--config={}", at("config.yaml")),
        format!("--root-dir={}", at("kubelet")),
        format!("--cert-dir={}", at("pki")),
        "--hostname-override=Node-1".to_owned(),
        "--v=4".to_owned(),
    ])
}

/// The cgroup of all pods and those of the classes, parents first.
fn kubepods(roots: &Roots) -> Result<Vec<PathBuf>> {
    let below = |folder: &PathBuf| folder.components().any(|part| part.as_os_str() == "kubepods");
    Ok(tagged_cgroups(roots.tag())?.into_iter().filter(below).collect())
}

/// enforceNodeAllocatable: all pods together get no more memory than there is.
fn pods_are_held(roots: &Roots) -> Result<()> {
    let own = |folder: &&PathBuf| folder.ends_with("kubepods");
    let limits = kubepods(roots)?;
    let mut limits = limits.iter().filter(own).flat_map(|folder| {
        ["memory.limit_in_bytes", "memory.max"].map(|file| std::fs::read_to_string(folder.join(file)))
    });
    let limit: u64 = limits.find_map(Result::ok).context("no cgroup of all pods")?.trim().parse()?;
    let meminfo = std::fs::read_to_string("/proc/meminfo")?;
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next());
    let total: u64 = total.context("MemTotal")?.parse()?;
    assert_eq!(limit, total * 1024, "nothing is reserved");
    Ok(())
}

/// With a cgroupRoot of its own, what is measured is measured there.
fn pods_are_measured(roots: &Roots) -> Result<()> {
    let answer = http(10255, "GET /metrics/cadvisor").map_err(|error| anyhow!(error))?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no body")?;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let scrape = Scrape::read(body)?;
    let below = format!("/{}/kubepods/", roots.tag());
    for name in ["container_memory_cache", "container_processes", "container_spec_cpu_shares"] {
        let of = |(labels, _): &&(Labels, f64)| labels.get("container").is_some_and(|own| own == "web");
        let found = scrape.samples.get(name).and_then(|all| all.iter().find(of)).context(name)?;
        assert!(found.0["id"].starts_with(&below), "{found:?}");
    }
    Ok(())
}

/// A kubelet keeps them beyond its own end, as upstream.
fn remove_kubepods(roots: &Roots) -> Result<()> {
    for folder in kubepods(roots)?.iter().rev() {
        std::fs::remove_dir(folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    Ok(())
}

#[test]
fn the_command_line_is_upstreams() -> Result<()> {
    let roots = Roots::new()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let version = output(&roots, &["--version"])?;
    let version_text = text(&version.stdout);
    assert!(
        version.status.success() && version_text.starts_with("Kubernetes v1.36.3+gantry."),
        "{version_text}"
    );
    assert_eq!(version_text.lines().count(), 1);
    let help = output(&roots, &["--help"])?;
    assert!(help.status.success() && text(&help.stdout).contains("--container-runtime-endpoint"));
    for (words, told) in [
        (&["--nonsense"][..], "failed to parse kubelet flag: unknown flag: --nonsense"),
        (&["start"], "unknown command start"),
        (&["--config=/nowhere"], "failed to load kubelet config file"),
        (&["--fail-cgroupv1=false", "--feature-gates=Nonsense=true"], "unrecognized feature gate: Nonsense"),
        (
            &["--fail-cgroupv1=false", "--reserved-cpus=x"],
            "unable to parse reservedSystemCPUs (--reserved-cpus) x",
        ),
    ] {
        let answer = output(&roots, words)?;
        let told_text = text(&answer.stderr);
        assert_eq!(answer.status.code(), Some(1), "{words:?}");
        assert!(told_text.contains("\"command failed\" err=\"") && told_text.contains(told), "{told_text}");
    }
    if !Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        // A file that does not say otherwise.
        let bare = roots.path("bare.yaml");
        std::fs::write(&bare, "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n")?;
        let answer = output(&roots, &[&format!("--config={}", bare.display())])?;
        let told = text(&answer.stderr);
        assert!(told.contains("kubelet is configured to not run on a host using cgroup v1"), "{told}");
    }
    let old = output(&roots, &["--max-pods=3", "--nonsense"])?;
    assert!(text(&old.stderr).contains("Flag --max-pods has been deprecated, This parameter"));
    Ok(())
}

#[test]
fn a_kubelet_runs_static_pods_without_an_api_server() -> Result<()> {
    place::require_own_namespaces()?;
    let registry = Registry::start()?;
    let image = registry.push("demo/web", "v1", &web_image()?.build()?)?;
    let node = Node::start()?;
    let roots = node.roots();
    let before = Snapshot::take(&Scope { folders: Vec::new(), ..roots.scope() })?;
    let shared = SharedRootMount(roots);
    let flags = flags(roots, "")?;
    let systemd = roots.path("notify");
    let notify = UnixDatagram::bind(&systemd)?;
    notify.set_read_timeout(Some(bound(Duration::from_secs(60))))?;
    let variables = [("NOTIFY_SOCKET", systemd.display().to_string())];
    let variables: Vec<(&str, &str)> =
        variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let mut kubelet = Kubelet::start(roots, &flags, &variables)?;
    let mut state = [0u8; 64];
    let length = notify.recv(&mut state).with_context(|| kubelet.log())?;
    assert_eq!(state.get(..length), Some(&b"READY=1"[..]));
    healthy(&kubelet)?;
    assert!(shared.is_there()?, "mounts below the root reach nobody");
    assert!(http(10248, "HEAD /healthz").map_err(|e| anyhow!(e))?.starts_with("HTTP/1.1 200"));
    let manifest = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec:\n  containers:\n  - {{name: web, image: '{image}'}}\n"
    );
    std::fs::write(roots.path("manifests/web.yaml"), manifest)?;
    let running = poll("the static pod to run", Duration::from_secs(90), || {
        let pods = http(10255, "GET /pods")?;
        let is_up = pods.contains("\"web-node-1\"") && pods.contains("\"phase\":\"Running\"");
        if is_up { Ok(pods) } else { Err(format!("{pods}\n{}", kubelet.log())) }
    })?;
    assert!(running.contains("kubernetes.io/config.source"), "{running}");
    let folders: Vec<String> = std::fs::read_dir(roots.path("logs"))?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<_>>()?;
    assert!(folders.iter().any(|name| name.starts_with("default_web-node-1_")), "podLogsDir: {folders:?}");
    let own = |name: &str| std::fs::read_to_string(format!("/proc/{}/{name}", kubelet.child.id()));
    assert_eq!(own("oom_score_adj")?.trim(), "5");
    assert!(own("limits")?.lines().any(|line| line.starts_with("Max open files") && line.contains("4096")));
    TcpStream::connect(("127.0.0.1", 10250)).context("the API's port")?;
    pods_are_held(roots)?;
    pods_are_measured(roots)?;
    for folder in ["pods", "plugins", "plugins_registry", "pod-resources", "device-plugins", "checkpoints"] {
        assert!(roots.path("kubelet").join(folder).is_dir(), "{folder}");
    }
    assert!(roots.path("pki").join("kubelet.crt").exists() && roots.path("pki").join("kubelet.key").exists());

    // It ends by a signal, and the pod does not notice; the next one takes it up and, when the file
    // goes, ends it.
    kubelet.signal(Signal::TERM)?;
    assert!(kubelet.ends()?.success(), "{}", kubelet.log());
    let containers = |all: &str| -> Result<Vec<String>> {
        let listed = node.cri().list_containers(gantry_proto::cri::ListContainersRequest::default())?;
        let one = |c: &gantry_proto::cri::Container| format!("{} {}", c.id, c.state);
        Ok(listed.containers.iter().map(one).filter(|text| text.contains(all)).collect())
    };
    let left = containers("")?;
    assert_eq!(left.len(), 1, "{left:?}");
    let kubelet = Kubelet::start(roots, &flags, &[])?;
    healthy(&kubelet)?;
    assert_eq!(containers("")?, left, "{}", kubelet.log());
    std::fs::remove_file(roots.path("manifests/web.yaml"))?;
    poll("the static pod to go", Duration::from_secs(90), || {
        let left = containers("").map_err(|error| format!("{error:#}"))?;
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}\n{}", kubelet.log())) }
    })?;
    drop(kubelet);
    drop(shared);
    drop(registry);
    remove_kubepods(roots)?;
    before.await_clean(&Scope { folders: Vec::new(), ..roots.scope() })
}

#[test]
fn a_second_kubelet_takes_the_lock_file_and_the_first_ends() -> Result<()> {
    place::require_own_namespaces()?;
    let node = Node::start()?;
    let roots = node.roots();
    let _shared = SharedRootMount(roots);
    let mut flags = flags(roots, "")?;
    flags.push(format!("--lock-file={}", roots.path("lock").display()));
    flags.push("--exit-on-lock-contention".to_owned());
    let mut first = Kubelet::start(roots, &flags, &[])?;
    healthy(&first)?;
    let second = Kubelet::start(roots, &flags, &[])?;
    assert!(first.ends()?.success(), "{}", first.log());
    healthy(&second)
}

/// What a kubelet says that ends by itself; it must end with 1.
fn ends_with_1(roots: &Roots, flags: &[String]) -> Result<String> {
    // Each attempt has a log of its own.
    let log = roots.path("kubelet.log");
    if log.exists() {
        std::fs::remove_file(&log)?;
    }
    let mut kubelet = Kubelet::start(roots, flags, &[])?;
    let status = kubelet.ends()?;
    assert_eq!(status.code(), Some(1), "{}", kubelet.log());
    Ok(kubelet.log())
}

#[test]
fn a_kubelet_that_cannot_work_ends_with_1_and_says_why() -> Result<()> {
    place::require_own_namespaces()?;
    let roots = Roots::new()?;
    let at = |name: &str| roots.path(name).display().to_string();
    let nobody = format!(
        "validate service connection: validate CRI v1 runtime API for endpoint \\\"unix://{}\\\"",
        at("cri.sock")
    );
    let certificate = format!("tlsCertFile: {0}\ntlsPrivateKeyFile: {0}\n", at("nowhere"));
    for (more, flags_too, told) in [
        ("", vec![], nobody.as_str()),
        (
            "",
            vec!["--container-runtime-endpoint=tcp://127.0.0.1:1".to_owned()],
            "only support unix socket endpoint",
        ),
        (certificate.as_str(), vec![], "nowhere"),
        ("systemReserved: {memory: 1Pi}\n", vec![], "invalid Node Allocatable configuration. Resource"),
        ("evictionHard: {memory.avialable: 1Gi}\n", vec![], "unsupported eviction signal memory.avialable"),
        (
            "tlsCipherSuites: [TLS_NONSENSE]\n",
            vec![],
            "Cipher suite TLS_NONSENSE not supported or doesn't exist",
        ),
    ] {
        let mut flags = flags(&roots, more)?;
        flags.extend(flags_too);
        let log = ends_with_1(&roots, &flags)?;
        assert!(log.contains("failed to run Kubelet: ") && log.contains(told), "{told}: {log}");
        assert!(!roots.path("kubelet/pods").exists(), "nothing was made for {told}");
    }
    if std::fs::read_to_string("/proc/swaps")?.lines().count() > 1 {
        let mut flags = flags(&roots, "")?;
        flags.push("--fail-swap-on=true".to_owned());
        let log = ends_with_1(&roots, &flags)?;
        assert!(log.contains("running with swap on is not supported"), "{log}");
    }
    Ok(())
}

#[test]
fn a_kubelet_whose_server_cannot_be_ends_with_1() -> Result<()> {
    place::require_own_namespaces()?;
    let node = Node::start()?;
    let roots = node.roots();
    let _shared = SharedRootMount(roots);
    let at = |name: &str| roots.path(name).display().to_string();
    let missing =
        format!("authentication: {{x509: {{clientCAFile: {}}}, webhook: {{enabled: false}}}}\n", at("no-ca"));
    let broken = roots.path("plugins.yaml");
    std::fs::write(&broken, "nonsense")?;
    std::fs::create_dir(roots.path("bin"))?;
    let plugins = vec![
        format!("--image-credential-provider-config={}", broken.display()),
        format!("--image-credential-provider-bin-dir={}", at("bin")),
    ];
    let webhook = "--authentication-token-webhook=true".to_owned();
    let taken = std::net::TcpListener::bind(("127.0.0.1", 10250))?;
    let port = "address: 127.0.0.1\n".to_owned();
    for (more, words, told) in [
        (missing, vec![], "no-ca"),
        (String::new(), plugins, "plugins.yaml"),
        (String::new(), vec![webhook], "webhook"),
        (port, vec![], "failed to listen and serve on 127.0.0.1:10250"),
    ] {
        let mut flags = flags(roots, &more)?;
        flags.extend(words);
        let log = ends_with_1(roots, &flags)?;
        assert!(log.contains(told), "{told}: {log}");
    }
    drop(taken);
    remove_kubepods(roots)
}
