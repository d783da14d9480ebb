//! Bytes between a kubelet and its API server, by the kernel's counters of each connection (`ss`, of iproute2). What a
//! connection had that was closed in between is lost. Owns the reading. Called by `bench::pods`.

use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Bytes of TCP's payload, TLS with it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// To the API server.
    pub sent: u64,
    /// From it.
    pub received: u64,
}

impl Traffic {
    /// Until now, of the connections that the process has to that port.
    pub(super) fn until_now(pid: i32, port: u16) -> Result<Self> {
        let output = Command::new("ss")
            .args(["-tinpHO", "state", "established", "dst", &format!(":{port}")])
            .output()
            .context("run ss, of the package iproute2")?;
        ensure!(output.status.success(), "ss: {}", String::from_utf8_lossy(&output.stderr));
        Ok(read(&String::from_utf8_lossy(&output.stdout), pid))
    }

    /// What came since then.
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            sent: self.sent.saturating_sub(before.sent),
            received: self.received.saturating_sub(before.received),
        }
    }
}

/// A connection is a line.
fn read(lines: &str, pid: i32) -> Traffic {
    let owner = format!("pid={pid},");
    let of = |line: &str, counter: &str| {
        let figure = line.split_whitespace().find_map(|word| word.strip_prefix(counter)?.strip_prefix(':'));
        figure.and_then(|figure| figure.parse::<u64>().ok()).unwrap_or_default()
    };
    lines.lines().filter(|line| line.contains(&owner)).fold(Traffic::default(), |all, line| Traffic {
        sent: all.sent + of(line, "bytes_sent"),
        received: all.received + of(line, "bytes_received"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_connections_of_one_process_count() {
        let line = |pid, sent| {
            format!(
                "0 0 10.0.0.2:5000 10.0.0.1:6443 users:((\"kubelet\",pid={pid},fd=9)) cubic rto:201 bytes_sent:{sent} \
                 bytes_acked:{sent} bytes_received:77 segs_out:5\n"
            )
        };
        let lines = [line(7, 100), line(77, 1000), line(7, 20)].concat();
        assert_eq!(read(&lines, 7), Traffic { sent: 120, received: 154 });
        assert_eq!(read(&lines, 8), Traffic::default());
    }
}
