//! `--check`: starts each program that a task needs, once, with arguments that change nothing. Owns
//! the words for one that does not start; installs nothing. Called by `main`, in the clean room and
//! by people.

use std::process::{Command, ExitCode, Stdio};

use gantry_needs::{STARTED, Use, path, remedy};

/// Starts them all, and names each that fails.
pub(crate) fn started(uses: &[Use]) -> Result<ExitCode, String> {
    let mut wrong = Vec::new();
    let wanted: Vec<_> = STARTED.iter().filter(|(_, _, by)| uses.contains(by)).collect();
    for (program, args, _) in &wanted {
        match start(program, args) {
            Ok(()) => println!("check {program} ... ok"),
            Err(error) => {
                println!("check {program} ... FAILED: {error}");
                wrong.push(*program);
            }
        }
    }
    if !wrong.is_empty() {
        return Err(format!(
            "{} of {} programs do not start: {}",
            wrong.len(),
            wanted.len(),
            wrong.join(", ")
        ));
    }
    println!("{} programs start", wanted.len());
    Ok(ExitCode::SUCCESS)
}

fn start(program: &str, args: &[&str]) -> Result<(), String> {
    let output = Command::new(program)
        .args(args)
        .env("PATH", path())
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{}: {error}", remedy(program)))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{program} {}: {}: {}", args.join(" "), output.status, said.trim()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_missing_or_fails_is_an_error() {
        assert_eq!(start("true", &[]), Ok(()));
        assert!(start("false", &[]).unwrap_err().starts_with("false : exit status: 1"));
        assert!(start("gantry-no-such-program", &[]).unwrap_err().contains("start gantry-no-such-program"));
    }
}
