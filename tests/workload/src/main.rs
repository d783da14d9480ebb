//! What runs inside the test images: a web page, counters, hogs, and a look around from within a
//! container. Owns no test; never depends on anything in the image but itself. Built static by
//! `cargo xtask build`, started by the kernel tier and the demo.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line program")]

mod hog;
mod look;
mod web;

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};

const USAGE: &str = "usage: workload web PORT [FILE] | exit CODE | print COUNT [STREAM] | sleep SECONDS | \
    count CODE [TIMES] | alloc MIB | env | id | ls-proc | try-write PATH | try-mount | dial ADDR | \
    keep MIB | hog memory MIB | hog disk FOLDER | hog inodes FOLDER | hog pids | hog log";

fn main() -> ExitCode {
    let mut args = std::env::args();
    match args.next().as_deref().and_then(|name| name.rsplit('/').next()) {
        Some("nmeter") => return nmeter(),
        Some("sh") => return shell(),
        _ => {}
    }
    let args: Vec<String> = args.collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match run(&words) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("workload: {error}");
            ExitCode::from(2)
        }
    }
}

/// What busybox's nmeter prints for `-d0 '%3t'`, the only call that the suites make and that Debian's busybox lacks: the
/// time of day to the millisecond, again and again until nobody reads.
fn nmeter() -> ExitCode {
    let mut out = std::io::stdout().lock();
    loop {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let (seconds, millis) = (since.as_secs(), since.subsec_millis());
        let (hours, minutes) = (seconds / 3600 % 24, seconds / 60 % 60);
        if writeln!(out, "{hours:02}:{minutes:02}:{:02}.{millis:03}", seconds % 60).is_err() {
            return ExitCode::SUCCESS;
        }
    }
}

/// The shell of the busybox image. Debian's busybox drops variables from the environment whose names are none of a
/// shell's (`p-data-1`), which the one that upstream's image has hands on, and bash words its errors in another way:
/// busybox, then, unless there is such a name.
fn shell() -> ExitCode {
    let is_plain = |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let plain = std::env::vars_os().all(|(name, _)| name.to_str().is_some_and(is_plain));
    let mut args = std::env::args_os();
    let name = args.next().unwrap_or_else(|| "sh".into());
    let program = if plain { "/bin/busybox" } else { "/bin/bash-static" };
    let error = std::process::Command::new(program).arg0(name).args(args).exec();
    eprintln!("sh: {program}: {error}");
    ExitCode::from(127)
}

type ExitResult = Result<u8, Box<dyn std::error::Error>>;

fn run(words: &[&str]) -> ExitResult {
    match words {
        ["web", port] => web::serve(port.parse()?, None, &*watch_termination()?),
        ["web", port, file] => web::serve(port.parse()?, Some(file), &*watch_termination()?),
        ["exit", code] => Ok(code.parse()?),
        ["print", count] => print(count.parse()?, "stdout"),
        ["print", count, stream] => print(count.parse()?, stream),
        ["sleep", seconds] => sleep(seconds.parse()?),
        ["count", code] => count(code.parse()?, u64::MAX),
        ["count", code, times] => count(code.parse()?, times.parse()?),
        ["alloc", mib] => alloc(mib.parse()?),
        ["env"] => look::env(),
        ["id"] => look::id(),
        ["ls-proc"] => look::processes(),
        ["try-write", path] => look::try_write(path),
        ["try-mount"] => look::try_mount(),
        ["dial", addr] => web::dial(addr),
        ["keep", mib] => hog::keep(mib.parse()?),
        ["hog", "memory", mib] => hog::memory(mib.parse()?),
        ["hog", "disk", folder] => hog::disk(folder),
        ["hog", "inodes", folder] => hog::inodes(folder),
        ["hog", "pids"] => hog::pids(),
        ["hog", "idle"] => hog::idle(),
        ["hog", "log"] => hog::log(),
        _ => Err(USAGE.into()),
    }
}

/// Set by SIGTERM and SIGINT. As pid 1 a program without a handler would not be ended by them.
fn watch_termination() -> Result<Arc<AtomicBool>, std::io::Error> {
    let flag = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGTERM, Arc::clone(&flag))?;
    signal_hook::flag::register(SIGINT, Arc::clone(&flag))?;
    Ok(flag)
}

fn print(count: u64, stream: &str) -> ExitResult {
    for number in 1..=count {
        if stream == "stderr" {
            eprintln!("line {number}");
        } else {
            println!("line {number}");
        }
    }
    Ok(0)
}

fn sleep(seconds: u64) -> ExitResult {
    let flag = watch_termination()?;
    for _ in 0..seconds.saturating_mul(50) {
        if flag.load(Ordering::Relaxed) {
            return Ok(0);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(0)
}

/// A numbered line each 100 ms: a gap in a log shows.
fn count(code: u8, times: u64) -> ExitResult {
    let flag = watch_termination()?;
    for number in 1..=times {
        println!("count {number}");
        std::io::stdout().flush()?;
        for _ in 0..5 {
            if flag.load(Ordering::Relaxed) {
                println!("count ends");
                return Ok(code);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    Ok(code)
}

/// Touches every page, so that the memory is really used.
fn alloc(mib: usize) -> ExitResult {
    let mut held = Vec::new();
    for number in 0..mib {
        held.push(vec![u8::try_from(number % 255)? + 1; 1 << 20]);
    }
    let sum: u64 = held.iter().map(|block| u64::from(block[block.len() / 2])).sum();
    println!("holds {mib} MiB, sum {sum}");
    Ok(0)
}
