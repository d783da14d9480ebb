//! A server under load: `ab` from apache2-utils. Owns reading its report; never waits for a server
//! to come up. Called by the tests with a real web server.

use std::net::SocketAddr;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// Fetches `/` so many times over 50 connections at once.
///
/// # Errors
/// When one request failed or was answered by anything but a 2xx: shows the report.
pub fn requests(addr: SocketAddr, count: u64) -> Result<()> {
    let output = Command::new("ab")
        .args(["-q", "-c", "50", "-n", &count.to_string(), &format!("http://{addr}/")])
        .stdin(Stdio::null())
        .output()
        .with_context(|| gantry_needs::remedy("ab"))?;
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "{report}{}", String::from_utf8_lossy(&output.stderr));
    ensure!(number(&report, "Complete requests")? == count, "{report}");
    ensure!(number(&report, "Failed requests")? == 0, "{report}");
    // ab tells of these only where there are any.
    ensure!(!report.contains("Non-2xx"), "{report}");
    Ok(())
}

/// The number of an `ab` line like `Failed requests:        0`.
fn number(report: &str, name: &str) -> Result<u64> {
    let line = report.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let line = line.with_context(|| format!("ab tells no {name}:\n{report}"))?;
    Ok(line.trim().parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_numbers_of_a_report() {
        let report = "Concurrency Level:      50\nComplete requests:      1000\nFailed requests:        3\n";
        assert_eq!(number(report, "Failed requests").unwrap(), 3);
        assert!(number(report, "Non-2xx responses").is_err());
    }
}
