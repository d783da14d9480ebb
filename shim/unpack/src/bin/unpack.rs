//! The program `gantry-unpack`: see `gantry_unpack`. Started by the runtime, never by hand.

use std::process::ExitCode;

use gantry_unpack::{UnpackCommand, run};

#[expect(clippy::print_stderr, reason = "for whoever starts it by hand; the runtime reads the exit code")]
fn main() -> ExitCode {
    let result = UnpackCommand::parse(std::env::args_os().skip(1)).and_then(|command| run(&command));
    let Err(error) = result else { return ExitCode::SUCCESS };
    eprintln!("gantry-unpack: {error}");
    ExitCode::from(error.exit_code())
}
