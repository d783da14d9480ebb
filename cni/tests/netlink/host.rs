//! The host's side as tests see it: its rules as `nft` prints them (a peer program, only to look), another machine on a
//! link of its own, and small echo servers that say who called. Owns what it makes.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use gantry_cni::netns;

const PATIENCE: Duration = Duration::from_secs(10);

/// The whole ruleset, without handles: what must be the same before and after.
pub(crate) fn ruleset() -> String {
    run("nft", &["list", "ruleset"])
}

/// One of our tables; empty when it is not there.
pub(crate) fn table(name: &str) -> String {
    let output = Command::new("nft").args(["list", "table", "inet", name]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// How many sockets of netfilter processes have in this namespace (protocol 12; the kernel's own has the port 0).
pub(crate) fn netfilter_sockets() -> usize {
    let listed = std::fs::read_to_string("/proc/thread-self/net/netlink").unwrap();
    let is_one = |line: &&str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.get(1) == Some(&"12") && words.get(2) != Some(&"0")
    };
    listed.lines().filter(is_one).count()
}

pub(crate) fn run(program: &str, args: &[&str]) -> String {
    let output =
        Command::new(program).args(args).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Another machine: a namespace at the other end of a link, which knows no way to the pods.
pub(crate) struct RemoteHost {
    pub(crate) netns: PathBuf,
    link: String,
    _root: tempfile::TempDir,
}

impl RemoteHost {
    /// `host` and `own`: the addresses of the two ends, with prefix length.
    pub(crate) fn new(link: &str, ends: &[(&str, &str)]) -> RemoteHost {
        let root = tempfile::tempdir().unwrap();
        let netns = netns::create(root.path(), "machine").unwrap();
        let peer = format!("{link}-p");
        run("ip", &["link", "add", link, "type", "veth", "peer", "name", &peer]);
        // Moved by the file's path: `ip` itself knows names in /run/netns only.
        let path = netns.to_str().unwrap();
        run("nsenter", &["--net=/proc/self/ns/net", "ip", "link", "set", link, "up"]);
        run("ip", &["link", "set", &peer, "netns", path]);
        for (host, own) in ends {
            run("ip", &["address", "add", host, "dev", link, "nodad"]);
            run("nsenter", &[&format!("--net={path}"), "ip", "address", "add", own, "dev", &peer, "nodad"]);
        }
        run("nsenter", &[&format!("--net={path}"), "ip", "link", "set", &peer, "up"]);
        run("nsenter", &[&format!("--net={path}"), "ip", "link", "set", "lo", "up"]);
        RemoteHost { netns, link: link.into(), _root: root }
    }

    pub(crate) fn inside<T: Send>(&self, job: impl FnOnce() -> T + Send) -> T {
        netns::run(&self.netns, job).unwrap()
    }
}

impl Drop for RemoteHost {
    fn drop(&mut self) {
        run("ip", &["link", "del", &self.link]);
        netns::remove(&self.netns).unwrap();
    }
}

/// A server that tells each caller the address that it sees it by. Sockets stay in the namespace they were made in.
pub(crate) fn tell_callers(listener: TcpListener) {
    std::thread::spawn(move || {
        while let Ok((mut stream, caller)) = listener.accept() {
            // A caller that is gone already needs no answer.
            let _ = stream.write_all(caller.ip().to_string().as_bytes());
        }
    });
}

/// The address that a server at `to` sees this thread's namespace by.
pub(crate) fn seen_by(to: SocketAddr) -> Result<IpAddr, String> {
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE).map_err(|error| format!("{to}: {error}"))?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).map_err(|error| format!("{to}: {error}"))?;
    text.parse().map_err(|_| format!("{to} said {text:?}"))
}

/// Answers datagrams with a fixed word.
pub(crate) fn answer_datagrams(socket: UdpSocket, word: &'static str) {
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((_, caller)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(word.as_bytes(), caller);
        }
    });
}

/// Asks until the answer is this one: datagrams may be lost.
#[track_caller]
pub(crate) fn ask_until(socket: &UdpSocket, to: SocketAddr, expected: &str) {
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let mut last = String::from("nothing");
    for _ in 0..50 {
        socket.send_to(b"?", to).unwrap();
        let mut buffer = [0; 64];
        match socket.recv_from(&mut buffer) {
            Ok((length, _)) => last = String::from_utf8_lossy(&buffer[..length]).into_owned(),
            Err(error) => last = error.to_string(),
        }
        if last == expected {
            return;
        }
    }
    panic!("{to} answered {last}, not {expected}");
}
