//! The program `gantry-monitor`: see `gantry_monitor::monitor`. Started by the runtime, never by hand.

use std::process::ExitCode;

use gantry_monitor::init::probe;
use gantry_monitor::monitor::{Error, MonitorOptions, run};

#[expect(clippy::print_stderr, reason = "descriptor 2 is the monitor's own log")]
fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.as_slice() {
        [flag, layers, scratch] if flag == "--probe-user-namespaces" => {
            probe::user_namespaces(layers, scratch).map_err(Error::from)
        }
        _ => MonitorOptions::parse(arguments).and_then(|options| run(&options)),
    };
    let Err(error) = result else { return ExitCode::SUCCESS };
    match &error {
        Error::Step { source, .. } => eprintln!("gantry-monitor: {error}: {source}"),
        Error::Argument(_) => eprintln!("gantry-monitor: {error}"),
    }
    ExitCode::FAILURE
}
