//! A message bus in this place alone, where programs look for the system's, with a logind on it that a test plays. Owns
//! both and their end; never shuts anything down: who sends PrepareForShutdown is the test. Called by the node suite.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::runtime::Runtime;
use zbus::connection::{Builder, Connection};
use zbus::zvariant;

use super::isolation;
use super::process::{NodeProcess, ProcessSpec};
use crate::poll::poll;

/// Where every client of the system bus looks.
const SOCKET: &str = "/run/dbus/system_bus_socket";
const LOGIND: &str = "org.freedesktop.login1";
const LOGIND_PATH: &str = "/org/freedesktop/login1";
/// More than any configuration of the suites asks for: so nobody writes logind's drop-in, which would be this host's.
const LONGEST_DELAY: Duration = Duration::from_secs(3600);
/// The policy that is shipped, below the root of the sources.
const POLICY: &str = "contrib/dbus/gantry-kubelet.conf";

/// Both; ended on drop, the connection first.
#[derive(Debug)]
pub struct SystemBus {
    _logind: Connection,
    _serving: Runtime,
    daemon: NodeProcess,
}

impl SystemBus {
    /// Starts a bus with the shipped policy, and logind on it. `sources` is the root of the repository.
    ///
    /// # Errors
    /// When `/run` is the host's, dbus-daemon is missing or does not come up in 20 s, or the name is not given.
    pub fn start(sources: &Path, folder: &Path, logs: &Path) -> Result<Self> {
        isolation::require()?;
        fs::create_dir_all("/run/dbus").context("make /run/dbus")?;
        let config = folder.join("system-bus.conf");
        fs::write(&config, configuration(&sources.join(POLICY))).context("write the bus's configuration")?;
        let words = ["--nofork".to_owned(), format!("--config-file={}", config.display())];
        let daemon = NodeProcess::start(ProcessSpec::new("dbus-daemon", "dbus-daemon", words), logs)
            .with_context(|| gantry_needs::remedy("dbus-daemon"))?;
        poll("the system bus", Duration::from_secs(20), || {
            if Path::new(SOCKET).exists() { Ok(()) } else { Err(format!("no {SOCKET}")) }
        })?;
        let serving = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let logind = serving.block_on(play()).context("play logind")?;
        Ok(Self { _logind: logind, _serving: serving, daemon })
    }

    /// Ends both.
    ///
    /// # Errors
    /// When the daemon does not end.
    pub fn end(mut self) -> Result<()> {
        self.daemon.stop().map(drop)
    }
}

/// As the system bus is on a usual machine: anybody may send signals, root alone owns names and is asked.
fn configuration(policy: &Path) -> String {
    format!(
        r#"<busconfig>
  <type>system</type>
  <listen>unix:path={SOCKET}</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/>
    <deny own="*"/>
    <deny send_type="method_call"/>
    <allow send_type="signal"/>
    <allow send_requested_reply="true" send_type="method_return"/>
    <allow send_requested_reply="true" send_type="error"/>
    <allow receive_type="method_call"/>
    <allow receive_type="method_return"/>
    <allow receive_type="error"/>
    <allow receive_type="signal"/>
    <allow send_destination="org.freedesktop.DBus"/>
  </policy>
  <policy user="root">
    <allow own="*"/>
    <allow send_type="method_call"/>
  </policy>
  <include>{}</include>
</busconfig>
"#,
        policy.display()
    )
}

async fn play() -> Result<Connection> {
    let address = format!("unix:path={SOCKET}");
    let builder = Builder::address(address.as_str())?.serve_at(LOGIND_PATH, Logind { held: Vec::new() })?;
    Ok(builder.name(LOGIND)?.build().await?)
}

/// What a kubelet asks of it.
struct Logind {
    /// The other ends of its locks.
    held: Vec<OwnedFd>,
}

#[zbus::interface(name = "org.freedesktop.login1.Manager")]
impl Logind {
    #[zbus(property, name = "InhibitDelayMaxUSec")]
    fn max_delay(&self) -> u64 {
        LONGEST_DELAY.as_micros().try_into().unwrap_or(u64::MAX)
    }

    /// A suite announces shutdowns that no logind would know of.
    #[zbus(property)]
    fn preparing_for_shutdown(&self) -> bool {
        false
    }

    fn inhibit(
        &mut self,
        what: &str,
        who: &str,
        why: &str,
        mode: &str,
    ) -> zbus::fdo::Result<zvariant::OwnedFd> {
        let failed = |error: rustix::io::Errno| {
            zbus::fdo::Error::Failed(format!("{what} {who} {why} {mode}: {error}"))
        };
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(failed)?;
        self.held.push(reader);
        Ok(writer.into())
    }
}
