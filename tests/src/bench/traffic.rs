//! Bytes between a kubelet and its API server, by the kernel's counters of each connection (`ss`, of iproute2). What a
//! connection had that was closed in between is lost. Owns the reading. Called by `bench::pods`.

use std::collections::BTreeMap;
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

/// Of each connection that a process has, by its own address.
#[derive(Debug, Default)]
pub(super) struct Connections(BTreeMap<String, Traffic>);

impl Connections {
    /// Those that the process has to that port, until now.
    pub(super) fn read(pid: i32, port: u16) -> Result<Self> {
        let output = Command::new("ss")
            .args(["-tinpHO", "state", "established", "dst", &format!(":{port}")])
            .output()
            .context("run ss, of the package iproute2")?;
        ensure!(output.status.success(), "ss: {}", String::from_utf8_lossy(&output.stderr));
        Ok(Self::parse(&String::from_utf8_lossy(&output.stdout), pid))
    }

    /// A connection is a line: two queues, its own address, the other's.
    fn parse(lines: &str, pid: i32) -> Self {
        let owner = format!("pid={pid},");
        let of = |line: &str, counter: &str| {
            let figure =
                line.split_whitespace().find_map(|word| word.strip_prefix(counter)?.strip_prefix(':'));
            figure.and_then(|figure| figure.parse::<u64>().ok()).unwrap_or_default()
        };
        let own = lines.lines().filter(|line| line.contains(&owner));
        let known = own.filter_map(|line| {
            let bytes = Traffic { sent: of(line, "bytes_sent"), received: of(line, "bytes_received") };
            Some((line.split_whitespace().nth(2)?.to_owned(), bytes))
        });
        Self(known.collect())
    }

    /// What came since then.
    pub(super) fn since(&self, before: &Self) -> Traffic {
        self.0.iter().fold(Traffic::default(), |all, (address, now)| {
            let then = before.0.get(address).copied().unwrap_or_default();
            Traffic {
                sent: all.sent + now.sent.saturating_sub(then.sent),
                received: all.received + now.received.saturating_sub(then.received),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_connections_of_one_process_count_each_from_where_it_was() {
        let line = |port, pid, sent| {
            format!(
                "0 0 10.0.0.2:{port} 10.0.0.1:6443 users:((\"kubelet\",pid={pid},fd=9)) cubic rto:201 bytes_sent:{sent} \
                 bytes_acked:{sent} bytes_received:77 segs_out:5\n"
            )
        };
        let before = [line(1, 7, 100), line(2, 7, 5000), line(3, 77, 1000)].concat();
        // The second was closed, the fourth is new.
        let after = [line(1, 7, 130), line(3, 77, 2000), line(4, 7, 20)].concat();
        let (before, after) = (Connections::parse(&before, 7), Connections::parse(&after, 7));
        assert_eq!(after.since(&before), Traffic { sent: 50, received: 77 });
        assert_eq!(Connections::parse("", 7).since(&before), Traffic::default());
    }
}
