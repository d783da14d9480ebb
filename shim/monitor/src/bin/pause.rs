//! The program `gantry-pause`: holds a pod's namespaces and, as init of a shared pid namespace, reaps
//! what nobody else waits for. Ends on SIGTERM and SIGINT. Started by the monitor's child; and by the runtime, as the
//! seed of a scope that ends with its maker.

use std::io::Read;
use std::process::ExitCode;

use gantry_monitor::init::pause::SEED;
use gantry_sys::signal;
use rustix::process::WaitOptions;

const SIGNALS: [i32; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGCHLD];

fn main() -> ExitCode {
    // Run from a memfd, the process would be named after a descriptor's number; a wrong name harms nobody.
    let _ = rustix::thread::set_name(c"pause");
    if std::env::args_os().nth(1).is_some_and(|word| word == SEED) {
        return outlast_nobody();
    }
    if signal::block(&SIGNALS).is_err() {
        return ExitCode::FAILURE;
    }
    loop {
        match signal::wait_for(&SIGNALS) {
            Ok(libc::SIGCHLD) => while let Ok(Some(_)) = rustix::process::wait(WaitOptions::NOHANG) {},
            Ok(_) => return ExitCode::SUCCESS,
            // Interrupted by a stop and continue.
            Err(_) => {}
        }
    }
}

/// Waits for the end of a pipe whose other end the maker has, however it ends itself.
fn outlast_nobody() -> ExitCode {
    match std::io::stdin().lock().read_to_end(&mut Vec::new()) {
        Ok(_) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
