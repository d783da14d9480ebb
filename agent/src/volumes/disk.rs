//! The file system of a disk that the kubelet itself mounts: looked for by blkid(8), checked by fsck(8), and made where the
//! disk has none, as upstream's SafeFormatAndMount does. Owns the order and upstream's words. Called by [`super::host`].

use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use super::host_program::{HostProgram, NOT_FOUND, ProgramFailure};
use super::mount_program::MountProgram;

/// A large disk takes its time to be checked. Upstream waits without end.
const PATIENCE: Duration = Duration::from_secs(30 * 60);
const LOOK: Duration = Duration::from_secs(300);
const DEFAULT: &str = "ext4";
/// What upstream calls a disk with a table of partitions.
const PARTITIONS: &str = "unknown data, probably partitions";
/// blkid(8): nothing was found on the disk.
const NOTHING: i32 = 2;
/// fsck(8): mended, and left as it was.
const CORRECTED: i32 = 1;
const UNCORRECTED: i32 = 4;

/// Programs of file systems.
#[derive(Debug, Clone)]
pub(super) struct DiskPrograms {
    pub(super) blkid: HostProgram,
    pub(super) fsck: HostProgram,
    /// The kind of the file system is added to its last word.
    pub(super) mkfs: HostProgram,
    /// Those that make a file system as large as its disk.
    pub(super) resize2fs: HostProgram,
    pub(super) xfs_growfs: HostProgram,
    pub(super) btrfs: HostProgram,
}

impl Default for DiskPrograms {
    fn default() -> Self {
        Self {
            blkid: HostProgram::new(&["blkid"], LOOK),
            fsck: HostProgram::new(&["fsck"], PATIENCE),
            mkfs: HostProgram::new(&["mkfs."], PATIENCE),
            resize2fs: HostProgram::new(&["resize2fs"], PATIENCE),
            xfs_growfs: HostProgram::new(&["xfs_growfs"], PATIENCE),
            btrfs: HostProgram::new(&["btrfs"], PATIENCE),
        }
    }
}

/// A file system to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DiskMount<'a> {
    pub(super) device: &'a Path,
    pub(super) target: &'a Path,
    /// May be empty.
    pub(super) fs_type: &'a str,
    /// For mount(8), in order.
    pub(super) options: Vec<String>,
}

/// Why a disk is not mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DiskFailure {
    /// In upstream's words.
    pub(super) why: String,
    /// mount(8) failed, and the disk has another file system than the one that is asked for.
    pub(super) mismatch: bool,
}

impl From<String> for DiskFailure {
    fn from(why: String) -> Self {
        Self { why, mismatch: false }
    }
}

impl DiskMount<'_> {
    pub(super) fn kind(&self) -> &str {
        if self.fs_type.is_empty() { DEFAULT } else { self.fs_type }
    }

    fn is_read_only(&self) -> bool {
        self.options.iter().any(|option| option == "ro")
    }

    fn all_options(&self) -> String {
        self.options.iter().map(String::as_str).chain(["defaults"]).collect::<Vec<_>>().join(",")
    }
}

impl DiskPrograms {
    /// Mounts the disk. What it holds is never lost: a file system is made only where blkid finds nothing at all.
    ///
    /// # Errors
    /// In upstream's words.
    pub(super) async fn mount(
        &self,
        program: &MountProgram,
        disk: &DiskMount<'_>,
    ) -> Result<(), DiskFailure> {
        let (kind, device) = (disk.kind(), disk.device.display().to_string());
        // It becomes the name of a program.
        if !kind.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_') {
            return Err(format!("{kind:?} is no kind of file system: fsType names one, as `ext4`").into());
        }
        let found = self.format_of(&device).await?;
        let mismatch = found.as_deref().is_some_and(|found| found != kind);
        match found.as_deref() {
            None if disk.is_read_only() => {
                let told = format!(
                    "cannot mount unformatted disk {device} as we are manipulating it in read-only mode"
                );
                return Err(told.into());
            }
            None => self.format(disk, &device).await?,
            Some(found) => {
                if mismatch {
                    tracing::warn!(device, found, wanted = kind, "the disk has another file system");
                }
                if !disk.is_read_only() {
                    self.check(&device).await?;
                }
            }
        }
        let target = disk.target.to_string_lossy().into_owned();
        let arguments = ["-t", kind, "-o", &disk.all_options(), &device, &target].map(str::to_owned);
        program.mount(&arguments).await.map_err(|why| DiskFailure { why, mismatch })
    }

    /// What is on the disk; none of an empty one.
    async fn format_of(&self, device: &str) -> Result<Option<String>, String> {
        let arguments = ["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", device].map(str::to_owned);
        let failed = |why: &str| format!("failed to get disk format of disk {device}: {why}");
        match self.blkid.run("blkid", &arguments).await {
            Ok(output) => found_in(&output).map_err(|why| failed(&why)),
            Err(ProgramFailure { code: Some(NOTHING), .. }) => read_start(device).await.map(|()| None),
            Err(failure) => Err(failed(&failure.why)),
        }
    }

    async fn format(&self, disk: &DiskMount<'_>, device: &str) -> Result<(), String> {
        let kind = disk.kind();
        let first: &[&str] = match kind {
            "ext3" | "ext4" => &["-F", "-m0"],
            "xfs" => &["-f"],
            _ => &[],
        };
        let arguments: Vec<String> = first.iter().chain([&device]).map(|word| (*word).to_owned()).collect();
        let mut mkfs = self.mkfs.clone();
        if let Some(last) = mkfs.words.last_mut() {
            last.push_str(kind);
        }
        tracing::info!(device, kind, "the disk is empty: a file system is made");
        let made = mkfs.run(&format!("mkfs.{kind}"), &arguments).await;
        made.map(drop).map_err(|ProgramFailure { why, output, .. }| {
            let (target, options) = (disk.target.display(), disk.all_options());
            format!(
                "format of disk {device:?} failed: type:({kind:?}) target:(\"{target}\") options:(\"{options}\") errcode:({why}) output:({output}) "
            )
        })
    }

    /// Makes the file system as large as the disk, which is mounted at `place`. An empty disk has none yet.
    ///
    /// # Errors
    /// In upstream's words.
    pub(super) async fn grow(&self, device: &Path, place: &Path) -> Result<(), String> {
        let (device, place) = (device.display().to_string(), place.display().to_string());
        let found = self
            .format_of(&device)
            .await
            .map_err(|why| format!("ResizeFS.Resize - error checking format for device {device}: {why}"))?;
        let Some(kind) = found else { return Ok(()) };
        let (program, name, arguments, what): (_, _, &[&str], _) = match kind.as_str() {
            "ext3" | "ext4" => (&self.resize2fs, "resize2fs", &[&device], &device),
            "xfs" => (&self.xfs_growfs, "xfs_growfs", &["-d", &place], &place),
            "btrfs" => (&self.btrfs, "btrfs", &["filesystem", "resize", "max", &place], &place),
            _ => {
                return Err(format!(
                    "ResizeFS.Resize - resize of format {kind} is not supported for device {device} mounted at {place}"
                ));
            }
        };
        let arguments: Vec<String> = arguments.iter().map(|word| (*word).to_owned()).collect();
        let resized = program.run(name, &arguments).await;
        resized.map(drop).map_err(|ProgramFailure { why, output, .. }| {
            format!("resize of device {what} failed: {why}. {name} output: {output}")
        })
    }

    /// Mends what can be mended without asking.
    async fn check(&self, device: &str) -> Result<(), String> {
        let checked = self.fsck.run("fsck", &["-a", device].map(str::to_owned)).await;
        let Err(ProgramFailure { code, why, output, .. }) = checked else { return Ok(()) };
        match code {
            Some(CORRECTED) => tracing::info!(device, "fsck has mended the disk's file system"),
            Some(UNCORRECTED) => {
                return Err(format!(
                    "'fsck' found errors on device {device} but could not correct them: {output}"
                ));
            }
            // As upstream: mount(8) has the last word.
            _ if why.ends_with(NOT_FOUND) => {
                tracing::warn!(device, "there is no fsck: the disk is mounted unchecked");
            }
            _ => tracing::warn!(device, why, output, "fsck has failed"),
        }
        Ok(())
    }
}

/// Whether the disk can be read: blkid ends the same way where it cannot, and what is on such a disk would be lost.
async fn read_start(device: &str) -> Result<(), String> {
    let path = device.to_owned();
    let read = move || {
        let mut first = [0; 4096];
        fs::File::open(&path).and_then(|mut disk| disk.read_exact(&mut first))
    };
    let done = tokio::task::spawn_blocking(read).await.unwrap_or_else(|error| Err(io::Error::other(error)));
    done.map_err(|error| format!("disk {device} cannot be read, and no file system is made on it: {error}"))
}

/// What blkid says, in `-o export`.
fn found_in(output: &str) -> Result<Option<String>, String> {
    let (mut kind, mut table) = (None, false);
    for line in output.lines().filter(|line| !line.is_empty()) {
        match line.split_once('=') {
            Some((_, value)) if value.contains('=') => {
                return Err(format!("blkid returns invalid output: {output}"));
            }
            Some(("TYPE", value)) => kind = Some(value.to_owned()),
            Some(("PTTYPE", value)) => table = !value.is_empty(),
            Some(_) => {}
            None => return Err(format!("blkid returns invalid output: {output}")),
        }
    }
    Ok(if table { Some(PARTITIONS.to_owned()) } else { kind.filter(|kind| !kind.is_empty()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_blkid_says_is_a_file_system_a_table_of_partitions_or_nothing() {
        assert_eq!(found_in("DEVNAME=/dev/sdb\nTYPE=xfs\n"), Ok(Some("xfs".to_owned())));
        assert_eq!(found_in("TYPE=ext4\nPTTYPE=dos\n"), Ok(Some(PARTITIONS.to_owned())));
        assert_eq!(found_in("DEVNAME=/dev/sdb\n"), Ok(None));
        for wrong in ["what\n", "TYPE=a=b\n"] {
            assert_eq!(found_in(wrong), Err(format!("blkid returns invalid output: {wrong}")));
        }
    }
}
