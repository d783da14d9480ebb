//! A pull that takes its time is seen: on the terminal of `gantry run` and in `gantry ps`.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use gantry_tests::leakcheck::{Scope, Snapshot};
use gantry_tests::node::Roots;
use gantry_tests::place;
use gantry_tests::poll::poll;
use gantry_tests::ready::web_image;
use gantry_tests::registry::Registry;
use gantry_tests::standalone::Standalone;

/// What gets through before the dam is opened: every manifest, and less than the first layer.
const BEFORE: usize = 100_000;

/// In front of a registry; holds back what is too much until it is open.
pub(crate) struct Dam {
    host: String,
    open: Arc<AtomicBool>,
}

impl Dam {
    pub(crate) fn before(registry: &str) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let host = listener.local_addr()?.to_string();
        let (open, passed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (registry, dam) = (registry.to_owned(), open.clone());
        // These threads end with the test's process.
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(&registry) else { return };
                let (Ok(up_from), Ok(up_to)) = (client.try_clone(), server.try_clone()) else { return };
                let (open, passed) = (dam.clone(), passed.clone());
                std::thread::spawn(move || pass(up_from, up_to, |_| ()));
                std::thread::spawn(move || {
                    pass(server, client, |count| {
                        let passed = passed.fetch_add(count, Ordering::Relaxed) + count;
                        while passed > BEFORE && !open.load(Ordering::Relaxed) {
                            std::thread::sleep(Duration::from_millis(10));
                        }
                    });
                });
            }
        });
        Ok(Self { host, open })
    }

    /// Where it listens.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// Lets everything through.
    pub(crate) fn open(&self) {
        self.open.store(true, Ordering::Relaxed);
    }
}

/// Until either end closes.
fn pass(mut from: TcpStream, mut to: TcpStream, hold: impl Fn(usize)) {
    let mut buffer = [0_u8; 8192];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        hold(count);
        if to.write_all(&buffer[..count]).is_err() {
            return;
        }
    }
    // It may be closed already.
    let _ = to.shutdown(std::net::Shutdown::Write);
}

#[test]
fn a_slow_pull_is_seen_on_the_terminal_and_in_ps() -> Result<()> {
    place::require_own_namespaces()?;
    let registry = Registry::start()?;
    registry.push("demo/web", "v1", &web_image()?.build()?)?;
    let dam = Dam::before(&registry.host())?;
    let roots = Roots::new()?;
    let scope = Scope { folders: Vec::new(), ..roots.scope() };
    let before = Snapshot::take(&scope)?;
    let manifest = format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\nspec:\n  containers:\n  - name: web\n    \
         image: {}/demo/web:v1\n",
        dam.host()
    );
    let mut run = Standalone::start(roots, &manifest)?;
    poll("gantry ps to tell how far the pull is", Duration::from_secs(30), || {
        let output = run.gantry("ps", &[]).map_err(|error| format!("{error:#}"))?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let told = text.lines().find_map(|line| line.strip_prefix("default/web: pulling "));
        if told.is_some_and(|told| told.contains("B of ")) { Ok(()) } else { Err(text) }
    })?;
    poll("a line about the layers", Duration::from_secs(30), || {
        let said = run.stderr();
        if said.contains("/demo/web:v1: ") && said.contains(" of 3 layers, ") { Ok(()) } else { Err(said) }
    })
    .context("gantry run tells")?;
    dam.open();
    poll("the pod to run", Duration::from_secs(60), || {
        let text = run.gantry_ok("ps", &[]).map_err(|error| format!("{error:#}"))?;
        if text.contains("1/1") && !text.contains("pulling") { Ok(()) } else { Err(text) }
    })?;
    run.gantry_ok("stop", &["web"])?;
    run.await_end()?;
    drop(run);
    before.await_clean(&scope)
}
