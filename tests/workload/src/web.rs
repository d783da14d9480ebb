//! A web server for one page, and a client that fetches one. Owns its sockets; never more than
//! one connection at a time. Called by `main`.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::ExitResult;

const PATIENCE: Duration = Duration::from_secs(5);

/// Answers every request with the file, or a greeting, until told to end.
pub(crate) fn serve(port: u16, file: Option<&str>, ended: &AtomicBool) -> ExitResult {
    let page = match file {
        Some(path) => std::fs::read_to_string(path)?,
        None => "hello from a gantry pod\n".to_owned(),
    };
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?;
    listener.set_nonblocking(true)?;
    println!("listening on port {port}");
    while !ended.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((stream, peer)) => {
                // One client's trouble is not the server's end.
                match answer(stream, &page) {
                    Ok(request) => println!("{peer} {request}"),
                    Err(error) => println!("{peer} failed: {error}"),
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => await_client(&listener)?,
            Err(error) => return Err(error.into()),
        }
    }
    println!("asked to end");
    Ok(0)
}

/// Until somebody comes, or a signal, or a little while has passed: one that came just before the wait
/// is seen after it.
fn await_client(listener: &TcpListener) -> std::io::Result<()> {
    let mut fds = [PollFd::new(listener, PollFlags::IN)];
    match poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 200_000_000 })) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn answer(mut stream: TcpStream, page: &str) -> std::io::Result<String> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut reader = BufReader::new(stream.try_clone()?).take(64 << 10);
    let mut request = String::new();
    reader.read_line(&mut request)?;
    let mut line = String::new();
    while reader.read_line(&mut line)? > 0 && line.trim_end() != "" {
        line.clear();
    }
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{page}",
        page.len()
    )?;
    Ok(request.trim_end().to_owned())
}

/// Fetches `/` of an address and prints the answer.
pub(crate) fn dial(addr: &str) -> ExitResult {
    let mut stream = TcpStream::connect_timeout(&addr.parse()?, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "GET / HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    println!("{text}");
    Ok(0)
}
