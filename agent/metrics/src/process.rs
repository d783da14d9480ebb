//! The process's own use, as client_golang's process collector reads it. Owns the reading of
//! `/proc/self`; never keeps anything. Called by the server at each scrape.

use std::io;

use super::text::{Kind, Text};

/// Ticks in a second as the kernel tells them to programs: the same on every platform of ours.
const USER_HZ: f64 = 100.0;

/// What is read of a process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Process {
    /// User and system.
    pub cpu_seconds: f64,
    /// Bytes.
    pub virtual_memory: u64,
    /// Bytes.
    pub resident_memory: u64,
    /// Unix time.
    pub start_time: f64,
    /// How many.
    pub open_files: usize,
}

/// Reads this process.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn read() -> io::Result<Process> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let boot = std::fs::read_to_string("/proc/stat")?;
    let status = std::fs::read_to_string("/proc/self/status")?;
    let open_files = std::fs::read_dir("/proc/self/fd")?.count();
    parse(&stat, &boot, &status, open_files)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/self/stat is not as proc(5) says"))
}

#[expect(clippy::cast_precision_loss, reason = "clock ticks of a process fit")]
fn parse(stat: &str, boot: &str, status: &str, open_files: usize) -> Option<Process> {
    // The name in parentheses may hold spaces and parentheses of its own.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    // Counted as in proc(5), where the state is the third.
    let field = |number: usize| fields.get(number - 3).and_then(|field| field.parse::<u64>().ok());
    let booted: u64 = boot.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let resident: u64 = resident.split_ascii_whitespace().next()?.parse().ok()?;
    Some(Process {
        cpu_seconds: (field(14)? + field(15)?) as f64 / USER_HZ,
        start_time: booted as f64 + field(22)? as f64 / USER_HZ,
        virtual_memory: field(23)?,
        resident_memory: resident << 10,
        open_files,
    })
}

impl Process {
    /// All families.
    #[expect(clippy::cast_precision_loss, reason = "bytes of a process fit")]
    pub fn write(&self, text: &mut Text) {
        let mut one = |name: &str, help: &str, kind: Kind, value: f64| {
            text.family(name, help, kind);
            text.sample(name, &[], value);
        };
        one("process_cpu_seconds_total", "Seconds of processor time.", Kind::Counter, self.cpu_seconds);
        one("process_open_fds", "Open file descriptors.", Kind::Gauge, self.open_files as f64);
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        one(
            "process_max_fds",
            "The most of them.",
            Kind::Gauge,
            limit.map_or(f64::INFINITY, |max| max as f64),
        );
        let resident = self.resident_memory as f64;
        one("process_resident_memory_bytes", "Memory in use.", Kind::Gauge, resident);
        let virt = self.virtual_memory as f64;
        one("process_virtual_memory_bytes", "Address space in use.", Kind::Gauge, virt);
        self.write_start(text);
    }

    /// Only when it started: what every endpoint of upstream's shows.
    pub fn write_start(&self, text: &mut Text) {
        let name = "process_start_time_seconds";
        text.family(name, "Start of the process in Unix time.", Kind::Gauge);
        text.sample(name, &[], self.start_time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_misleads_nobody() {
        let stat =
            "7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 9 0 1000 8192 3 18446744073709551615 0";
        let process = parse(stat, "cpu 1\nbtime 1700000000\n", "VmRSS:\t      12 kB\n", 5).unwrap();
        assert_eq!(
            process,
            Process {
                cpu_seconds: 2.0,
                start_time: 1_700_000_010.0,
                virtual_memory: 8192,
                resident_memory: 12_288,
                open_files: 5
            }
        );
        assert_eq!(parse("7 (x S 1", "btime 1", "", 0), None);
    }

    #[test]
    fn this_process_is_read() {
        let process = read().unwrap();
        assert!(process.resident_memory > 0 && process.open_files > 2 && process.start_time > 1e9);
    }
}
