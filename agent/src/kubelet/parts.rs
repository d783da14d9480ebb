//! The parts of a kubelet: made, joined and started. Owns their order; what each is told stands in
//! [`super::wiring`]. Called by [`super::run`].
//!
//! ```text
//! static files ─┐                        ┌─► statuses, mirror pods, events ─► API server
//! API server ───┴─► sync ─► agent ─► pods┤
//!                                        └─► 10250, 10255
//! ```

#![expect(
    clippy::disallowed_methods,
    reason = "the assembly starts the parts; each ends with the drain or the process"
)]

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gantry_kube_client::identity::{Clients, Names, Notice, ca};
use gantry_model::shutdown::Shutdown;
use gantry_model::signal::Pressures;
use gantry_model::version;

use crate::config::gates::Gates;
use crate::config::{self, KubeletConfiguration, KubeletFlags};
use crate::csi::allocatable::Allocatable;
use crate::csi::node_info::NodeInfo;
use crate::csi::owner::CsiVolumes;
use crate::devices::DeviceManager;
use crate::dra::DraManager;
use crate::dra::slices::ClusterSlices;
use crate::events::sink::{self, Recorder};
use crate::events::{Kind, NodeNote};
use crate::eviction::run::{self as eviction, Evictor};
use crate::gc::images::{Collector, Reclaimer};
use crate::gc::{links as dead_links, logs};
use crate::healthz::Checks;
use crate::logs::links;
use crate::manifest::api;
use crate::node::ToldLabels;
use crate::plugins::csi::CsiPlugins;
use crate::plugins::devices::DevicePlugins;
use crate::plugins::dra::DraPlugins;
use crate::pod::run::Deps;
use crate::pod::worker::PodHandle;
use crate::pod_source::{self, ApiPods};
use crate::pod_workers::PodWorkers;
use crate::pod_workers::events;
use crate::registration::enforce::{self, Holding};
use crate::registration::health::{self, Pulse};
use crate::registration::machine::{self, HostAddresses};
use crate::registration::stall;
use crate::registration::{self, World};
use crate::runtime::cri::CriRuntime;
use crate::shutdown::bus::SystemBus;
use crate::shutdown::run::{self as shutdown, ShutdownManager};
use crate::status::mirror::{self, Mirrors};
use crate::status::{self, Reported, convert, start_sli};
use crate::{dns, node, oom_watcher, plugins, pod_manager, podresources, static_pods};
use gantry_model::drain::DrainWatcher;
use gantry_server::client_ca::ClientCa;
use gantry_server::health::Check;
use gantry_server::listen::tls_config;
use gantry_server::stats::Stats;
use gantry_server::{RuntimeConnection, Server, ServerDeps, Verbosity};
use k8s_openapi::api::core::v1::Node;
use rustls::server::ResolvesServerCert;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tonic::transport::Channel;

use super::error::Error;
use super::managers;
use super::node_pods::View;
use super::wiring::{self, Listen};

/// What a kubelet is made of.
pub(super) struct Parts<'a> {
    pub(super) flags: &'a KubeletFlags,
    pub(super) config: &'a KubeletConfiguration,
    pub(super) flagz: Vec<(String, String)>,
    pub(super) name: String,
    /// None without an API server.
    pub(super) clients: Option<Clients>,
    pub(super) channel: Channel,
    pub(super) deps: Deps,
    pub(super) runtime: CriRuntime,
    /// Volumes of CSI.
    pub(super) csi: CsiVolumes,
    pub(super) certificate: Arc<dyn ResolvesServerCert>,
    /// Where the serving certificate learns the node's names.
    pub(super) names: watch::Sender<Option<Names>>,
    /// Where pods learn the node's addresses.
    pub(super) ips: watch::Sender<Vec<String>>,
    /// Where volumes learn its labels.
    pub(super) labels: watch::Sender<ToldLabels>,
    pub(super) notices: mpsc::Receiver<Notice>,
    pub(super) checks: Checks,
    pub(super) verbosity: Verbosity,
    pub(super) drain: DrainWatcher,
}

/// What the node's conditions tell of.
struct NodeTold {
    pulse: watch::Receiver<Pulse>,
    pressures: watch::Receiver<Pressures>,
    shutdown: watch::Receiver<Shutdown>,
    /// Learns what of the shutdown was told.
    reported: watch::Sender<Shutdown>,
}

/// Where it is told what threatens the node's pods.
struct Dangers {
    pressures_in: watch::Sender<Pressures>,
    shutdown_in: watch::Sender<Shutdown>,
    /// What of a shutdown the node's last report had.
    reported: watch::Receiver<Shutdown>,
}

/// Admission, the node's conditions, and who tells both.
fn dangers(agent: &mut PodWorkers, pulse: watch::Receiver<Pulse>) -> (NodeTold, Dangers) {
    let (pressures_in, pressures) = watch::channel(Pressures::new());
    let (shutdown_in, shutdown) = watch::channel(Shutdown::Not);
    let (reported_in, reported) = watch::channel(Shutdown::Not);
    agent.watch_pressures(pressures.clone());
    agent.watch_shutdown(shutdown.clone());
    let told_of = NodeTold { pulse, pressures, shutdown, reported: reported_in };
    (told_of, Dangers { pressures_in, shutdown_in, reported })
}

/// What goes on.
pub(super) struct Running {
    pub(super) pods: watch::Receiver<Arc<[PodHandle]>>,
    pub(super) server: Server,
}

impl Parts<'_> {
    /// Starts everything; it ends with the process, or when it is stopped.
    pub(super) async fn start(mut self) -> Result<Running, Error> {
        let (recorder, queue) = sink::queue(self.deps.clock.clone());
        let pulse = health::follow(Arc::new(self.runtime.clone()));
        self.deps.network = health::network(pulse.clone());
        self.deps.recorder = Some(recorder.clone());
        let devices = self.serve_devices()?;
        let mut agent = PodWorkers::start(Vec::new(), self.deps.clone());
        let pods = agent.watch_pods();
        let client = self.clients.as_ref().map(|clients| clients.pods.clone());
        let (seen_in, nothing) = watch::channel(ApiPods::default());
        let seen = client.clone().map(|client| pod_source::follow(client, &self.name));
        let (statics_in, statics) = watch::channel(status::Statics::default());
        let (told_of, dangers) = dangers(&mut agent, pulse);
        let node = self.register(&mut agent, told_of, recorder.clone())?;
        self.follow_plugins(devices, node.clone())?;
        self.hold_pods(recorder.clone()).await?;
        // Their tasks end with the process.
        drop(events::run(self.clients.as_ref().map(|c| c.events.clone()), &self.name, queue, pods.clone()));
        let shown = seen.clone().unwrap_or(nothing);
        let told = self.tell_statuses(shown.clone(), pods.clone(), statics.clone());
        if let Some(client) = client.clone() {
            let (node, seen, pods) = (node.clone(), shown.clone(), pods.clone());
            self.follow_api(Mirrors { client, node, seen, pods, statics });
        }
        let heard = self.serve_pod_resources(pods.clone())?;
        self.delay_shutdown(&dangers, &pods, seen.as_ref(), &recorder);
        let sources = pod_manager::PodSources { seen, node, found: self.static_pods().await };
        let (beat, pulse) = watch::channel(tokio::time::Instant::now());
        let listeners = pod_manager::Listeners { statics: statics_in, beat, heard };
        tokio::spawn(pod_manager::run(agent, sources, listeners));
        // Nobody sends: it is there for as long as somebody listens.
        tokio::spawn(async move { seen_in.closed().await });
        let images = self.housekeeping(&recorder)?;
        self.look_at_machine(&recorder);
        forward(&mut self.notices, recorder.clone());
        let view = View { volumes: self.deps.volumes.clone(), told, seen: shown, workers: pods.clone() };
        let server = self.serve(view, client, self.pulse(pulse)).await?;
        self.evict(eviction::World {
            gauge: Arc::new(server.clone()),
            pods: pods.clone(),
            images,
            recorder,
            metrics: self.deps.metrics.clone(),
            clock: self.deps.clock.clone(),
            pressures: dangers.pressures_in,
        })?;
        Ok(Running { pods, server })
    }

    /// Lets device plugins register at the kubelet's own socket; returns what takes those of the folder. Reads which claims
    /// drivers have prepared.
    fn serve_devices(&mut self) -> Result<DevicePlugins, Error> {
        let root = PathBuf::from(&self.flags.root_dir);
        let (clock, metrics) = (self.deps.clock.clone(), self.deps.metrics.clone());
        let manager = DeviceManager::open(&root, clock, metrics);
        let served = manager.serve();
        served.map_err(|source| Error::DevicePlugins { root: root.clone(), source })?;
        self.deps.devices = manager.clone();
        self.deps.managers = managers::open(&root, self.flags, self.config, self.deps.metrics.clone())?;
        let (clock, metrics) = (self.deps.clock.clone(), self.deps.metrics.clone());
        // Pods of files have no claims; what an earlier kubelet has left is read all the same.
        self.deps.dra = DraManager::open(&root, self.deps.api.clone(), clock, metrics)?;
        Ok(DevicePlugins(manager))
    }

    /// Lets plugins register by their sockets in the folder. Without an API server nobody has volumes of CSI.
    fn follow_plugins(
        &self,
        devices: DevicePlugins,
        node: watch::Receiver<Option<Arc<Node>>>,
    ) -> Result<(), Error> {
        let root = PathBuf::from(&self.flags.root_dir);
        let mut handlers = plugins::Handlers::from([(plugins::devices::TYPE, Arc::new(devices) as _)]);
        let dra = self.deps.dra.clone();
        handlers.insert(plugins::dra::TYPE, Arc::new(DraPlugins(dra.clone())));
        if let Some(clients) = &self.clients {
            dra.wipe(Arc::new(ClusterSlices::new(clients.pods.clone(), &self.name, node.clone())));
            let (drivers, cluster) = (self.csi.drivers(), NodeInfo::new(clients.pods.clone(), &self.name));
            let allocatable = Allocatable::new(self.deps.api.clone(), drivers.clone(), cluster.clone());
            self.csi.ask_anew_by(allocatable.clone());
            self.csi.begin();
            // Ends with the process.
            tokio::spawn(allocatable.run());
            // Ends when it is done.
            tokio::spawn(cluster.clone().begin(drivers.clone(), node));
            handlers.insert(plugins::csi::TYPE, Arc::new(CsiPlugins { drivers, cluster }));
        }
        plugins::follow(&root, handlers, self.deps.metrics.clone())
            .map_err(|source| Error::Plugins { root, source })
    }

    /// Has the API server told of every pod; what comes back is what was told.
    fn tell_statuses(
        &self,
        seen: watch::Receiver<ApiPods>,
        pods: watch::Receiver<Arc<[PodHandle]>>,
        statics: watch::Receiver<status::Statics>,
    ) -> watch::Receiver<Reported> {
        let resizes = wiring::resizes_pod_level(self.config);
        let (told, _) = status::publish(status::StatusSources {
            client: self.clients.as_ref().map(|clients| clients.statuses.clone()),
            pace: self.clients.as_ref().map(|clients| clients.pace.clone()).unwrap_or_default(),
            seen,
            pods,
            statics,
            form: if resizes { convert::status } else { convert::status_without_pod_level },
            metrics: self.deps.metrics.clone(),
        });
        told
    }

    /// Tells monitoring agents which pod has what, once whoever takes up pods says there that every source has been heard.
    fn serve_pod_resources(
        &self,
        pods: watch::Receiver<Arc<[PodHandle]>>,
    ) -> Result<watch::Sender<bool>, Error> {
        let (heard_in, heard) = watch::channel(false);
        let root = PathBuf::from(&self.flags.root_dir);
        let Deps { devices, dra, managers, metrics, clock, .. } = self.deps.clone();
        let with_ended = wiring::lists_ended_pods(self.config);
        let sources =
            podresources::Sources { pods, heard, devices, dra, managers, with_ended, metrics, clock };
        podresources::serve(&root, sources).map_err(|source| Error::PodResources { root, source })?;
        Ok(heard_in)
    }

    /// What only a kubelet with an API server does for its pods.
    fn follow_api(&self, mirrors: Mirrors) {
        let (seen, pods) = (mirrors.seen.clone(), mirrors.pods.clone());
        drop(mirror::keep(mirrors));
        drop(start_sli::follow(seen, pods, self.deps.metrics.clone(), self.deps.clock.clone()));
    }

    /// Ends pods when the node runs short.
    fn evict(&self, world: eviction::World) -> Result<(), Error> {
        let evictor = Evictor::new(wiring::eviction(self.config)?, world);
        tokio::spawn(evictor.run(self.drain.clone()));
        Ok(())
    }

    /// Ends pods before the machine goes down, where it is to wait for them.
    fn delay_shutdown(
        &self,
        dangers: &Dangers,
        pods: &watch::Receiver<Arc<[PodHandle]>>,
        seen: Option<&watch::Receiver<ApiPods>>,
        recorder: &Recorder,
    ) {
        let Some(policy) = wiring::shutdown(self.config) else {
            tracing::info!("No graceful configuration specified, node shutdown will be immediate");
            return;
        };
        let world = shutdown::ShutdownWorld {
            logind: Arc::new(SystemBus::of_machine()),
            pods: pods.clone(),
            seen: seen.cloned(),
            shutdown: dangers.shutdown_in.clone(),
            reported: dangers.reported.clone(),
            recorder: recorder.clone(),
            metrics: self.deps.metrics.clone(),
            clock: self.deps.clock.clone(),
            root: PathBuf::from(&self.flags.root_dir),
        };
        tokio::spawn(ShutdownManager::new(policy, world).run(self.drain.clone()));
    }

    async fn static_pods(&self) -> Option<watch::Receiver<static_pods::choice::StaticPods>> {
        let (folder, address) = (wiring::folder(self.config), wiring::address(self.config));
        static_pods::follow_all(folder, address, self.name.clone()).await
    }

    /// The Node object, and what admission and the serving certificate learn of it.
    fn register(
        &self,
        agent: &mut PodWorkers,
        told_of: NodeTold,
        recorder: Recorder,
    ) -> Result<watch::Receiver<Option<Arc<Node>>>, Error> {
        let Some(clients) = self.clients.clone() else {
            let (_, node) = watch::channel(None);
            return Ok(node);
        };
        let settings = wiring::registration(self.flags, self.config, &self.name)?;
        let NodeTold { pulse, pressures, shutdown, reported } = told_of;
        let world = World {
            client: clients.lease.clone(),
            lease: clients.lease.clone(),
            troubled: Arc::new(move || clients.renew()),
            about: Arc::new(self.runtime.clone()),
            pulse,
            machine: machine::read(&PathBuf::from(&self.flags.root_dir))?,
            addresses: Arc::new(HostAddresses),
            volumes: self.deps.volumes.clone(),
            volumes_in_use: self.csi.attachments().in_use(),
            recorder,
            clock: self.deps.clock.clone(),
            devices: self.deps.devices.amounts(),
            troubles: stall::follow(self.deps.runtime.clone(), self.deps.metrics.clone()),
            pressures,
            shutdown,
            reported,
            metrics: self.deps.metrics.clone(),
        };
        let rules = wiring::admission(self.config)?;
        Ok(self.learn(agent, registration::start(settings, world), rules))
    }

    /// What depends on the Node object learns of it; told on last: who knows the node may count on its admission.
    fn learn(
        &self,
        agent: &mut PodWorkers,
        mut node: watch::Receiver<Option<Arc<Node>>>,
        rules: api::NodeSettings,
    ) -> watch::Receiver<Option<Arc<Node>>> {
        let (admission_in, admission) = watch::channel(None);
        agent.admit_by(admission);
        let (known_in, known) = watch::channel(None);
        let (names, ips, attachments) =
            (self.names.clone(), self.ips.clone(), self.csi.attachments().clone());
        let labels = self.labels.clone();
        tokio::spawn(async move {
            loop {
                let now = node.borrow_and_update().clone();
                if let Some(node) = &now {
                    attachments.see_node(node);
                    let now = node.metadata.labels.clone().unwrap_or_default();
                    labels.send_if_modified(|old| replace(old, Some(now)));
                    admission_in.send_replace(Some(Arc::new(api::node(node, &rules))));
                    names.send_if_modified(|old| replace(old, Some(names_of(node))));
                    // One that tells none yet takes none away.
                    let told = node::host_ips(node);
                    ips.send_if_modified(|old| !told.is_empty() && replace(old, told));
                }
                known_in.send_replace(now);
                if node.changed().await.is_err() {
                    return;
                }
            }
        });
        known
    }

    /// Pods together get what is not reserved, and daemons what is.
    async fn hold_pods(&self, recorder: Recorder) -> Result<(), Error> {
        let settings = wiring::registration(self.flags, self.config, &self.name)?;
        let machine = machine::read(&PathBuf::from(&self.flags.root_dir))?;
        let holding = Holding {
            cgroups: self.deps.cgroups.clone(),
            root: self.config.cgroup_root.clone(),
            recorder,
            metrics: self.deps.metrics.clone(),
        };
        let reserved = wiring::reserved_cgroups(self.config);
        enforce::reserve(&reserved, &holding).await.map_err(Error::Reserved)?;
        // Ends once it has worked.
        drop(enforce::start(&settings, &machine, holding));
        Ok(())
    }

    /// Logs and images that nobody needs; returns who frees more of these at once.
    fn housekeeping(&self, recorder: &Recorder) -> Result<Reclaimer, Error> {
        let keeper = Arc::new(self.runtime.clone());
        let clock = self.deps.clock.clone();
        let rotation = wiring::logs(self.config)?;
        tokio::spawn(logs::run(rotation, keeper.clone(), clock.clone(), self.drain.clone()));
        let folder = PathBuf::from(links::FOLDER);
        let tracer = self.deps.tracer.clone();
        let sweep = dead_links::sweep_for_ever(folder, keeper.clone(), tracer.clone(), self.drain.clone());
        tokio::spawn(sweep);
        let collector =
            Collector::new(wiring::images(self.config), keeper, clock.clone()).with_tracer(tracer);
        let reclaimer = collector.reclaimer();
        let (recorder, metrics, pulls) =
            (recorder.clone(), self.deps.metrics.clone(), self.deps.images.clone());
        let mut before = clock.wall_nanos();
        tokio::spawn(collector.run(self.drain.clone(), move |outcome| {
            let aged = outcome.for_age;
            for (reason, count) in [("age", aged), ("space", outcome.freed.len().saturating_sub(aged))] {
                (0..count).for_each(|_| metrics.image_garbage_collected.inc([reason]));
            }
            if !outcome.freed.is_empty() {
                // What was recorded since the look before may be of an image that it did not see.
                pulls.prune(&outcome.left, before);
            }
            before = clock.wall_nanos();
            for warning in outcome.warnings {
                let kind = Kind::Warning;
                recorder.node(NodeNote { kind, reason: warning.reason, message: warning.message });
            }
        }));
        Ok(reclaimer)
    }

    /// What is told of the machine beside its conditions.
    fn look_at_machine(&self, recorder: &Recorder) {
        tokio::spawn(dns::source::warn(self.deps.node.resolver.clone(), recorder.clone()));
        oom_watcher::watch(recorder.clone());
        for (name, stage, open) in Gates::default().all(&self.config.feature_gates) {
            self.deps.metrics.feature_enabled.set([name, stage], f64::from(u8::from(open)));
        }
    }

    /// 10250, and 10255 if it is on.
    async fn serve(&self, view: View, client: Option<kube::Client>, pulse: Check) -> Result<Server, Error> {
        let client_ca = client_ca(wiring::client_ca(self.config).as_deref())?;
        let configz = config::configz(self.config)["kubeletconfig"].clone();
        let stats = Stats::new(wiring::stats(self.flags, self.config)?)?;
        let runtime_ext = self.deps.runtime_ext.clone();
        let sources = ServerDeps {
            node_name: self.name.clone(),
            pods: Arc::new(view),
            runtime: RuntimeConnection {
                channel: self.channel.clone(),
                request_timeout: self.config.runtime_request_timeout.duration(),
            },
            configz: Arc::new(move || configz.clone()),
            flagz: self.flagz.clone(),
            version: version::KUBELET.to_owned(),
            metrics: self.deps.metrics.clone(),
            probe_metrics: self.deps.probe_metrics.clone(),
            checks: vec![pulse, self.registration_of_devices()],
            oom_counts: Arc::new(move |container| runtime_ext.out_of_memory(container)),
            system: wiring::system_version(),
            stats,
            verbosity: self.verbosity.clone(),
            tracer: self.deps.tracer.clone(),
        };
        let server = Server::new(
            wiring::server(self.config, Path::new(&self.flags.root_dir)),
            sources,
            wiring::authentication(self.config, client_ca),
            wiring::authorization(self.config),
            client,
        )?;
        let keeping = server.clone();
        tokio::spawn(async move { keeping.keep_stats().await });
        let listen = async |address: SocketAddr| -> Result<TcpListener, Error> {
            super::health::listen(address).await.map_err(|source| Error::Listen { address, source })
        };
        let Listen { api, read_only, healthz: _ } = wiring::listen(self.config)?;
        if let Some(address) = api {
            let tls = tls_config(self.certificate.clone(), &wiring::tls(self.config)?)?;
            let (listener, server) = (listen(address).await?, server.clone());
            tokio::spawn(async move { server.serve_tls(listener, tls).await });
        }
        if let Some(address) = read_only {
            let (listener, server) = (listen(address).await?, server.clone());
            tokio::spawn(async move { server.serve_read_only(listener).await });
        }
        Ok(server)
    }

    /// Whether device plugins can register.
    fn registration_of_devices(&self) -> Check {
        let devices = self.deps.devices.clone();
        let look = move || devices.check();
        self.checks.add("device-plugin", look.clone());
        Check::new("device-plugin", look)
    }

    /// Whether the loop over all pods still comes round.
    fn pulse(&self, last: watch::Receiver<tokio::time::Instant>) -> Check {
        let most = (self.config.sync_frequency.duration() * 2).max(Duration::from_secs(5 * 60));
        let look = move || {
            let since = last.borrow().elapsed();
            if since > most {
                return Err(format!(
                    "sync Loop took longer than expected (tolerance: {most:?}, last: {since:?})"
                ));
            }
            Ok(())
        };
        self.checks.add("syncloop", look.clone());
        Check::new("syncloop", look)
    }
}

fn replace<T: PartialEq>(old: &mut T, new: T) -> bool {
    let changed = *old != new;
    *old = new;
    changed
}

/// As upstream reads a node's addresses.
fn names_of(node: &Node) -> Names {
    let mut names = Names::default();
    for address in node.status.iter().flat_map(|status| status.addresses.iter().flatten()) {
        let text = &address.address;
        match (address.type_.as_str(), text.parse::<IpAddr>()) {
            ("Hostname" | "InternalIP" | "ExternalIP", Ok(ip)) => {
                names.ips.insert(ip);
            }
            ("Hostname" | "InternalDNS" | "ExternalDNS", _) if !text.is_empty() => {
                names.dns.insert(text.clone());
            }
            _ => {}
        }
    }
    names
}

/// The client CA's file, as it is from time to time.
fn client_ca(file: Option<&Path>) -> Result<ClientCa, Error> {
    let client_ca = ClientCa::default();
    let Some(file) = file else { return Ok(client_ca) };
    let mut bundles = ca::follow(file, ca::EVERY)?;
    let first = bundles.borrow_and_update().clone();
    client_ca.trust(&first).map_err(|source| Error::Trust { path: file.to_owned(), source })?;
    let followed = client_ca.clone();
    tokio::spawn(async move {
        while bundles.changed().await.is_ok() {
            let bundle = bundles.borrow_and_update().clone();
            if let Err(error) = followed.trust(&bundle) {
                tracing::warn!(err = %error, "keeping the client CA as it was");
            }
        }
    });
    Ok(client_ca)
}

/// What is told of certificates becomes events of the node.
fn forward(notices: &mut mpsc::Receiver<Notice>, recorder: Recorder) {
    let (_, none) = mpsc::channel(1);
    let mut notices = std::mem::replace(notices, none);
    tokio::spawn(async move {
        while let Some(Notice { warning, reason, message }) = notices.recv().await {
            let kind = if warning { Kind::Warning } else { Kind::Normal };
            recorder.node(NodeNote { kind, reason, message });
        }
    });
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{NodeAddress, NodeStatus};

    use super::*;

    #[test]
    fn names_are_hosts_and_addresses_of_the_node() {
        let address =
            |type_: &str, address: &str| NodeAddress { address: address.to_owned(), type_: type_.to_owned() };
        let addresses = vec![
            address("InternalIP", "10.0.0.1"),
            address("ExternalIP", "fd00::1"),
            address("Hostname", "n1"),
            address("Hostname", "10.0.0.2"),
            address("InternalDNS", "n1.local"),
            address("InternalIP", ""),
            address("Other", "x"),
        ];
        let status = NodeStatus { addresses: Some(addresses), ..NodeStatus::default() };
        let names = names_of(&Node { status: Some(status), ..Node::default() });
        assert_eq!(names.dns, ["n1".to_owned(), "n1.local".to_owned()].into());
        let ips = ["10.0.0.1", "10.0.0.2", "fd00::1"].map(|ip| ip.parse().unwrap());
        assert_eq!(names.ips, ips.into());
    }
}
