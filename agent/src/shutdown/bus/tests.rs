//! The bytes on the bus, against zbus's own server end: a logind and a systemd that the test plays.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex};

use rustix::pipe::{PipeFlags, pipe_with};
use tokio::net::UnixStream;
use zbus::object_server::SignalEmitter;
use zbus::zvariant::OwnedFd;

use super::*;

type Seen = Arc<Mutex<Vec<String>>>;

struct FakeLogind {
    seen: Seen,
    readers: Arc<Mutex<Vec<std::os::fd::OwnedFd>>>,
}

#[zbus::interface(name = "org.freedesktop.login1.Manager")]
impl FakeLogind {
    #[zbus(property, name = "InhibitDelayMaxUSec")]
    fn max_delay(&self) -> u64 {
        5_000_000
    }

    #[zbus(property)]
    fn preparing_for_shutdown(&self) -> bool {
        true
    }

    #[zbus(name = "Inhibit")]
    fn inhibit(&self, what: &str, who: &str, why: &str, mode: &str) -> OwnedFd {
        self.seen.lock().unwrap().push([what, who, why, mode].join("|"));
        let (reader, writer) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).unwrap();
        self.readers.lock().unwrap().push(reader);
        writer.into()
    }

    #[zbus(signal)]
    async fn prepare_for_shutdown(emitter: &SignalEmitter<'_>, begins: bool) -> zbus::Result<()>;
}

struct FakeSystemd {
    seen: Seen,
}

#[zbus::interface(name = "org.freedesktop.systemd1.Manager")]
impl FakeSystemd {
    #[zbus(name = "KillUnit")]
    fn kill_unit(&self, unit: &str, who: &str, signal: i32) {
        self.seen.lock().unwrap().push(format!("{unit}|{who}|{signal}"));
    }
}

#[derive(Debug)]
struct BusFixture {
    machine: Connection,
    session: BusSession,
    seen: Seen,
    readers: Arc<Mutex<Vec<std::os::fd::OwnedFd>>>,
    root: tempfile::TempDir,
}

async fn connected() -> BusFixture {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (seen, readers) = (Seen::default(), Arc::default());
    let logind = FakeLogind { seen: seen.clone(), readers: Arc::clone(&readers) };
    let systemd = FakeSystemd { seen: seen.clone() };
    let serving = connection::Builder::unix_stream(theirs)
        .server(zbus::Guid::generate())
        .unwrap()
        .p2p()
        .serve_at(LOGIND_PATH, logind)
        .unwrap()
        .serve_at(SYSTEMD_PATH, systemd)
        .unwrap();
    let (machine, bus) = tokio::join!(serving.build(), connection::Builder::unix_stream(ours).p2p().build());
    let root = tempfile::tempdir().unwrap();
    let session = BusSession::begin(bus.unwrap(), root.path()).await.unwrap();
    BusFixture { machine: machine.unwrap(), session, seen, readers, root }
}

#[tokio::test]
async fn a_lock_has_upstreams_words_and_is_released_by_closing_it() {
    let machine = connected().await;
    assert_eq!(machine.session.max_delay().await.unwrap(), Duration::from_secs(5));
    assert!(machine.session.is_shutting_down().await.unwrap());
    let lock = machine.session.inhibit().await.unwrap();
    assert_eq!(
        *machine.seen.lock().unwrap(),
        ["shutdown|kubelet|Kubelet needs time to handle node shutdown|delay"]
    );
    let ended = || rustix::io::read(&machine.readers.lock().unwrap()[0], &mut [0; 1]);
    // Whoever sent it may hold its own end for a moment longer.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(ended(), Err(rustix::io::Errno::AGAIN), "it is held");
    drop(lock);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(ended(), Ok(0), "it is released");
}

#[tokio::test]
async fn a_longer_delay_is_a_drop_in_that_nobody_executes_and_logind_reads_it() {
    let machine = connected().await;
    machine.session.raise_max_delay(Duration::from_secs(30)).await.unwrap();
    let path = machine.root.path().join("etc/systemd/logind.conf.d/99-kubelet.conf");
    assert!(fs::read_to_string(&path).unwrap().ends_with("[Login]\nInhibitDelayMaxSec=30\n"));
    // Upstream's issue 97949.
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
    assert_eq!(*machine.seen.lock().unwrap(), ["systemd-logind.service|all|1"]);
}

#[tokio::test]
async fn announcements_come_in_order_and_end_with_the_connection() {
    let mut machine = connected().await;
    let emitter = SignalEmitter::new(&machine.machine, LOGIND_PATH).unwrap();
    for begins in [true, false] {
        FakeLogind::prepare_for_shutdown(&emitter, begins).await.unwrap();
    }
    assert_eq!(machine.session.announcement().await, Some(true));
    assert_eq!(machine.session.announcement().await, Some(false));
    drop(emitter);
    machine.machine.close().await.unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(20), machine.session.announcement()).await;
    assert_eq!(ended.unwrap(), None);
}

#[test]
fn a_drop_in_hides_those_of_the_same_name_in_later_folders() {
    let root = tempfile::tempdir().unwrap();
    let put = |folder: &str, name: &str, text: &str| {
        let folder = root.path().join(folder);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(name), text).unwrap();
    };
    let sets = "[Login]\nInhibitDelayMaxSec=30\n";
    put(FOLDERS[3], "unattended-upgrades-logind-maxdelay.conf", sets);
    put(FOLDERS[0], "99-kubelet.conf", sets);
    put(FOLDERS[1], "zz.txt", sets);
    let bus = SystemBus { root: root.path().to_owned() };
    let winner = root.path().join(FOLDERS[3]).join("unattended-upgrades-logind-maxdelay.conf");
    assert_eq!(bus.overruling(), Some(winner));
    // What the documents tell the operator to do.
    let mask = root.path().join(FOLDERS[0]).join("unattended-upgrades-logind-maxdelay.conf");
    std::os::unix::fs::symlink("/dev/null", mask).unwrap();
    assert_eq!(bus.overruling(), None);
}

#[test]
fn the_shipped_policy_leaves_announcements_to_root() {
    let policy = include_str!("../../../../contrib/dbus/gantry-kubelet.conf");
    let within = |policy: &str, head: &str| {
        let (_, rest) = policy.split_once(head).unwrap();
        rest.split_once("</policy>").unwrap().0.trim().to_owned()
    };
    let signal = format!(
        "send_type=\"signal\" send_interface=\"{LOGIND_MANAGER}\" send_member=\"PrepareForShutdown\"/>"
    );
    assert_eq!(within(policy, "<policy context=\"default\">"), format!("<deny {signal}"));
    assert_eq!(within(policy, "<policy user=\"root\">"), format!("<allow {signal}"));
}
