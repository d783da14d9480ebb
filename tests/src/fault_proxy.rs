//! A fault proxy before a real registry: it listens on loopback, passes requests on, and injects the faults that a test
//! names. Owns its port, its threads and a list of what was asked; speaks HTTP/1.1 without bodies of
//! requests, so pulls pass through it and pushes do not. Called by the tier `faults`.

mod wire;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result};

use wire::MessageHead;

/// What is done to an answer.
#[derive(Debug, Clone)]
pub enum ProxyFault {
    /// The connection ends after so many bytes of the body.
    Cut(u64),
    /// After so many bytes of the body nothing more comes, and the connection stays.
    Stall(u64),
    /// The byte there is another one.
    Flip(u64),
    /// Says so many bytes more or, below zero, fewer, and sends no more than it says.
    Length(i64),
    /// This status with these lines of a head, and no body.
    Status(u16, &'static str),
    /// Go to another host (`HOST:PORT`) for it.
    Redirect(String),
}

/// A request that came.
#[derive(Debug, Clone)]
pub struct RecordedRequest {
    pub method: String,
    pub target: String,
    pub range: Option<String>,
    pub authorization: Option<String>,
}

/// The proxy; stops when dropped.
#[derive(Debug)]
pub struct FaultProxy {
    addr: SocketAddr,
    shared: Arc<ProxyShared>,
    accepting: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct ProxyShared {
    registry: SocketAddr,
    own: SocketAddr,
    state: Mutex<ProxyState>,
    stopped: AtomicBool,
}

#[derive(Debug, Default)]
struct ProxyState {
    rules: Vec<FaultRule>,
    seen: Vec<RecordedRequest>,
    /// Tokens are asked for, and each one is good for so many requests.
    uses: Option<u32>,
    /// How often the last one may be used yet.
    left: u32,
    issued: u32,
}

#[derive(Debug)]
struct FaultRule {
    part: String,
    left: u32,
    fault: ProxyFault,
}

/// What becomes of a connection after an answer.
enum AfterAnswer {
    Next,
    Close,
}

impl FaultProxy {
    /// Listens in front of a registry.
    ///
    /// # Errors
    /// When loopback is down.
    pub fn before(registry: SocketAddr) -> Result<Self> {
        Self::at(Ipv4Addr::LOCALHOST, registry)
    }

    /// As [`FaultProxy::before`], as another host: `address` is one of 127.0.0.0/8.
    ///
    /// # Errors
    /// When loopback is down.
    pub fn at(address: Ipv4Addr, registry: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind((IpAddr::V4(address), 0)).context("bind loopback: is lo up?")?;
        let own = listener.local_addr()?;
        let shared =
            Arc::new(ProxyShared { registry, own, state: Mutex::default(), stopped: AtomicBool::new(false) });
        let accepting = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || accept(&listener, &shared))
        };
        Ok(Self { addr: own, shared, accepting: Some(accepting) })
    }

    /// `HOST:PORT`.
    #[must_use]
    pub fn host(&self) -> String {
        self.addr.to_string()
    }

    /// Spoils the next `times` answers to targets that contain `part`. Of several rules the first one counts.
    pub fn spoil(&self, part: &str, times: u32, fault: ProxyFault) {
        self.shared.state().rules.push(FaultRule { part: part.to_owned(), left: times, fault });
    }

    /// From now on tokens are asked for; each one is good for `uses` requests.
    pub fn ask_for_tokens(&self, uses: u32) {
        self.shared.state().uses = Some(uses);
    }

    /// Everything is as it should be again.
    pub fn mend(&self) {
        let mut state = self.shared.state();
        state.rules.clear();
        state.uses = None;
    }

    /// What was asked so far, and forgets it.
    #[must_use]
    pub fn recorded_requests(&self) -> Vec<RecordedRequest> {
        std::mem::take(&mut self.shared.state().seen)
    }

    /// Whether each fault came to be.
    #[must_use]
    pub fn is_used_up(&self) -> bool {
        self.shared.state().rules.iter().all(|rule| rule.left == 0)
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
        // The thread waits for a client: this is one.
        let _ = TcpStream::connect(self.addr);
        if let Some(accepting) = self.accepting.take() {
            // A panic there has been printed.
            let _ = accepting.join();
        }
    }
}

fn accept(listener: &TcpListener, shared: &Arc<ProxyShared>) {
    for client in listener.incoming().flatten() {
        if shared.stopped.load(Ordering::Relaxed) {
            return;
        }
        let shared = Arc::clone(shared);
        // What a client does to its connection is what is tested.
        thread::spawn(move || drop(shared.serve(client)));
    }
}

impl ProxyShared {
    fn state(&self) -> MutexGuard<'_, ProxyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, mut client: TcpStream) -> Result<()> {
        while let Some(asked) = MessageHead::read(&mut client)? {
            match self.answer(&asked, &mut client)? {
                AfterAnswer::Next => {}
                AfterAnswer::Close => return Ok(()),
            }
        }
        Ok(())
    }

    fn answer(&self, asked: &MessageHead, client: &mut TcpStream) -> Result<AfterAnswer> {
        let (method, target) = asked.request()?;
        let header = |name: &str| asked.header(name).map(str::to_owned);
        self.state().seen.push(RecordedRequest {
            method: method.to_owned(),
            target: target.to_owned(),
            range: header("range"),
            authorization: header("authorization"),
        });
        if target.starts_with("/token") {
            return self.issue(client);
        }
        if !self.is_admitted(asked.header("authorization")) {
            let realm =
                format!("Www-Authenticate: Bearer realm=\"http://{}/token\",service=\"test\"\r\n", self.own);
            return wire::plain(client, 401, &realm, b"{}").map(|()| AfterAnswer::Next);
        }
        let fault = self.state().due(target);
        match fault {
            Some(ProxyFault::Status(status, lines)) => {
                wire::plain(client, status, lines, b"").map(|()| AfterAnswer::Next)
            }
            Some(ProxyFault::Redirect(host)) => {
                let location = format!("Location: http://{host}{target}\r\n");
                wire::plain(client, 307, &location, b"").map(|()| AfterAnswer::Next)
            }
            fault => wire::forward(self.registry, asked, client, fault.as_ref()),
        }
    }

    fn issue(&self, client: &mut TcpStream) -> Result<AfterAnswer> {
        let number = {
            let mut state = self.state();
            state.left = state.uses.unwrap_or(u32::MAX);
            state.issued += 1;
            state.issued
        };
        let body = format!("{{\"token\":\"t{number}\",\"expires_in\":300}}");
        wire::plain(client, 200, "Content-Type: application/json\r\n", body.as_bytes())
            .map(|()| AfterAnswer::Next)
    }

    fn is_admitted(&self, authorization: Option<&str>) -> bool {
        let mut state = self.state();
        if state.uses.is_none() {
            return true;
        }
        let is_last = authorization == Some(format!("Bearer t{}", state.issued).as_str());
        match state.left.checked_sub(1).filter(|_| is_last) {
            Some(left) => {
                state.left = left;
                true
            }
            None => false,
        }
    }
}

impl ProxyState {
    fn due(&mut self, target: &str) -> Option<ProxyFault> {
        let rule = self.rules.iter_mut().find(|rule| rule.left > 0 && target.contains(&rule.part))?;
        rule.left -= 1;
        Some(rule.fault.clone())
    }
}
