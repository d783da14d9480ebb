//! The program `gantry-pause`: holds a pod's namespaces and, as init of a shared pid namespace, reaps
//! what nobody else waits for. Ends on SIGTERM and SIGINT. Started by the monitor's child.

use std::process::ExitCode;

use gantry_shim::sys::signal;
use rustix::process::WaitOptions;

const SIGNALS: [i32; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGCHLD];

fn main() -> ExitCode {
    // Run from a memfd, the process would be named after a descriptor's number; a wrong name harms nobody.
    let _ = rustix::thread::set_name(c"pause");
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
