//! The runtime as a whole: its configuration, its start, and the sockets it serves CRI on. Owns the
//! start-up order; never a sandbox. Called by `gantry runtime` and `gantry run`.

#![expect(clippy::disallowed_methods, reason = "a marker in /run, of which a half is another boot's")]

pub mod images_alone;
mod vital;

use std::future::Future;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gantry_base::flock::{self, LockHolder};
use gantry_proto::cri::image_service_server::ImageServiceServer;
use gantry_proto::cri::runtime_service_server::RuntimeServiceServer;
use gantry_proto::runtime_ext::runtime_extensions_server::RuntimeExtensionsServer;
use rustix::process::{Resource, Rlimit};
use tokio::io::DuplexStream;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::Stream;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::transport::server::Router;

use crate::apparmor::AppArmor;
use crate::cgroup::Layout;
use crate::config::RuntimeConfig;
use crate::config::handlers::HandlerConfig;
use crate::cri::CriService;
use crate::cri::traced::Traced;
use crate::cri::until_sent::UntilSent;
use crate::node::{Node, ProgramError, Programs};
use crate::selinux::Selinux;
use crate::spans::{Spans, Unsupported};
use crate::spec::profiles;
use crate::store::{RecordStore, pins};
use crate::{cgroup, events, probe, recover, sandbox, streaming};
use gantry_image as image;
use gantry_image::Images;
use gantry_image::usage::walker::Walker;
use vital::RequiredTask;

/// What cri-client sets as its limit, too.
const MAX_MESSAGE: usize = 16 << 20;

/// Holds the boot id of the last whole start; gone with the state folder at a reboot.
const BOOT_MARKER: &str = "boot";

/// The runtime could not start or serve.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("not root: the runtime makes namespaces, mounts and cgroups; run it as root")]
    NotRoot,
    #[error("{flag} {path} holds one of the characters , : \\ which overlay mount options can't carry", path = path.display())]
    BadPath { flag: &'static str, path: PathBuf },
    #[error("cgroup root {0:?} must be absolute, as in /gantry")]
    BadCgroupRoot(String),
    #[error("cgroup root {0:?} is a slice of systemd's own: choose another, as in /gantry")]
    SystemdsOwn(String),
    #[error("make the folder {path}", path = path.display())]
    Folder {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("find the running program's folder")]
    OwnPath(#[source] io::Error),
    #[error("read the boot id")]
    BootId(#[source] io::Error),
    #[error("{holder} holds {}: wait until it ends, end it, or choose another --root", path.display())]
    InUse { path: PathBuf, holder: LockHolder },
    #[error("lock {path}", path = path.display())]
    Lock {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error(transparent)]
    Cgroup(#[from] cgroup::Error),
    #[error(transparent)]
    Systemd(#[from] gantry_systemd::Error),
    #[error(transparent)]
    Image(#[from] image::Error),
    #[error(transparent)]
    Operation(#[from] crate::error::Error),
    #[error("the runtime's tracing_endpoint")]
    Spans(#[from] Unsupported),
    #[error("start the thread that measures folders")]
    Walker(#[source] io::Error),
    #[error("listen on {path}", path = path.display())]
    Listen {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{path} is in the way: it is not a socket, or another process serves on it", path = path.display())]
    SocketTaken { path: PathBuf },
    #[error("listen on 127.0.0.1 for exec, attach and port-forward")]
    Streaming(#[source] io::Error),
    #[error("serve CRI")]
    Serve(#[source] tonic::transport::Error),
    #[error(
        "the task that hears of the ends of containers has ended, and no end would be seen any more: start the \
         runtime again, it takes up the pods that run"
    )]
    NoEvents,
    #[error("a task of the runtime ended early")]
    Task(#[from] tokio::task::JoinError),
}

/// A started runtime.
#[derive(Debug)]
pub struct Runtime {
    node: Arc<Node>,
    streaming: Arc<streaming::StreamingServer>,
    /// What hears of ends.
    events: RequiredTask,
    /// Work that ends with the runtime.
    _aside: JoinSet<()>,
    /// Of the calls, where somebody asked for spans.
    spans: Option<Spans>,
    /// Held while the runtime lives: two of them on one root would each kill the other's pods.
    _lock: std::fs::File,
}

impl Runtime {
    /// Makes the folders, loads images and programs, finds the pods that run already.
    ///
    /// # Errors
    /// Whatever keeps the node from being whole; nothing is served then.
    pub async fn start(config: RuntimeConfig) -> Result<Self, Error> {
        let spans = Spans::start(&config)?;
        let (node, lock, receiver) = tokio::task::spawn_blocking(move || prepare(config)).await??;
        let node = Arc::new(node);
        node.apparmor.warn_if_off();
        recover::run(&node).await?;
        let owned = node.clone();
        let collected = tokio::task::spawn_blocking(move || sandbox::network::collect(&owned)).await?;
        for error in collected.err().unwrap_or_default() {
            // What is left costs an address at most; pods need the runtime.
            tracing::warn!("{}", gantry_base::error::chain(&error));
        }
        let recovered = node.clone();
        tokio::task::spawn_blocking(move || {
            recovered.images.unpin_except(|id| recovered.store.container(id).is_ok());
        })
        .await?;
        let (marker, boot_id) = (node.config.state.join(BOOT_MARKER), node.boot_id.clone());
        tokio::task::spawn_blocking(move || {
            std::fs::write(&marker, boot_id).map_err(|source| Error::Folder { path: marker, source })
        })
        .await??;
        let events = RequiredTask::spawn(events::run(node.clone(), receiver));
        let streaming =
            Arc::new(streaming::StreamingServer::start(node.clone()).await.map_err(Error::Streaming)?);
        let mut aside = JoinSet::new();
        aside.spawn(image::prepull::run(
            node.images.clone(),
            parse_prepull_images(&node.config)?,
            image::prepull::FIRST,
        ));
        Ok(Self { node, streaming, events, spans, _aside: aside, _lock: lock })
    }

    /// Takes back what outlives pods by design, when no pod is left: the built-in network's idle bridge
    /// and the empty root cgroups. For a runtime that ends with its pods, as in `gantry run`.
    ///
    /// # Errors
    /// What could not be removed.
    pub async fn tidy_up(&self) -> Result<(), Error> {
        if !self.node.store.sandboxes().is_empty() {
            return Ok(());
        }
        let node = self.node.clone();
        tokio::task::spawn_blocking(move || sandbox::tidy_up(&node)).await?.map_err(Error::Operation)
    }

    fn router(&self) -> Router {
        let service = CriService::new(self.node.clone(), self.streaming.clone());
        let tracer = self.spans.as_ref().map(Spans::tracer);
        let pods = RuntimeServiceServer::new(service.clone())
            .max_decoding_message_size(MAX_MESSAGE)
            .max_encoding_message_size(MAX_MESSAGE);
        let images = ImageServiceServer::new(service.clone())
            .max_decoding_message_size(MAX_MESSAGE)
            .max_encoding_message_size(MAX_MESSAGE);
        Server::builder()
            .add_service(Traced { service: UntilSent(pods), tracer: tracer.clone() })
            .add_service(Traced { service: images, tracer })
            .add_service(RuntimeExtensionsServer::new(service))
    }

    /// Serves CRI on a unix socket, mode 0600, until `shutdown`; calls `listening` when clients may come. Pods run on
    /// afterwards.
    ///
    /// # Errors
    /// When the socket is taken or can't be made, and when a task ends that nothing goes on without.
    pub async fn serve_unix(
        &self,
        socket: &Path,
        listening: impl FnOnce(),
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), Error> {
        let listener = listen(socket).await?;
        listening();
        let incoming = UnixListenerStream::new(listener);
        let serving = self.router().serve_with_incoming_shutdown(incoming, self.close_streams(shutdown));
        let result = self.run_with_events(serving).await;
        // Gone already is as good; a leftover is replaced at the next start.
        let _ = std::fs::remove_file(socket);
        result
    }

    /// Serves CRI on connections within this process, until `shutdown`.
    ///
    /// # Errors
    /// When the transport fails, and when a task ends that nothing goes on without.
    pub async fn serve_stream<S>(&self, incoming: S, shutdown: impl Future<Output = ()>) -> Result<(), Error>
    where
        S: Stream<Item = io::Result<DuplexStream>>,
    {
        let shutdown = self.close_streams(shutdown);
        self.run_with_events(self.router().serve_with_incoming_shutdown(incoming, shutdown)).await
    }

    async fn run_with_events(
        &self,
        serving: impl Future<Output = Result<(), tonic::transport::Error>>,
    ) -> Result<(), Error> {
        let served = self.events.during(serving).await.ok_or(Error::NoEvents);
        if let Some(spans) = &self.spans {
            spans.end().await;
        }
        served?.map_err(Error::Serve)
    }

    /// The server lets open answers end first: the event streams would never.
    async fn close_streams(&self, shutdown: impl Future<Output = ()>) {
        shutdown.await;
        self.node.container_events.close();
        self.node.oom_events.close();
    }
}

type PreparedNode = (Node, std::fs::File, mpsc::UnboundedReceiver<crate::monitor_client::Event>);

/// What is there before any pod: the folders under the lock, the programs and the images.
struct OpenedNode {
    /// With folders as mount options take them.
    config: RuntimeConfig,
    lock: std::fs::File,
    programs: Programs,
    boot_id: String,
    images: Images,
}

fn open(mut config: RuntimeConfig) -> Result<OpenedNode, Error> {
    if !rustix::process::geteuid().is_root() {
        return Err(Error::NotRoot);
    }
    validate(&config)?;
    if config.systemd_cgroup {
        gantry_systemd::Systemd::default().check()?;
    }
    raise_open_files();
    for path in [&config.root, &config.state] {
        folder(path)?;
    }
    // Mount options name these, and the monitor has another working folder.
    for path in [&mut config.root, &mut config.state] {
        *path = path.canonicalize().map_err(|source| Error::Folder { path: path.clone(), source })?;
    }
    let lock = take_lock(&config.root.join("lock"))?;
    let programs = match &config.programs_dir {
        Some(folder) => Programs::load(folder)?,
        None => {
            let own = std::env::current_exe().map_err(Error::OwnPath)?;
            Programs::load(own.parent().unwrap_or(Path::new("/")))?
        }
    };
    let boot_id = std::fs::read_to_string(&config.boot_id_file).map_err(Error::BootId)?.trim().to_owned();
    let pinned = pins::on_disk(&config.root.join("containers"), &boot_id);
    let stored = image::ImagesConfig {
        root: config.root.clone(),
        state: config.state.clone(),
        hosts_dir: config.registry_hosts_dir.clone(),
        docker_config: config.registry_auth_file.clone(),
        unpacker: image::Unpacker::Program(programs.unpack_path()),
        switches: image::Switches::without(config.pull_without.clone()),
    };
    let images = Images::open(&stored, pinned)?;
    Ok(OpenedNode { config, lock, programs, boot_id, images })
}

fn prepare(config: RuntimeConfig) -> Result<PreparedNode, Error> {
    let OpenedNode { config, lock, programs, boot_id, images } = open(config)?;
    for path in [config.root.join("sandboxes"), config.root.join("containers"), config.state.join("monitors")]
    {
        folder(&path)?;
    }
    for name in config.handlers.keys() {
        if let Some(HandlerConfig::Oci { root: None, .. }) = config.handlers.get(name)
            && let Some(oci) = config.oci(name)
        {
            folder(&oci.root)?;
        }
    }
    let layout = Layout::detect().map_err(crate::cgroup::Error::from)?;
    let user_namespaces = probe::user_namespaces(&programs, images.layers_dir(), &config.state);
    if let Err(why) = &user_namespaces {
        tracing::info!("no user namespaces for pods: {why}");
    }
    let seen = std::fs::read_to_string(config.state.join(BOOT_MARKER)).unwrap_or_default();
    let first_start_of_boot = seen != boot_id;
    let walker = Walker::start().map_err(Error::Walker)?;
    let (events, receiver) = mpsc::unbounded_channel();
    let node = Node {
        apparmor: AppArmor::find(Path::new("/"), !config.disable_apparmor),
        selinux: Selinux::find(config.enable_selinux, config.selinux_category_range),
        config,
        layout,
        images,
        store: RecordStore::default(),
        programs,
        boot_id,
        user_namespaces,
        first_start_of_boot,
        walker,
        container_events: crate::event_stream::EventStream::default(),
        oom_events: crate::event_stream::EventStream::default(),
        exec_output_budget: crate::node::output_budget::OutputBudget::default(),
        events,
    };
    Ok((node, lock, receiver))
}

fn validate(config: &RuntimeConfig) -> Result<(), Error> {
    let of_handlers = config.handlers.values().filter_map(|handler| match handler {
        HandlerConfig::Gantry { unset_seccomp_profile } => unset_seccomp_profile.as_ref(),
        HandlerConfig::Oci { .. } => None,
    });
    for profile in of_handlers.chain([&config.unset_seccomp_profile]) {
        profiles::seccomp_by_name("unset_seccomp_profile", profile).map_err(crate::error::Error::from)?;
    }
    for name in &config.pinned_images {
        image::Reference::parse(name).map_err(crate::error::Error::from)?;
    }
    parse_prepull_images(config)?;
    for (flag, path) in [("--root", &config.root), ("--state", &config.state)] {
        if path.to_string_lossy().contains([',', ':', '\\']) {
            return Err(Error::BadPath { flag, path: path.clone() });
        }
    }
    if config.cgroup_root.len() < 2 || !config.cgroup_root.starts_with('/') {
        return Err(Error::BadCgroupRoot(config.cgroup_root.clone()));
    }
    if config.systemd_cgroup && sandbox::cgroup_placement::is_reserved(&config.cgroup_root) {
        return Err(Error::SystemdsOwn(config.cgroup_root.clone()));
    }
    Ok(())
}

fn parse_prepull_images(config: &RuntimeConfig) -> Result<Vec<image::Reference>, crate::error::Error> {
    config.prepull_images.iter().map(|name| Ok(image::Reference::parse(name)?)).collect()
}

/// Connections, layers and monitors take descriptors; the soft limit of a login shell is for programs
/// that select(2). Containers get theirs back (`init::reset`).
fn raise_open_files() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = rustix::process::setrlimit(Resource::Nofile, raised) {
        tracing::warn!("going on with the limit of {:?} open files: {error}", limit.current);
    }
}

fn folder(path: &Path) -> Result<(), Error> {
    let make = || -> io::Result<()> {
        std::fs::create_dir_all(path)?;
        // Uppers hold what containers write, setuid programs too: nobody else may walk in.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))
    };
    make().map_err(|source| Error::Folder { path: path.to_owned(), source })
}

fn take_lock(path: &Path) -> Result<std::fs::File, Error> {
    let wrap = |source| Error::Lock { path: path.to_owned(), source };
    let file =
        std::fs::OpenOptions::new().create(true).truncate(false).write(true).open(path).map_err(wrap)?;
    match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Err(rustix::io::Errno::WOULDBLOCK) => {
            Err(Error::InUse { path: path.to_owned(), holder: flock::holder(&file) })
        }
        result => result.map(|()| file).map_err(|error| wrap(error.into())),
    }
}

/// Binds the socket. One that a dead runtime left is replaced; a live one is never.
async fn listen(socket: &Path) -> Result<UnixListener, Error> {
    let wrap = |source| Error::Listen { path: socket.to_owned(), source };
    if let Some(parent) = socket.parent() {
        std::fs::create_dir_all(parent).map_err(wrap)?;
    }
    if let Ok(found) = std::fs::symlink_metadata(socket) {
        if !found.file_type().is_socket() || UnixStream::connect(socket).await.is_ok() {
            return Err(Error::SocketTaken { path: socket.to_owned() });
        }
        std::fs::remove_file(socket).map_err(wrap)?;
    }
    let listener = UnixListener::bind(socket).map_err(wrap)?;
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o600)).map_err(wrap)?;
    Ok(listener)
}
