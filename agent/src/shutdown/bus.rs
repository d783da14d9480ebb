//! logind on the machine's message bus. Owns the D-Bus of it and the drop-in that raises its limit; never decides how long
//! a shutdown is delayed. Called by [`super::run`] through [`super::logind`]. Why zbus: docs/adr/0043-logind-by-zbus.md.

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt};
use gantry_base::files;
use zbus::message::{Message, Type};
use zbus::zvariant::{DynamicType, OwnedValue};
use zbus::{Connection, MatchRule, MessageStream, connection};

use super::decide;
use super::logind::{DelayLock, Error, Logind, LogindReply, Session};

const LOGIND: &str = "org.freedesktop.login1";
const LOGIND_PATH: &str = "/org/freedesktop/login1";
const LOGIND_MANAGER: &str = "org.freedesktop.login1.Manager";
const SYSTEMD: &str = "org.freedesktop.systemd1";
const SYSTEMD_PATH: &str = "/org/freedesktop/systemd1";
const SYSTEMD_MANAGER: &str = "org.freedesktop.systemd1.Manager";
const PROPERTIES: &str = "org.freedesktop.DBus.Properties";

/// What is delayed, who delays it, why and how, as upstream's `systemd-inhibit --list` shows it.
const DELAY: (&str, &str, &str, &str) =
    ("shutdown", "kubelet", "Kubelet needs time to handle node shutdown", "delay");
/// One that hangs is tried again.
const PATIENCE: Duration = Duration::from_secs(10);
/// SIGHUP: logind reads its configuration again.
const HANG_UP: i32 = 1;
/// Where logind reads drop-ins; a name in one folder hides the same name in those after it.
const FOLDERS: [&str; 4] = [
    "etc/systemd/logind.conf.d",
    "run/systemd/logind.conf.d",
    "usr/local/lib/systemd/logind.conf.d",
    "usr/lib/systemd/logind.conf.d",
];

/// logind of this machine.
#[derive(Debug)]
pub(crate) struct SystemBus {
    /// The machine's root folder.
    root: PathBuf,
}

impl SystemBus {
    /// As every program of the machine finds it.
    pub(crate) fn of_machine() -> Self {
        Self { root: PathBuf::from("/") }
    }

    async fn open(&self) -> Result<Box<dyn Session>, Error> {
        let unreachable = wrap("connect to the system bus");
        let builder = connection::Builder::system().map_err(&unreachable)?.method_timeout(PATIENCE);
        let opened = tokio::time::timeout(PATIENCE, builder.build()).await;
        let bus =
            opened.map_err(|late| Error::Bus { what: "connect to the system bus", source: late.into() })?;
        Ok(Box::new(BusSession::begin(bus.map_err(unreachable)?, &self.root).await?))
    }
}

impl Logind for SystemBus {
    fn connect(&self) -> LogindReply<'_, Box<dyn Session>> {
        self.open().boxed()
    }

    fn overruling(&self) -> Option<PathBuf> {
        decide::overruling(&drop_ins(&self.root)).map(Path::to_owned)
    }
}

/// Every drop-in that counts. What cannot be read names nobody.
fn drop_ins(root: &Path) -> Vec<(PathBuf, String)> {
    let mut found: Vec<(PathBuf, String)> = Vec::new();
    for folder in FOLDERS {
        let entries = std::fs::read_dir(root.join(folder)).into_iter().flatten().flatten();
        for path in
            entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == "conf"))
        {
            let hidden = found.iter().any(|(other, _)| other.file_name() == path.file_name());
            if !hidden && let Ok(text) = std::fs::read_to_string(&path) {
                found.push((path, text));
            }
        }
    }
    found
}

#[derive(Debug)]
struct BusSession {
    bus: Connection,
    announcements: MessageStream,
    drop_in: PathBuf,
}

impl BusSession {
    /// Listens first: no announcement comes between it and the lock.
    async fn begin(bus: Connection, root: &Path) -> Result<Self, Error> {
        let deaf = wrap("listen to logind");
        let announcements =
            MessageStream::for_match_rule(announcement().map_err(&deaf)?, &bus, None).await.map_err(deaf)?;
        let drop_in = root.join(FOLDERS[0]).join(decide::DROP_IN);
        Ok(Self { bus, announcements, drop_in })
    }

    async fn ask<B>(&self, interface: &str, method: &'static str, words: &B) -> Result<Message, Error>
    where
        B: serde::Serialize + DynamicType + Sync,
    {
        let answer = self.bus.call_method(Some(LOGIND), LOGIND_PATH, Some(interface), method, words).await;
        answer.map_err(wrap(method))
    }

    async fn property<T>(&self, name: &'static str) -> Result<T, Error>
    where
        T: TryFrom<OwnedValue, Error = zbus::zvariant::Error>,
    {
        let answer = self.ask(PROPERTIES, "Get", &(LOGIND_MANAGER, name)).await?;
        let value: OwnedValue = answer.body().deserialize().map_err(wrap(name))?;
        value.try_into().map_err(|error: zbus::zvariant::Error| wrap(name)(error.into()))
    }

    async fn raise(&self, to: Duration) -> Result<(), Error> {
        let failed = |source| Error::DropIn { path: self.drop_in.clone(), source };
        if let Some(folder) = self.drop_in.parent() {
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        files::replace(&self.drop_in, decide::drop_in(to).as_bytes(), 0o644).map_err(failed)?;
        let unit = ("systemd-logind.service", "all", HANG_UP);
        let told =
            self.bus.call_method(Some(SYSTEMD), SYSTEMD_PATH, Some(SYSTEMD_MANAGER), "KillUnit", &unit);
        told.await.map(drop).map_err(wrap("have logind read its configuration"))
    }

    async fn lock(&self) -> Result<DelayLock, Error> {
        let answer = self.ask(LOGIND_MANAGER, "Inhibit", &DELAY).await?;
        let lock: zbus::zvariant::OwnedFd =
            answer.body().deserialize().map_err(wrap("take a delay lock of logind"))?;
        Ok(lock.into())
    }
}

/// Whoever sends it, as upstream: its suite plays logind over a connection that it closes at once, and the bus does not
/// tell who that was. `contrib/dbus` leaves it to root.
fn announcement() -> zbus::Result<MatchRule<'static>> {
    let rule = MatchRule::builder().msg_type(Type::Signal).path(LOGIND_PATH)?;
    Ok(rule.interface(LOGIND_MANAGER)?.member("PrepareForShutdown")?.build())
}

impl Session for BusSession {
    fn max_delay(&self) -> LogindReply<'_, Duration> {
        async { Ok(Duration::from_micros(self.property("InhibitDelayMaxUSec").await?)) }.boxed()
    }

    fn raise_max_delay(&self, to: Duration) -> LogindReply<'_, ()> {
        self.raise(to).boxed()
    }

    fn is_shutting_down(&self) -> LogindReply<'_, bool> {
        self.property("PreparingForShutdown").boxed()
    }

    fn inhibit(&self) -> LogindReply<'_, DelayLock> {
        self.lock().boxed()
    }

    fn announcement(&mut self) -> BoxFuture<'_, Option<bool>> {
        async {
            loop {
                // Of a connection that ends, the last one is why.
                let Ok(message) = self.announcements.next().await? else { return None };
                match message.body().deserialize::<bool>() {
                    Ok(begins) => return Some(begins),
                    Err(error) => tracing::error!(err = %error, "PrepareForShutdown of another form"),
                }
            }
        }
        .boxed()
    }
}

fn wrap(what: &'static str) -> impl Fn(zbus::Error) -> Error {
    move |source| Error::Bus { what, source: source.into() }
}

#[cfg(test)]
mod tests;
