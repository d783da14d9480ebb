//! Plugins that make themselves known by a socket in `ROOT/plugins_registry`: device plugins, CSI drivers and DRA drivers.
//! Owns which sockets are there and how far each has come; never knows what a plugin does, which is its handler's. Started
//! by [`crate::kubelet`].
//!
//! ```text
//!  (socket appears) ──▶ Registering ──▶ Registered ──socket goes──▶ (deregistered)
//!                          │  ▲                       or is made anew
//!                        fails│ after a wait
//!                          ▼  │
//!                         Failed
//! ```

#![expect(
    clippy::disallowed_methods,
    reason = "the registry follows its folder as long as the kubelet lives"
)]

mod client;
pub(crate) mod csi;
pub(crate) mod devices;
pub(crate) mod dra;
mod folder;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use gantry_metrics::Metrics;
use tokio::task::JoinSet;
use tokio::time::Instant;

use folder::{Ear, Identity};

/// In the kubelet's folder.
const FOLDER: &str = "plugins_registry";
/// Waits before a plugin that failed is asked again, as upstream's.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(122);
/// How often the folder is looked at where the kernel does not tell.
const LOOK: Duration = Duration::from_secs(10);
/// And where it does.
const LONGEST_REST: Duration = Duration::from_secs(600);

/// What a plugin says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plugin {
    pub(crate) name: String,
    /// Of the socket that it serves its work on.
    pub(crate) endpoint: PathBuf,
    pub(crate) versions: Vec<String>,
}

/// Who uses plugins of a type.
pub(crate) trait Handler: Send + Sync + std::fmt::Debug {
    /// Whether the plugin can be used.
    ///
    /// # Errors
    /// Why not; the plugin is told.
    fn validate(&self, plugin: &Plugin) -> Result<(), String>;
    /// Uses it from now on.
    ///
    /// # Errors
    /// Why that failed; the plugin is told, and asked again later.
    fn register<'a>(&'a self, plugin: &'a Plugin) -> BoxFuture<'a, Result<(), String>>;
    /// It has gone.
    fn deregister<'a>(&'a self, plugin: &'a Plugin) -> BoxFuture<'a, ()>;
}

/// By the type that plugins tell: `DevicePlugin`.
pub(crate) type Handlers = BTreeMap<&'static str, Arc<dyn Handler>>;

/// A plugin that is used, and by whom.
type Used = (Plugin, Arc<dyn Handler>);

/// How far a socket's plugin has come; see the module's drawing.
#[derive(Debug)]
enum State {
    Registering { wait: Duration },
    Registered(Used),
    Failed { until: Instant, wait: Duration },
}

/// Follows the folder until the process ends.
///
/// # Errors
/// When the folder cannot be made.
pub(crate) fn follow(root: &Path, handlers: Handlers, metrics: Arc<Metrics>) -> std::io::Result<()> {
    let folder = root.join(FOLDER);
    folder::make(&folder)?;
    tokio::spawn(async move { Registry::new(folder, handlers, metrics).run().await });
    Ok(())
}

/// The folder's plugins.
#[derive(Debug)]
struct Registry {
    folder: PathBuf,
    handlers: Arc<Handlers>,
    sockets: BTreeMap<PathBuf, (Identity, State)>,
    /// One for each that is Registering.
    attempts: JoinSet<Attempt>,
    metrics: Arc<Metrics>,
}

#[derive(Debug)]
struct Attempt {
    socket: PathBuf,
    identity: Identity,
    outcome: Result<Used, String>,
}

impl Registry {
    fn new(folder: PathBuf, handlers: Handlers, metrics: Arc<Metrics>) -> Self {
        let handlers = Arc::new(handlers);
        Self { folder, handlers, sockets: BTreeMap::new(), attempts: JoinSet::new(), metrics }
    }

    /// Which sockets are there, and which of them are registered, by upstream's names of the two.
    fn count(&self) {
        let of = |socket: &PathBuf, state: &str| ([socket.display().to_string(), state.to_owned()], 1.0);
        let desired = self.sockets.keys().map(|socket| of(socket, "desired_state_of_world"));
        let registered = self.sockets.iter().filter(|(_, (_, state))| matches!(state, State::Registered(_)));
        let actual = registered.map(|(socket, _)| of(socket, "actual_state_of_world"));
        self.metrics.plugin_manager_plugins.replace(desired.chain(actual));
    }

    /// All arms are cancel-safe: an attempt that has ended stays in its set, the kernel's news stay until they are read,
    /// and a timer has no state worth keeping.
    async fn run(mut self) {
        let mut ear = Ear::new();
        loop {
            // Listens first: what comes while it looks is heard.
            ear.listen(&self.folder);
            self.look().await;
            let pause = self.begin(if ear.is_open() { LONGEST_REST } else { LOOK });
            self.count();
            tokio::select! {
                () = ear.heard() => {}
                Some(joined) = self.attempts.join_next() => match joined {
                    Ok(attempt) => self.settle(attempt).await,
                    Err(error) => tracing::error!(%error, "a plugin's registration died"),
                },
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Takes in which sockets are there; what has gone or is another by now is used no more.
    async fn look(&mut self) {
        let folder = self.folder.clone();
        let found = tokio::task::spawn_blocking(move || folder::sockets(&folder)).await;
        let found = match found {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => {
                tracing::warn!(%error, "the folder of plugins cannot be read; its plugins stay as they are");
                return;
            }
            Err(error) => {
                tracing::error!(%error, "looking for plugins died");
                return;
            }
        };
        let gone =
            |(socket, (identity, _)): &(&PathBuf, &(Identity, State))| found.get(*socket) != Some(identity);
        let gone: Vec<PathBuf> = self.sockets.iter().filter(gone).map(|(socket, _)| socket.clone()).collect();
        for socket in gone {
            if let Some((_, State::Registered((plugin, handler)))) = self.sockets.remove(&socket) {
                tracing::info!(plugin = plugin.name, socket = %socket.display(), "a plugin's socket has gone");
                handler.deregister(&plugin).await;
            }
        }
        for (socket, identity) in found {
            let failed = State::Failed { until: Instant::now(), wait: Duration::ZERO };
            self.sockets.entry(socket).or_insert((identity, failed));
        }
    }

    /// Begins what is due; how long until something is due again, `longest` at most.
    fn begin(&mut self, longest: Duration) -> Duration {
        let now = Instant::now();
        let mut pause = longest;
        for (socket, (identity, state)) in &mut self.sockets {
            let State::Failed { until, wait } = *state else { continue };
            if until > now {
                pause = pause.min(until - now);
                continue;
            }
            *state = State::Registering { wait };
            let (socket, identity, handlers) = (socket.clone(), *identity, self.handlers.clone());
            self.attempts.spawn(async move {
                let outcome = client::register(&socket, &handlers).await;
                Attempt { socket, identity, outcome }
            });
        }
        pause
    }

    async fn settle(&mut self, attempt: Attempt) {
        let Attempt { socket, identity, outcome } = attempt;
        let state = self.sockets.get_mut(&socket).filter(|(current, _)| *current == identity);
        match (state, outcome) {
            (Some((_, state)), Ok(used)) => {
                tracing::info!(plugin = used.0.name, socket = %socket.display(), "a plugin is registered");
                *state = State::Registered(used);
            }
            (Some((_, state)), Err(why)) => {
                let before = match state {
                    State::Registering { wait } => *wait,
                    _ => Duration::ZERO,
                };
                let wait = (before * 2).clamp(FIRST_WAIT, LONGEST_WAIT);
                tracing::warn!(socket = %socket.display(), why, "a plugin is not registered; it is asked again");
                *state = State::Failed { until: Instant::now() + wait, wait };
            }
            // Gone, or made anew, while it was asked.
            (None, Ok((plugin, handler))) => handler.deregister(&plugin).await,
            (None, Err(_)) => {}
        }
    }
}

#[cfg(test)]
mod tests;
