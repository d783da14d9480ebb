//! The agent's HTTPS API before a real runtime: logs over a rotation, exec, attach and port-forward
//! as client-go speaks them, with a client certificate and without.

use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gantry_agent::runtime::cri::connect;
use gantry_proto::cri;
use gantry_server::authn::Authentication;
use gantry_server::authz::Mode;
use gantry_server::client_ca::ClientCa;
use gantry_server::listen::{TlsSettings, tls_config};
use gantry_server::route::Switches;
use gantry_server::stats::{self, Stats};
use gantry_server::{NodePods, RuntimeConnection, Server, ServerDeps, Settings, SystemVersion};
use gantry_tests::node::Node;
use gantry_tests::pod::{self, Pod};
use gantry_tests::poll::{bound, poll};
use gantry_tests::stream_client::{self, Forward};
use gantry_tests::{http, place};
use k8s_openapi::api::core::v1 as api;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::PrivateKeyDer;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use serde_json::json;

use crate::images::{PAGE, ready};

#[derive(Debug)]
struct One(Arc<CertifiedKey>);

impl ResolvesServerCert for One {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }
}

#[derive(Debug)]
struct FixedPods(Vec<Arc<api::Pod>>);

impl NodePods for FixedPods {
    fn pods(&self) -> Vec<Arc<api::Pod>> {
        self.0.clone()
    }

    fn translate(&self, uid: &str) -> String {
        uid.to_owned()
    }

    fn claim_name(&self, _: &str, _: &str) -> Option<String> {
        None
    }
}

type Issuer = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Result<Issuer> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    Ok(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?)
}

fn certificate(ca: &Issuer, name: &str) -> Result<(rcgen::Certificate, KeyPair)> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()])?;
    params.distinguished_name.push(DnType::CommonName, name);
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
    Ok((params.signed_by(&key, ca)?, key))
}

/// The server before one pod of a node.
struct ServerFixture {
    tokio: tokio::runtime::Runtime,
    server: Server,
    address: SocketAddr,
    client: reqwest::Client,
    certificate: (PathBuf, PathBuf),
    folder: tempfile::TempDir,
}

impl ServerFixture {
    fn start(node: &Node, pod: api::Pod) -> Result<Self> {
        let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let folder = tempfile::tempdir()?;
        let ca = authority()?;
        let (server, address) = tokio.block_on(Self::serve(node, pod, &ca, folder.path().to_owned()))?;
        let (chain, key) = certificate(&ca, "kube-apiserver-kubelet-client")?;
        let paths = (folder.path().join("client.crt"), folder.path().join("client.key"));
        fs::write(&paths.0, chain.pem())?;
        fs::write(&paths.1, key.serialize_pem())?;
        let identity = reqwest::Identity::from_pem((chain.pem() + &key.serialize_pem()).as_bytes())?;
        let client = reqwest::Client::builder()
            .tls_certs_only([reqwest::Certificate::from_pem(ca.pem().as_bytes())?])
            .identity(identity)
            .build()?;
        Ok(Self { tokio, server, address, client, certificate: paths, folder })
    }

    async fn serve(node: &Node, pod: api::Pod, ca: &Issuer, folder: PathBuf) -> Result<(Server, SocketAddr)> {
        let runtime = connect(&format!("unix://{}", node.socket().display())).await?;
        let stats = Stats::new(stats::Settings {
            driver: place::driver(),
            root_dir: folder.clone(),
            pod_logs: node.logs(),
            cgroup_root: "/".to_owned(),
            runtime_cgroups: String::new(),
            system_cgroups: String::new(),
            volume_period: Duration::ZERO,
        })?;
        let sources = ServerDeps {
            tracer: None,
            node_name: "node".to_owned(),
            pods: Arc::new(FixedPods(vec![Arc::new(pod)])),
            runtime: RuntimeConnection { channel: runtime, request_timeout: Duration::from_secs(120) },
            configz: Arc::new(|| json!({})),
            flagz: Vec::new(),
            version: "v1.36.3".to_owned(),
            metrics: Arc::default(),
            probe_metrics: Arc::default(),
            checks: Vec::new(),
            oom_counts: Arc::new(|_| None),
            system: SystemVersion::default(),
            stats,
            verbosity: Arc::new(|_| Ok(())),
        };
        let settings = Settings {
            switches: Switches::ALL,
            stream_idle: Duration::from_secs(60),
            node_logs: folder,
            pod_logs: node.logs(),
            checkpoints: node.logs(),
            system_log_query: false,
            web_sockets: true,
            journalctl: "journalctl".into(),
        };
        let client_ca = ClientCa::new(ca.pem().as_bytes())?;
        let how = Authentication { client_ca, tokens_for: None, anonymous: false };
        let server = Server::new(settings, sources, how, Mode::AlwaysAllow, None)?;
        let (chain, key) = certificate(ca, "system:node:node")?;
        let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        let own = CertifiedKey::new(vec![chain.der().clone()], any_supported_type(&key)?);
        let config = tls_config(Arc::new(One(Arc::new(own))), &TlsSettings::default())?;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let listening = server.clone();
        tokio::spawn(async move { listening.serve_tls(listener, config).await });
        Ok((server, address))
    }

    fn url(&self, path: &str) -> String {
        format!("https://{}/{path}", self.address)
    }

    fn get(&self, path: &str) -> Result<(u16, String)> {
        self.tokio.block_on(async {
            let answer =
                self.client.get(self.url(path)).timeout(bound(Duration::from_secs(30))).send().await?;
            Ok((answer.status().as_u16(), answer.text().await?))
        })
    }

    /// client-go with the certificate.
    fn client_certificate_env(&self) -> [(&'static str, &std::path::Path); 2] {
        [("STREAM_CLIENT_CERT", &self.certificate.0), ("STREAM_CLIENT_KEY", &self.certificate.1)]
    }
}

fn pod_labels(name: &str, container: &str) -> std::collections::BTreeMap<String, String> {
    [
        ("io.kubernetes.pod.name", name.to_owned()),
        ("io.kubernetes.pod.namespace", "default".to_owned()),
        ("io.kubernetes.pod.uid", format!("uid-{name}")),
        ("io.kubernetes.container.name", container.to_owned()),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into()
}

/// A pod with a web server and a shell that says two lines and waits.
fn pod<'a>(node: &'a Node, image: &str, name: &str) -> Result<(Pod<'a>, String, api::Pod)> {
    let mut config = pod::sandbox_config(node, name);
    config.labels = pod_labels(name, "POD");
    let pod = Pod::run_config(node, config)?;
    let mut web = pod::container_config("web", image, &[]);
    web.labels = pod_labels(name, "web");
    pod.start(&web)?;
    let script = "echo first; echo second >&2; while read line; do echo heard $line; done";
    let mut shell = pod::container_config("shell", image, &["sh", "-c", script]);
    (shell.labels, shell.stdin) = (pod_labels(name, "shell"), true);
    let id = pod.start(&shell)?;
    let known = serde_json::from_value(json!({
        "metadata": { "name": name, "namespace": "default", "uid": format!("uid-{name}") },
        "spec": { "containers": [{ "name": "web" }, { "name": "shell", "stdin": true }] },
        "status": { "qosClass": "BestEffort", "containerStatuses": [{
            "name": "shell", "image": image, "imageID": "", "ready": true, "restartCount": 0,
            "containerID": format!("gantry://{id}"), "state": { "running": {} } }] },
    }))?;
    Ok((pod, id, known))
}

#[test]
fn logs_are_read_and_followed_over_a_rotation() -> Result<()> {
    let ready = ready()?;
    let node = &ready.node;
    let (pod, id, known) = pod(node, &ready.image, "logs")?;
    let api = ServerFixture::start(node, known)?;
    let logs = "containerLogs/default/logs/shell";
    poll("both lines", Duration::from_secs(20), || match api.get(logs) {
        Ok((200, text)) if text == "first\nsecond\n" => Ok(()),
        other => Err(format!("{other:?}")),
    })?;
    ensure!(api.get(&format!("{logs}?stream=Stderr"))?.0 == 400, "the gate of single streams is closed");
    assert_eq!(api.get(&format!("{logs}?tailLines=1"))?.1, "second\n");
    assert_eq!(api.get(&format!("{logs}?limitBytes=3"))?.1, "fir");
    let (_, stamped) = api.get(&format!("{logs}?timestamps=true"))?;
    ensure!(stamped.lines().all(|line| line.as_bytes().get(19) == Some(&b'.')), "{stamped}");

    let mut answer = api.tokio.block_on(api.client.get(api.url(&format!("{logs}?follow=true"))).send())?;
    let mut next = || -> Result<String> {
        let chunk = api
            .tokio
            .block_on(async { tokio::time::timeout(bound(Duration::from_secs(20)), answer.chunk()).await });
        Ok(chunk??.map(|chunk| String::from_utf8_lossy(&chunk).into_owned()).unwrap_or_default())
    };
    assert_eq!(next()?, "first\nsecond\n");
    let newest = pod.log_path("shell");
    fs::rename(&newest, newest.with_file_name("0.log.20260101-000000"))?;
    say(&api, "logs", "before")?;
    assert_eq!(next()?, "heard before\n");
    node.cri().reopen_container_log(cri::ReopenContainerLogRequest { container_id: id.clone() })?;
    say(&api, "logs", "after")?;
    assert_eq!(next()?, "heard after\n");
    // Both files are the log, and the rotated one comes first.
    assert_eq!(api.get(logs)?.1, "first\nsecond\nheard before\nheard after\n");
    assert_eq!(api.get(&format!("{logs}?tailLines=2"))?.1, "heard before\nheard after\n");
    node.cri().stop_container(cri::StopContainerRequest { container_id: id, timeout: 0 })?;
    assert_eq!(next()?, "", "the log ends with its container");
    api.server.end();
    pod.remove()?;
    node.assert_clean(&ready.before)
}

/// One line to the shell, by an attach over SPDY.
fn say(api: &ServerFixture, pod: &str, line: &str) -> Result<()> {
    let url = api.url(&format!("attach/default/{pod}/shell?input=1&output=1"));
    let mut child = stream_client::start_with(
        &["command", "-transport", "spdy", "-stdin", &url],
        &api.client_certificate_env(),
    )?;
    let mut stdin = child.stdin.take().context("no stdin")?;
    stdin.write_all(format!("{line}\n").as_bytes())?;
    let mut out = std::io::BufReader::new(child.stdout.take().context("no stdout")?);
    let mut heard = String::new();
    std::io::BufRead::read_line(&mut out, &mut heard)?;
    child.kill()?;
    child.wait()?;
    ensure!(heard == format!("heard {line}\n"), "{heard:?}");
    Ok(())
}

#[test]
fn commands_and_ports_are_reached_with_a_certificate_only() -> Result<()> {
    let ready = ready()?;
    let node = &ready.node;
    let (pod, _, known) = pod(node, &ready.image, "streams")?;
    let api = ServerFixture::start(node, known)?;
    let command = "command=sh&command=-c&command=cat%3B%20echo%20err%20%3E%262%3B%20exit%203";
    let url = api.url(&format!("exec/default/streams/web?{command}&input=1&output=1&error=1"));
    for transport in ["spdy", "ws"] {
        let args = ["command", "-transport", transport, "-stdin", "-stderr", &url];
        let output = stream_client::run_with(&args, b"from stdin\n", &api.client_certificate_env())?;
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(
            (output.status.code(), output.stdout.as_slice()),
            (Some(3), &b"from stdin\n"[..]),
            "{err}"
        );
        assert_eq!(err, "err\n");
    }
    let nobody = fs::write(api.folder.path().join("none.crt"), "").map(|()| {
        let (chain, key) = certificate(&authority()?, "kube-apiserver-kubelet-client")?;
        let paths = (api.folder.path().join("none.crt"), api.folder.path().join("none.key"));
        fs::write(&paths.0, chain.pem())?;
        fs::write(&paths.1, key.serialize_pem())?;
        anyhow::Ok(paths)
    })??;
    let stranger = [("STREAM_CLIENT_CERT", nobody.0.as_path()), ("STREAM_CLIENT_KEY", &nobody.1)];
    let output = stream_client::run_with(&["command", "-transport", "spdy", "-stdin", &url], b"", &stranger)?;
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(stream_client::FAILED), "{err}");
    ensure!(err.contains("Unauthorized"), "{err}");

    let addr = pod.addr(8080)?;
    poll("the page", Duration::from_secs(20), || http::get(addr, "/").map_err(|error| format!("{error:#}")))?;
    for transport in ["spdy", "tunnel"] {
        let url = api.url("portForward/default/streams");
        let forward = Forward::start_with(transport, 8080, &url, &api.client_certificate_env())?;
        assert_eq!(http::get(forward.addr, "/")?.text(), PAGE, "{transport}");
        let complaints = forward.stop()?;
        assert!(!complaints.contains("error"), "{transport}: {complaints}");
    }
    let run =
        api.tokio.block_on(api.client.post(api.url("run/default/streams/web?cmd=echo%20hello")).send())?;
    assert_eq!(api.tokio.block_on(run.text())?, "hello\n");

    let (status, summary) = api.get("stats/summary")?;
    let summary: serde_json::Value = serde_json::from_str(&summary).with_context(|| summary.clone())?;
    assert_eq!((status, &summary["pods"][0]["podRef"]["uid"]), (200, &json!("uid-streams")), "{summary}");
    let web =
        summary["pods"][0]["containers"].as_array().and_then(|all| all.iter().find(|c| c["name"] == "web"));
    let web = web.with_context(|| summary.to_string())?;
    for (stat, least) in
        [("/memory/workingSetBytes", 1), ("/cpu/usageCoreNanoSeconds", 1), ("/rootfs/capacityBytes", 1)]
    {
        let value = web.pointer(stat).and_then(serde_json::Value::as_u64).unwrap_or_default();
        ensure!(value >= least, "{stat}: {web}");
    }
    let received = summary["pods"][0]["network"]["rxBytes"].as_u64().unwrap_or_default();
    ensure!(received > 0, "{summary}");
    let (_, resource) = api.get("metrics/resource")?;
    ensure!(
        resource.contains("container_memory_working_set_bytes{container=\"web\",namespace=\"default\""),
        "{resource}"
    );
    let (_, cadvisor) = api.get("metrics/cadvisor")?;
    ensure!(cadvisor.contains("container_cpu_usage_seconds_total{container=\"shell\""), "{cadvisor}");
    ensure!(cadvisor.contains("machine_cpu_cores{"), "{cadvisor}");
    let (_, running) = api.get("runningpods/")?;
    ensure!(running.contains("\"name\":\"shell\""), "{running}");
    api.server.end();
    pod.remove()?;
    node.assert_clean(&ready.before)
}
