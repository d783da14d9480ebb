//! The folder with real plugins at the other ends of real sockets.

use std::sync::Mutex;

use futures_util::FutureExt as _;
use gantry_proto::pluginregistration as wire;
use gantry_proto::pluginregistration::registration_server::{Registration, RegistrationServer};
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::*;

const PATIENCE: Duration = Duration::from_secs(30);

/// Notes what it is asked.
#[derive(Debug)]
struct Noting {
    notes: watch::Sender<Vec<String>>,
    /// How often it fails first.
    failures: Mutex<u32>,
}

impl Noting {
    fn new(failures: u32) -> (Arc<Self>, watch::Receiver<Vec<String>>) {
        let (notes, seen) = watch::channel(Vec::new());
        (Arc::new(Self { notes, failures: Mutex::new(failures) }), seen)
    }

    fn note(&self, note: String) {
        self.notes.send_modify(|notes| notes.push(note));
    }
}

impl Handler for Noting {
    fn validate(&self, plugin: &Plugin) -> Result<(), String> {
        if plugin.versions == ["v1"] { Ok(()) } else { Err("only v1".to_owned()) }
    }

    fn register<'a>(&'a self, plugin: &'a Plugin) -> BoxFuture<'a, Result<(), String>> {
        async {
            let mut failures = self.failures.lock().unwrap();
            if *failures > 0 {
                *failures -= 1;
                return Err("not yet".to_owned());
            }
            self.note(format!("+{}", plugin.name));
            Ok(())
        }
        .boxed()
    }

    fn deregister<'a>(&'a self, plugin: &'a Plugin) -> BoxFuture<'a, ()> {
        async { self.note(format!("-{}", plugin.name)) }.boxed()
    }
}

/// A plugin, and what it was told.
#[derive(Debug)]
struct Fake {
    name: String,
    kind: &'static str,
    version: &'static str,
    told: watch::Sender<Vec<String>>,
    /// How often it answers first that it does not want to know what came of it.
    deaf: Mutex<u32>,
    /// Never says who it is.
    hangs: bool,
}

#[tonic::async_trait]
impl Registration for Fake {
    async fn get_info(&self, _: Request<wire::InfoRequest>) -> Result<Response<wire::PluginInfo>, Status> {
        if self.hangs {
            std::future::pending::<()>().await;
        }
        Ok(Response::new(wire::PluginInfo {
            r#type: self.kind.to_owned(),
            name: self.name.clone(),
            endpoint: String::new(),
            supported_versions: vec![self.version.to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        status: Request<wire::RegistrationStatus>,
    ) -> Result<Response<wire::RegistrationStatusResponse>, Status> {
        let wire::RegistrationStatus { plugin_registered, error } = status.into_inner();
        {
            let mut deaf = self.deaf.lock().unwrap();
            if *deaf > 0 {
                *deaf -= 1;
                return Err(Status::unavailable("not now"));
            }
        }
        self.told
            .send_modify(|told| told.push(if plugin_registered { "registered".to_owned() } else { error }));
        Ok(Response::new(wire::RegistrationStatusResponse {}))
    }
}

type Served = (JoinHandle<()>, watch::Receiver<Vec<String>>);

fn serve(socket: &Path, kind: &'static str, version: &'static str) -> Served {
    serve_odd(socket, kind, version, 0, false)
}

fn serve_odd(socket: &Path, kind: &'static str, version: &'static str, deaf: u32, hangs: bool) -> Served {
    let (told, seen) = watch::channel(Vec::new());
    let name = socket.file_stem().unwrap().to_string_lossy().into_owned();
    let listener = UnixListener::bind(socket).unwrap();
    let service = RegistrationServer::new(Fake { name, kind, version, told, deaf: Mutex::new(deaf), hangs });
    let task = tokio::spawn(async move {
        let server = Server::builder().add_service(service);
        server.serve_with_incoming(UnixListenerStream::new(listener)).await.unwrap();
    });
    (task, seen)
}

async fn until(seen: &mut watch::Receiver<Vec<String>>, wanted: &[&str]) {
    let seen = tokio::time::timeout(PATIENCE, seen.wait_for(|notes| notes == wanted)).await;
    seen.unwrap().unwrap();
}

#[tokio::test]
async fn a_plugin_is_registered_where_its_socket_appears_and_not_when_it_goes() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join(FOLDER);
    let (handler, mut notes) = Noting::new(0);
    follow(root.path(), [("Test", handler as Arc<dyn Handler>)].into(), Arc::default()).unwrap();
    let first = folder.join("first.sock");
    let (_, mut told) = serve(&first, "Test", "v1");
    until(&mut told, &["registered"]).await;
    // In a folder that is made after the watch began.
    std::fs::create_dir_all(folder.join("vendor/sub")).unwrap();
    let (_, mut told) = serve(&folder.join("vendor/sub/second.sock"), "Test", "v1");
    until(&mut told, &["registered"]).await;
    until(&mut notes, &["+first", "+second"]).await;
    std::fs::remove_file(&first).unwrap();
    until(&mut notes, &["+first", "+second", "-first"]).await;
    // The same name again is another plugin.
    let (_, mut told) = serve(&first, "Test", "v1");
    until(&mut told, &["registered"]).await;
    until(&mut notes, &["+first", "+second", "-first", "+first"]).await;
}

#[tokio::test]
async fn a_plugin_that_fails_is_asked_again_and_holds_up_no_other() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join(FOLDER);
    folder::make(&folder).unwrap();
    // Left by one that has crashed: nobody answers there.
    drop(std::os::unix::net::UnixListener::bind(folder.join("dead.sock")).unwrap());
    let (handler, mut notes) = Noting::new(2);
    follow(root.path(), [("Test", handler as Arc<dyn Handler>)].into(), Arc::default()).unwrap();
    let (_, mut told) = serve(&folder.join("late.sock"), "Test", "v1");
    let failed = "RegisterPlugin error -- plugin registration failed with err: not yet";
    until(&mut told, &[failed, failed, "registered"]).await;
    until(&mut notes, &["+late"]).await;
}

#[tokio::test]
async fn a_plugin_that_nobody_can_use_is_told_why() {
    let root = tempfile::tempdir().unwrap();
    let (handler, notes) = Noting::new(0);
    follow(root.path(), [("Test", handler as Arc<dyn Handler>)].into(), Arc::default()).unwrap();
    let socket = root.path().join(FOLDER).join("odd.sock");
    let (_, mut told) = serve(&socket, "Other", "v1");
    let why = format!(
        "RegisterPlugin error -- no handler registered for plugin type: Other at socket {}",
        socket.display()
    );
    tokio::time::timeout(PATIENCE, told.wait_for(|told| told.first() == Some(&why))).await.unwrap().unwrap();
    let (_, mut told) = serve(&root.path().join(FOLDER).join("old.sock"), "Test", "v0");
    let why = "RegisterPlugin error -- plugin validation failed with err: only v1".to_owned();
    tokio::time::timeout(PATIENCE, told.wait_for(|told| told.first() == Some(&why))).await.unwrap().unwrap();
    assert!(notes.borrow().is_empty());
}

/// Upstream's too: a plugin that was not told would wait for ever.
#[tokio::test]
async fn a_plugin_that_was_not_told_is_not_used_and_asked_again() {
    let root = tempfile::tempdir().unwrap();
    let (handler, mut notes) = Noting::new(0);
    follow(root.path(), [("Test", handler as Arc<dyn Handler>)].into(), Arc::default()).unwrap();
    let (_, mut told) = serve_odd(&root.path().join(FOLDER).join("deaf.sock"), "Test", "v1", 1, false);
    until(&mut notes, &["+deaf", "-deaf", "+deaf"]).await;
    until(&mut told, &["registered"]).await;
}

/// It is asked for a second each time, beside the others.
#[tokio::test]
async fn a_plugin_that_hangs_holds_up_no_other_and_what_takes_its_place_is_registered() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join(FOLDER);
    folder::make(&folder).unwrap();
    let metrics = Arc::new(Metrics::default());
    // Both are there before the kubelet looks.
    let (_hung, _) = serve_odd(&folder.join("hung.sock"), "Test", "v1", 0, true);
    let (_, mut told) = serve(&folder.join("good.sock"), "Test", "v1");
    let (handler, mut notes) = Noting::new(0);
    follow(root.path(), [("Test", handler as Arc<dyn Handler>)].into(), metrics.clone()).unwrap();
    until(&mut told, &["registered"]).await;
    // Its successor has a socket elsewhere and renames it over the old one.
    let (_, mut told) = serve(&root.path().join("new.sock"), "Test", "v1");
    std::fs::rename(root.path().join("new.sock"), folder.join("hung.sock")).unwrap();
    until(&mut told, &["registered"]).await;
    until(&mut notes, &["+good", "+new"]).await;
    let counted = |name: &str, state: &str| {
        metrics.plugin_manager_plugins.get([&folder.join(name).display().to_string(), state])
    };
    let both = ["good.sock", "hung.sock"].map(|name| counted(name, "desired_state_of_world"));
    assert_eq!(both, [Some(1.0), Some(1.0)]);
    std::fs::remove_file(folder.join("good.sock")).unwrap();
    until(&mut notes, &["+good", "+new", "-good"]).await;
    // Both are counted after the plugins have heard of it.
    let settled = || {
        let registered = |name| counted(name, "actual_state_of_world");
        (registered("good.sock"), registered("hung.sock")) == (None, Some(1.0))
    };
    for _ in 0..300 {
        if settled() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(counted("good.sock", "actual_state_of_world"), None);
    assert_eq!(counted("hung.sock", "actual_state_of_world"), Some(1.0));
}
