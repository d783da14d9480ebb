//! A network between node and registry on one machine: so many bits a second for each connection and for all of
//! them, and a delay. Owns a loopback port and its threads; knows no HTTP. No TCP slow start and no losses are
//! played. Called by `pulls`, since this kind of host has no netem.

use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags};

/// Bytes that travel together: a millisecond of 1 Gbit/s.
const CHUNK: usize = 128 << 10;
/// Bytes on their way at most, for a client that does not read.
const UNDER_WAY: usize = 1 << 20;

/// What the network lets through.
#[derive(Debug, Clone, Copy)]
pub struct LinkLimits {
    /// Bytes a second of one connection, towards the node.
    pub each: u64,
    /// Of all connections together.
    pub all: u64,
    /// There and back.
    pub round_trip: Duration,
}

impl LinkLimits {
    /// 200 Mbit/s for each connection, 1 Gbit/s for all, 20 ms.
    pub const USUAL: LinkLimits =
        LinkLimits { each: 25_000_000, all: 125_000_000, round_trip: Duration::from_millis(20) };
}

/// When the line is free again.
#[derive(Debug, Clone)]
struct Free(Arc<Mutex<Instant>>);

impl Free {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }

    /// Takes the line for so many bytes: when they are through.
    fn take(&self, bytes: usize, rate: u64) -> Instant {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let takes = Duration::from_secs_f64(bytes as f64 / rate as f64);
        *free = (*free).max(Instant::now()) + takes;
        *free
    }
}

/// Listens in front of `registry` until this process ends; returns where.
///
/// # Errors
/// When loopback is down.
pub(super) fn start(registry: SocketAddr, line: LinkLimits) -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("bind 127.0.0.1: is lo up?")?;
    let own = listener.local_addr()?;
    thread::spawn(move || {
        let all = Free::new();
        for client in listener.incoming().flatten() {
            let all = all.clone();
            // A connection that breaks is the client's to notice.
            thread::spawn(move || drop(serve(client, registry, line, &all)));
        }
    });
    Ok(own)
}

fn serve(client: TcpStream, registry: SocketAddr, line: LinkLimits, all: &Free) -> Result<()> {
    let server = TcpStream::connect(registry)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    // The handshake: loopback's own took no time.
    thread::sleep(line.round_trip);
    let delay = line.round_trip / 2;
    let (from, to) = (client.try_clone()?, server.try_clone()?);
    thread::spawn(move || drop(carry(&from, to, delay, |_| Instant::now())));
    let each = Free::new();
    carry(&server, client, delay, |bytes| each.take(bytes, line.each).max(all.take(bytes, line.all)))
}

/// Moves bytes: through the line at its pace, then later by the delay. They go by reference: a line does not use the
/// node's processor, and this one uses little of it.
fn carry(from: &TcpStream, to: TcpStream, delay: Duration, pace: impl Fn(usize) -> Instant) -> Result<()> {
    let (arriving, leaving) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    // A smaller one only makes a shorter line.
    let _ = rustix::pipe::fcntl_setpipe_size(&leaving, UNDER_WAY);
    let (send, receive): (SyncSender<(Instant, usize)>, Receiver<_>) = sync_channel(UNDER_WAY / CHUNK);
    let far = thread::spawn(move || {
        'line: for (due, mut count) in receive {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            while count > 0 {
                match splice_bytes(&arriving, &to, count) {
                    Ok(passed @ 1..) => count -= passed,
                    _ => break 'line,
                }
            }
        }
        // Fails only when it is closed.
        let _ = to.shutdown(Shutdown::Write);
    });
    loop {
        // splice(2) keeps the pipe locked while it waits for a socket, also for who takes out of it.
        let mut waited = [PollFd::new(from, PollFlags::IN)];
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut waited, None))?;
        let count = splice_bytes(from, &leaving, CHUNK)?;
        let through = pace(count);
        thread::sleep(through.saturating_duration_since(Instant::now()));
        if count == 0 || send.send((through + delay, count)).is_err() {
            break;
        }
    }
    // Nobody reads what would come, so the other side may stop, too.
    let _ = from.shutdown(Shutdown::Read);
    drop(send);
    drop(far.join());
    Ok(())
}

fn splice_bytes(from: impl AsFd, to: impl AsFd, most: usize) -> Result<usize, Errno> {
    rustix::io::retry_on_intr(|| rustix::pipe::splice(&from, None, &to, None, most, SpliceFlags::empty()))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn bytes_arrive_whole_and_no_sooner_than_the_line_lets_them() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let registry = listener.local_addr().unwrap();
        let content: Vec<u8> = (0..200_000_u32).map(|number| (number % 251) as u8).collect();
        let served = content.clone();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = [0; 1];
            stream.read_exact(&mut asked).unwrap();
            stream.write_all(&served).unwrap();
        });
        let line = LinkLimits { each: 1_000_000, all: 4_000_000, round_trip: Duration::from_millis(20) };
        let own = start(registry, line).unwrap();
        let begun = Instant::now();
        let mut client = TcpStream::connect(own).unwrap();
        client.write_all(b"?").unwrap();
        let mut found = Vec::new();
        client.read_to_end(&mut found).unwrap();
        assert_eq!(found, content);
        // 200 ms on the line, 20 ms for the connection, 20 ms there and back.
        assert!(begun.elapsed() >= Duration::from_millis(240), "{:?}", begun.elapsed());
    }
}
