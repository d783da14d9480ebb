//! client-go's own exec, attach and port-forward, as the program `stream-client` (tests/go/stream) that
//! `cargo xtask test` builds. Owns its processes. Called by the kernel tier.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::place;
use crate::poll::poll;

/// The code with which the client says that it could not run the command.
pub const FAILED: i32 = 200;

const PATIENCE: Duration = Duration::from_secs(60);

/// The client with these arguments, streams piped.
///
/// # Errors
/// When it is not built.
pub fn start(args: &[&str]) -> Result<Child> {
    start_with(args, &[])
}

/// The same with more environment: a client certificate.
///
/// # Errors
/// When it is not built.
pub fn start_with(args: &[&str], env: &[(&str, &Path)]) -> Result<Child> {
    let program = place::bin_dir()?.join("stream-client");
    Command::new(&program)
        .args(args)
        .envs(env.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("{}: cargo xtask test --tier kernel builds it", program.display()))
}

/// A pipe read to its end beside the test.
#[must_use]
pub fn reading(mut pipe: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // What came before an error is shown by the assertion.
        let _ = pipe.read_to_end(&mut bytes);
        bytes
    })
}

/// Runs the client with this input to its end.
///
/// # Errors
/// When it does not end within a minute.
pub fn run(args: &[&str], input: &[u8]) -> Result<Output> {
    run_with(args, input, &[])
}

/// The same with more environment.
///
/// # Errors
/// When it does not end within a minute.
pub fn run_with(args: &[&str], input: &[u8], env: &[(&str, &Path)]) -> Result<Output> {
    let mut child = start_with(args, env)?;
    let mut stdin = child.stdin.take().context("no stdin")?;
    let input = input.to_vec();
    // A client that ends early does not read everything.
    let writing = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = finish(child)?;
    drop(writing.join());
    Ok(output)
}

/// Waits for the client's end and returns what it wrote.
///
/// # Errors
/// When it does not end within a minute.
pub fn finish(mut child: Child) -> Result<Output> {
    let stdout = reading(child.stdout.take().context("no stdout")?);
    let stderr = reading(child.stderr.take().context("no stderr")?);
    let ended = poll("the client to end", PATIENCE, || match child.try_wait() {
        Ok(Some(status)) => Ok(status),
        other => Err(format!("{other:?}")),
    });
    if ended.is_err() {
        child.kill()?;
        child.wait()?;
    }
    let (stdout, stderr) = (stdout.join(), stderr.join());
    let (Ok(stdout), Ok(stderr)) = (stdout, stderr) else { bail!("a reading thread panicked") };
    let status = ended.with_context(|| {
        format!(
            "stdout {:?}, stderr {:?}",
            String::from_utf8_lossy(&stdout),
            String::from_utf8_lossy(&stderr)
        )
    })?;
    Ok(Output { status, stdout, stderr })
}

/// A running port-forward; ends with this.
#[derive(Debug)]
pub struct Forward {
    child: Child,
    /// The local end.
    pub addr: SocketAddr,
    errors: Option<JoinHandle<Vec<u8>>>,
}

impl Forward {
    /// Forwards a free local port to `port` behind `url`.
    ///
    /// # Errors
    /// When the client does not say which.
    pub fn start(transport: &str, port: u16, url: &str) -> Result<Self> {
        Self::start_with(transport, port, url, &[])
    }

    /// The same with more environment.
    ///
    /// # Errors
    /// When the client does not say which.
    pub fn start_with(transport: &str, port: u16, url: &str, env: &[(&str, &Path)]) -> Result<Self> {
        let args = ["forward", "-transport", transport, &port.to_string(), url];
        let mut child = start_with(&args, env)?;
        let errors = reading(child.stderr.take().context("no stderr")?);
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("no stdout")?).read_line(&mut line)?;
        let Ok(port) = line.trim().parse() else {
            child.wait()?;
            let errors = errors.join().unwrap_or_default();
            bail!("no port but {line:?}: {}", String::from_utf8_lossy(&errors));
        };
        Ok(Self { child, addr: SocketAddr::from(([127, 0, 0, 1], port)), errors: Some(errors) })
    }

    /// Ends it, and returns what it complained of.
    ///
    /// # Errors
    /// When it can't be waited for.
    pub fn stop(mut self) -> Result<String> {
        drop(self.child.stdin.take());
        self.child.wait()?;
        let errors = self.errors.take().and_then(|errors| errors.join().ok()).unwrap_or_default();
        Ok(String::from_utf8_lossy(&errors).into_owned())
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        // It has ended already, when the test went well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
