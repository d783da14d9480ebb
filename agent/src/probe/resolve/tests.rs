//! Name servers that never answer, and those that do.

use std::sync::mpsc;
use std::time::Duration;

use tokio::net::TcpListener;

use super::*;
use crate::probe::net::NetProbe;
use crate::probe::{HttpRequest, ProbeIo, ProbeResult};

const PATIENCE: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(100);

/// Names that begin with `stuck` are looked up until the sender is dropped; each lookup is told.
fn resolver() -> (Resolver, mpsc::Sender<()>, Arc<Mutex<Vec<String>>>) {
    let (release, held) = mpsc::channel::<()>();
    let (held, asked) = (Arc::new(Mutex::new(held)), Arc::new(Mutex::new(Vec::new())));
    let log = asked.clone();
    let lookup = move |name: &str| {
        log.lock().unwrap().push(name.to_owned());
        if name.starts_with("stuck") {
            // Nothing is ever sent: it ends with the sender.
            assert!(held.lock().unwrap().recv().is_err());
        }
        match name.starts_with("none") {
            true => Err(io::Error::other("no such name")),
            false => Ok(vec![IpAddr::from([127, 0, 0, 1])]),
        }
    };
    (Resolver::with(lookup), release, asked)
}

fn page(host: &str, port: u16) -> HttpRequest {
    HttpRequest { host: host.into(), port, path: "/".into(), tls: false, headers: Vec::new() }
}

/// Asks in all three ways, and gets no connection in time.
async fn fails(probe: &NetProbe, host: &str, port: u16) {
    let error = probe.tcp(host.into(), port, SHORT).await.unwrap_err();
    assert!(error.ends_with("i/o timeout"), "{error}");
    let error = probe.http(page(host, port), SHORT).await.unwrap_err().to_string();
    assert!(error.contains("context deadline exceeded"), "{error}");
    let verdict = probe.grpc(host.into(), port, String::new(), SHORT).await;
    let text = format!("timeout: failed to connect service \"{host}:{port}\"");
    assert!(matches!(&verdict, ProbeResult::Failure(said) if said.starts_with(&text)), "{verdict:?}");
}

#[test]
fn a_name_that_is_looked_up_for_ever_holds_nothing_else_up() {
    let mut one_thread = tokio::runtime::Builder::new_current_thread();
    let one_thread = one_thread.enable_all().max_blocking_threads(1).build().unwrap();
    one_thread.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (names, release, asked) = resolver();
        let probe = NetProbe::with(names).unwrap();
        for n in 1..AT_ONCE {
            let name = format!("stuck-{n}");
            fails(&probe, &name, port).await;
            fails(&probe, &name, port).await;
            let times = asked.lock().unwrap().iter().filter(|other| **other == name).count();
            assert_eq!(times, 1, "one lookup of {name} is waited for by all");
        }
        let free = tokio::time::timeout(PATIENCE, tokio::task::spawn_blocking(|| ())).await;
        free.expect("a lookup holds a thread of the pool").unwrap();
        assert_eq!(probe.tcp("good".into(), port, PATIENCE).await, Ok(()));
        let error = probe.tcp("none".into(), port, PATIENCE).await;
        assert_eq!(error, Err(format!("dial tcp none:{port}: no such name")));
        // The last place goes as well: only addresses are reached.
        fails(&probe, "stuck-last", port).await;
        fails(&probe, "good", port).await;
        assert_eq!(probe.tcp("127.0.0.1".into(), port, PATIENCE).await, Ok(()));
        let before = asked.lock().unwrap().len();
        drop(release);
        assert_eq!(probe.tcp("good".into(), port, PATIENCE).await, Ok(()));
        assert_eq!(probe.tcp("stuck-1".into(), port, PATIENCE).await, Ok(()));
        assert!(asked.lock().unwrap().len() > before);
    });
}
