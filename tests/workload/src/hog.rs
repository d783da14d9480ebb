//! What a hostile pod does to its node: takes memory, blocks, inodes, pids, or writes to its log, without end, and does not
//! end when it is asked to. Beside them a pod that keeps what it has. Owns no bound: node and cgroups do.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use super::ExitResult;

/// One bite of the disk.
const BLOCK: usize = 4 << 20;
/// Files of one bite.
const FILES: u64 = 200;
/// Bytes of a line of the log.
const LINE: usize = 4096;

/// So many MiB, every page of them written, each second.
pub(crate) fn memory(mib: usize) -> ExitResult {
    let mut held: Vec<Vec<u8>> = Vec::new();
    loop {
        held.push(vec![1; mib << 20]);
        // Now and then somebody uses all of it: it is no memory that nobody misses. Not more often: on an emulated machine
        // pods without a share of the processor would not even start.
        if held.len().is_multiple_of(8) {
            touch(&mut held);
        }
        println!("holds {} MiB", held.len() * mib);
        sleep(Duration::from_secs(1));
    }
}

/// Holds so many MiB and uses them, until it is asked to end.
pub(crate) fn keep(mib: usize) -> ExitResult {
    let flag = super::watch_termination()?;
    let mut held = vec![vec![1; mib << 20]];
    let mut round = 0_u64;
    while !flag.load(std::sync::atomic::Ordering::Relaxed) {
        touch(&mut held);
        if round.is_multiple_of(10) {
            println!("keeps {mib} MiB");
        }
        round += 1;
        sleep(Duration::from_secs(1));
    }
    Ok(0)
}

fn touch(held: &mut [Vec<u8>]) {
    for byte in held.iter_mut().flat_map(|block| block.iter_mut().step_by(4096)) {
        *byte = byte.wrapping_add(1);
    }
}

/// Fills the file system of a folder.
pub(crate) fn disk(folder: &str) -> ExitResult {
    fs::create_dir_all(folder)?;
    let mut file = File::create(Path::new(folder).join("filled"))?;
    let block = vec![b'x'; BLOCK];
    let mut full = false;
    loop {
        let wrote = file.write_all(&block);
        if let (Err(error), false) = (&wrote, full) {
            println!("{folder}: {error}");
        }
        // On a full disk it goes on trying.
        full = wrote.is_err();
        sleep(Duration::from_millis(200));
    }
}

/// Fills the inode table of a folder's file system.
pub(crate) fn inodes(folder: &str) -> ExitResult {
    fs::create_dir_all(folder)?;
    let mut number = 0_u64;
    loop {
        for _ in 0..FILES {
            match File::create(Path::new(folder).join(number.to_string())) {
                Ok(_) => number += 1,
                Err(error) => {
                    println!("{folder}: {number} files: {error}");
                    break;
                }
            }
        }
        sleep(Duration::from_millis(200));
    }
}

/// As many processes as it gets.
pub(crate) fn pids() -> ExitResult {
    let mut children = Vec::new();
    loop {
        let own = Command::new("/proc/self/exe").args(["hog", "idle"]).stdin(Stdio::null()).spawn();
        match own {
            Ok(child) => children.push(child),
            Err(error) => {
                println!("{} processes: {error}", children.len());
                sleep(Duration::from_secs(5));
            }
        }
    }
}

/// Nothing: a pid and no more.
pub(crate) fn idle() -> ExitResult {
    loop {
        std::thread::park();
    }
}

/// Lines, faster than anybody reads them.
pub(crate) fn log() -> ExitResult {
    let line = "x".repeat(LINE);
    loop {
        for _ in 0..16 {
            println!("{line}");
        }
        sleep(Duration::from_millis(50));
    }
}
