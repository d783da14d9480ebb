//! The kubelet's folder with real plugins at the other ends of real sockets, good ones and such as one must not trust.

use std::io::Write as _;
use std::os::unix::net::UnixListener as StdListener;

use gantry_proto::csi::identity_server::{Identity, IdentityServer};
use gantry_proto::csi::{GetPluginInfoRequest, GetPluginInfoResponse};
use gantry_proto::pluginregistration as wire;
use gantry_proto::pluginregistration::registration_server::{Registration, RegistrationServer};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::*;
use crate::doctor::CheckStatus;

/// Long enough for whoever answers at all; those that hang are waited for in full.
const LONG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(300);

/// As a kubelet writes it.
const NOTED: &str = r#"{"Data":{"PodDeviceEntries":[{"PodUID":"0d7a2f9e-3c1b-4d52-9a77-5b8f7a1c2e11","ContainerName":"main","ResourceName":"vendor.com/gpu","DeviceIDs":{"-1":["dev1","dev2"],"0":["dev3"],"1":["dev3"]},"AllocResp":"CggKA0dQVRIBMBIKCgIvYRICL2IYARoZCggvZGV2L2dwdRIJL2Rldi9udWxsGgJydyIRCgx2ZW5kb3IuY29tL2ESAWIqEgoQdmVuZG9yLmNvbS9ncHU9MA=="},{"PodUID":"0d7a2f9e-3c1b-4d52-9a77-5b8f7a1c2e11","ContainerName":"second","ResourceName":"vendor.com/nic","DeviceIDs":{"-1":["n"]},"AllocResp":""}],"RegisteredDevices":{"vendor.com/gpu":["dev1","dev2","dev3"],"vendor.com/nic":[]}},"Checksum":2401470124}"#;

/// Says this, or refuses with that.
#[derive(Debug, Clone)]
struct FakePlugin(Result<wire::PluginInfo, Status>);

#[tonic::async_trait]
impl Registration for FakePlugin {
    async fn get_info(&self, _: Request<wire::InfoRequest>) -> Result<Response<wire::PluginInfo>, Status> {
        self.0.clone().map(Response::new)
    }

    async fn notify_registration_status(
        &self,
        _: Request<wire::RegistrationStatus>,
    ) -> Result<Response<wire::RegistrationStatusResponse>, Status> {
        Err(Status::unimplemented("a look registers nothing"))
    }
}

/// A driver that calls itself so.
#[derive(Debug)]
struct FakeDriver(&'static str);

#[tonic::async_trait]
impl Identity for FakeDriver {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse { name: self.0.to_owned(), ..Default::default() }))
    }
}

fn root() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for folder in ["plugins_registry", "device-plugins", "plugins"] {
        std::fs::create_dir(root.path().join(folder)).unwrap();
    }
    root
}

fn info(kind: &str, name: &str) -> wire::PluginInfo {
    wire::PluginInfo {
        r#type: kind.to_owned(),
        name: name.to_owned(),
        endpoint: String::new(),
        supported_versions: vec!["1.0.0".to_owned()],
    }
}

/// Serves both at `plugins_registry/NAME.sock` until the test's runtime ends.
fn serve(root: &TempDir, socket: &str, plugin: Result<wire::PluginInfo, Status>, driver: &'static str) {
    let listener = UnixListener::bind(root.path().join("plugins_registry").join(socket)).unwrap();
    let server = Server::builder()
        .add_service(RegistrationServer::new(FakePlugin(plugin)))
        .add_service(IdentityServer::new(FakeDriver(driver)));
    tokio::spawn(server.serve_with_incoming(UnixListenerStream::new(listener)));
}

async fn rows(root: &TempDir, patience: Duration) -> Vec<Check> {
    judge::plugins(&look(root.path(), patience).await)
}

fn only(checks: &[Check]) -> &Check {
    let [check] = checks else { panic!("not one row: {checks:#?}") };
    check
}

#[tokio::test]
async fn a_folder_without_plugins_and_none_at_all_have_no_row() {
    assert_eq!(rows(&root(), LONG).await, []);
    assert_eq!(rows(&tempfile::tempdir().unwrap(), LONG).await, []);
}

#[tokio::test]
async fn a_driver_that_answers_is_named_with_all_it_says() {
    let root = root();
    std::fs::create_dir(root.path().join("plugins/csi.example.com")).unwrap();
    serve(&root, "a.sock", Ok(info("CSIPlugin", "csi.example.com")), "csi.example.com");
    let checks = rows(&root, LONG).await;
    let check = only(&checks);
    let socket = root.path().join("plugins_registry/a.sock");
    let seen = format!(
        "csi.example.com, versions 1.0.0, at {}, with a folder in plugins: answers",
        socket.display()
    );
    assert_eq!((check.name, check.verdict, &check.seen), ("CSI driver", CheckStatus::Ok, &seen));
}

#[tokio::test]
async fn a_driver_whose_endpoint_is_away_or_anothers_is_told() {
    let root = root();
    let away = wire::PluginInfo {
        endpoint: root.path().join("plugins/away.sock").to_string_lossy().into_owned(),
        ..info("CSIPlugin", "away.example.com")
    };
    serve(&root, "a.sock", Ok(away), "away.example.com");
    serve(&root, "b.sock", Ok(info("CSIPlugin", "b.example.com")), "c.example.com");
    let checks = rows(&root, LONG).await;
    let [away, other] = checks.as_slice() else { panic!("{checks:#?}") };
    assert!(away.seen.contains("away.sock") && away.seen.contains("No such file"), "{away:?}");
    assert!(other.seen.ends_with("the driver there calls itself c.example.com"), "{other:?}");
    assert!(checks.iter().all(|check| check.verdict == CheckStatus::Warn && !check.remedy.is_empty()));
}

/// It is asked for nothing: whatever a DRA driver can be asked prepares something.
#[tokio::test]
async fn a_dra_driver_that_listens_is_named_and_one_that_does_not_is_told() {
    let root = root();
    serve(&root, "a.sock", Ok(info("DRAPlugin", "dra.example.com")), "");
    let away = wire::PluginInfo {
        endpoint: root.path().join("plugins/away.sock").to_string_lossy().into_owned(),
        ..info("DRAPlugin", "away.example.com")
    };
    serve(&root, "b.sock", Ok(away), "");
    let checks = rows(&root, LONG).await;
    let [here, away] = checks.as_slice() else { panic!("{checks:#?}") };
    assert_eq!((here.name, here.verdict), ("DRA driver", CheckStatus::Ok));
    assert!(here.seen.ends_with(": answers"), "{here:?}");
    assert!(away.verdict == CheckStatus::Warn && away.seen.contains("No such file"), "{away:?}");
}

#[tokio::test]
async fn a_type_that_nobody_takes_is_told() {
    let root = root();
    serve(&root, "a.sock", Ok(info("FancyPlugin", "fancy.example.com")), "");
    let checks = rows(&root, LONG).await;
    let check = only(&checks);
    assert_eq!((check.name, check.verdict), ("plugin", CheckStatus::Warn));
    assert!(check.seen.ends_with("type FancyPlugin") && check.remedy.contains("DRAPlugin"), "{check:?}");
}

#[tokio::test]
async fn a_socket_that_nobody_serves_or_that_refuses_is_named_with_its_age_and_a_remedy() {
    let root = root();
    // Left by one that has crashed.
    drop(StdListener::bind(root.path().join("plugins_registry/dead.sock")).unwrap());
    drop(StdListener::bind(root.path().join("device-plugins/gpu.sock")).unwrap());
    // The kubelet's own.
    drop(StdListener::bind(root.path().join("device-plugins/kubelet.sock")).unwrap());
    serve(&root, "no.sock", Err(Status::permission_denied("not you")), "");
    let checks = rows(&root, LONG).await;
    let sockets = ["gpu.sock", "dead.sock", "no.sock"];
    let words = ["Connection refused", "Connection refused", "desc = not you"];
    assert_eq!(checks.len(), sockets.len(), "{checks:#?}");
    for ((check, socket), word) in checks.iter().zip(sockets).zip(words) {
        assert!(check.seen.contains(&format!("{socket}, there since 2")), "{check:?}");
        assert!(check.seen.contains(word) && check.remedy.contains("restart"), "{check:?}");
        assert_eq!(check.verdict, CheckStatus::Warn);
    }
}

#[tokio::test]
async fn plugins_that_hang_hold_up_neither_the_others_nor_the_look() {
    let root = root();
    let hung: Vec<_> = (0..20)
        .map(|n| StdListener::bind(root.path().join(format!("plugins_registry/hung{n:02}.sock"))).unwrap())
        .collect();
    // One that tells who it is, and whose endpoint hangs.
    let half = wire::PluginInfo {
        endpoint: root.path().join("plugins_registry/hung00.sock").to_string_lossy().into_owned(),
        ..info("CSIPlugin", "half.example.com")
    };
    serve(&root, "half.sock", Ok(half), "");
    // Those that hang are waited for once, not one after the other.
    let checks = tokio::time::timeout(LONG, rows(&root, Duration::from_secs(3))).await.unwrap();
    drop(hung);
    assert_eq!(checks.len(), 21);
    let (half, hung) = checks.split_first().unwrap();
    assert!(half.seen.starts_with("half.example.com, ") && half.seen.contains("no answer within 3 s"));
    assert!(hung.iter().all(|check| check.verdict == CheckStatus::Warn), "{hung:#?}");
}

#[test]
fn a_plugin_that_floods_holds_up_nobody() {
    let root = root();
    let listener = StdListener::bind(root.path().join("plugins_registry/flood.sock")).unwrap();
    let flood = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        // Empty SETTINGS, which HTTP/2 allows, until the other end closes.
        let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0].repeat(1024);
        while stream.write_all(&settings).is_ok() {}
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let checks = runtime.block_on(async {
        serve(&root, "large.sock", Ok(info("CSIPlugin", &"x".repeat(1 << 20))), "");
        tokio::time::timeout(LONG, rows(&root, SHORT)).await.unwrap()
    });
    // Closes the connection.
    drop(runtime);
    assert_eq!(checks.len(), 2, "{checks:#?}");
    assert!(checks.iter().all(|check| check.verdict == CheckStatus::Warn && check.seen.len() < 1000));
    flood.join().unwrap();
}

#[tokio::test]
async fn what_a_plugin_says_cannot_write_to_the_terminal() {
    let root = root();
    let evil = "\u{1b}[2J\nok\u{202e}";
    let lying = wire::PluginInfo {
        endpoint: format!("/nowhere/{evil}"),
        supported_versions: vec![evil.to_owned(); 1000],
        ..info("CSIPlugin", evil)
    };
    serve(&root, &format!("{evil}.sock"), Ok(lying), "");
    serve(&root, "refuses.sock", Err(Status::internal(evil)), "");
    let up = wire::PluginInfo { name: "..".to_owned(), ..info(evil, "") };
    serve(&root, "up.sock", Ok(up), "");
    let checks = rows(&root, LONG).await;
    assert_eq!(checks.len(), 3, "{checks:#?}");
    for check in &checks {
        let text = format!("{}{}", check.seen, check.remedy);
        assert!(!text.chars().any(|c| c.is_control() || c == '\u{202e}'), "{text:?}");
        assert!(text.len() < 2000 && check.verdict == CheckStatus::Warn, "{check:?}");
        assert!(!check.seen.contains("with a folder"), "{check:?}");
    }
    assert!(checks[0].seen.contains(r"\u{1b}[2J\nok\u{202e}"), "{:?}", checks[0]);
}

#[tokio::test]
async fn resources_are_those_of_the_checkpoint() {
    let root = root();
    let checkpoint = root.path().join("device-plugins/kubelet_internal_checkpoint");
    std::fs::write(&checkpoint, NOTED).unwrap();
    let checks = rows(&root, LONG).await;
    let seen: Vec<_> = checks.iter().map(|check| (check.verdict, check.seen.as_str())).collect();
    let wanted =
        [(CheckStatus::Ok, "vendor.com/gpu: 3 healthy"), (CheckStatus::Warn, "vendor.com/nic: 0 healthy")];
    assert_eq!(seen, wanted);
    std::fs::write(&checkpoint, "{}").unwrap();
    let checks = rows(&root, LONG).await;
    assert!(only(&checks).seen.contains("not a checkpoint of devices"), "{checks:?}");
    // Opening a pipe would wait for a writer.
    std::fs::remove_file(&checkpoint).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &checkpoint, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
        .unwrap();
    let checks = rows(&root, LONG).await;
    assert!(only(&checks).seen.ends_with("not a file"), "{checks:?}");
}

#[tokio::test]
async fn more_sockets_than_a_node_has_are_not_all_asked() {
    let root = root();
    for n in 0..70 {
        drop(StdListener::bind(root.path().join(format!("plugins_registry/{n}.sock"))).unwrap());
    }
    let checks = rows(&root, LONG).await;
    assert_eq!(checks.len(), 65);
    assert!(checks[64].seen.contains("more sockets"), "{:?}", checks[64]);
}
