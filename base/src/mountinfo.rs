//! The mount table of a process, `/proc/PID/mountinfo` (proc_pid_mountinfo(5)). Owns how a line is read.
//! Called by whoever asks what is mounted where.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// A line of the table, in the order of mounting: what lies on top of another comes later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountInfo {
    /// The mount's number, as name_to_handle_at(2) and fdinfo have it.
    pub id: u64,
    /// `major:minor`, as `st_dev` of its files has it.
    pub device: String,
    /// The folder of the file system that is mounted.
    pub root: PathBuf,
    /// Where, as this process sees it.
    pub point: PathBuf,
    /// Propagation: `shared:1`, `master:2`, …; empty for a private mount.
    pub tags: Vec<String>,
    /// `ext4`, `overlay`, `cgroup2`, …
    pub kind: String,
    /// Such as `/dev/sda1`; `none` and anything else is possible.
    pub source: OsString,
    /// Options of the file system: for cgroup v1 its controllers.
    pub options: String,
}

impl MountInfo {
    /// Whether a comma-separated option of the file system is set.
    #[must_use]
    pub fn has_option(&self, option: &str) -> bool {
        self.options.split(',').any(|set| set == option)
    }
}

/// This process's table.
///
/// # Errors
/// When /proc is not there or not readable.
pub fn own() -> io::Result<Vec<MountInfo>> {
    Ok(parse(&std::fs::read("/proc/self/mountinfo")?))
}

/// Mount points of this process at or below `folder`, in the order of mounting. The table has a line for each mount of the
/// machine, and of each no more is read than that takes.
///
/// # Errors
/// When /proc is not there or not readable.
pub fn points_below(folder: &Path) -> io::Result<Vec<PathBuf>> {
    Ok(points_in(&std::fs::read("/proc/self/mountinfo")?, folder))
}

fn points_in(table: &[u8], folder: &Path) -> Vec<PathBuf> {
    let point = |line: &[u8]| {
        let field = line.split(|byte| *byte == b' ').nth(4)?;
        let own = if field.contains(&b'\\') {
            Cow::Owned(unescape(field))
        } else {
            OsStr::from_bytes(field).into()
        };
        Path::new(&own).starts_with(folder).then(|| own.into_owned().into())
    };
    table.split(|byte| *byte == b'\n').filter_map(point).collect()
}

/// A table's text. A line of another form is passed over: the kernel writes none.
#[must_use]
pub fn parse(table: &[u8]) -> Vec<MountInfo> {
    table.split(|byte| *byte == b'\n').filter_map(line).collect()
}

/// `36 35 98:0 /root /point rw,noatime shared:1 - ext4 /dev/sda1 rw,errors=continue`
fn line(line: &[u8]) -> Option<MountInfo> {
    let mut fields = line.split(|byte| *byte == b' ');
    let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
    let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let (device, root, point) = (text(fields.nth(1)?), unescape(fields.next()?), unescape(fields.next()?));
    let tags = fields.by_ref().skip(1).take_while(|field| *field != b"-").map(text).collect();
    let (kind, source) = (text(fields.next()?), unescape(fields.next()?));
    let options = fields.next().map(text).unwrap_or_default();
    Some(MountInfo { id, device, root: root.into(), point: point.into(), tags, kind, source, options })
}

/// `\040` is a space: the kernel writes space, tab, line feed and backslash in octal.
fn unescape(field: &[u8]) -> OsString {
    if !field.contains(&b'\\') {
        return OsStr::from_bytes(field).to_owned();
    }
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let code = match (first, tail) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..]) => {
                Some((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'))
            }
            _ => None,
        };
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { &tail[3..] } else { tail };
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_field_by_field() {
        let table =
            b"36 35 98:0 /a /b\\040c rw,noatime shared:1 master:2 - ext3 /dev/root rw,errors=continue\n";
        let [mount] = &parse(table)[..] else { panic!("not one mount") };
        assert_eq!((mount.id, mount.device.as_str()), (36, "98:0"));
        assert_eq!((mount.root.as_path(), mount.point.as_path()), (Path::new("/a"), Path::new("/b c")));
        assert_eq!(mount.tags, ["shared:1", "master:2"]);
        assert_eq!((mount.kind.as_str(), mount.source.to_str()), ("ext3", Some("/dev/root")));
        assert!(mount.has_option("rw") && mount.has_option("errors=continue") && !mount.has_option("errors"));
    }

    #[test]
    fn a_private_mount_has_no_tags() {
        let [mount] = &parse(b"36 35 0:32 / /sys rw - cgroup cgroup rw,cpu,cpuacct")[..] else {
            panic!("not one")
        };
        assert!(mount.tags.is_empty());
        assert!(mount.has_option("cpuacct"));
    }

    #[test]
    fn a_backslash_that_begins_no_number_stays() {
        assert_eq!(unescape(b"a\\134b\\9\\"), OsStr::new("a\\b\\9\\"));
        assert_eq!(unescape(b"\\011\\012"), OsStr::new("\t\n"));
        assert_eq!(unescape(b"\\777"), OsStr::new("\\777"), "more than a byte");
    }

    #[test]
    fn mount_points_below_a_folder_are_those_that_the_whole_table_has() {
        let table = b"22 1 0:1 / / rw - ext4 a rw\n\
            23 22 0:2 / /pods/u rw - tmpfs t rw\n\
            24 23 0:3 / /pods/u/b\\040c rw shared:1 - tmpfs t rw\n\
            25 22 0:4 / /pods/u2 rw - tmpfs t rw\n\
            half a line\n\
            26 23 0:5 / /pods/u/b\\040c rw - tmpfs t rw";
        let below = |folder: &str| points_in(table, Path::new(folder));
        assert_eq!(below("/pods/u"), ["/pods/u", "/pods/u/b c", "/pods/u/b c"].map(PathBuf::from));
        assert_eq!(below("/pods/u/b c"), ["/pods/u/b c", "/pods/u/b c"].map(PathBuf::from));
        assert_eq!(below("/pods/v"), Vec::<PathBuf>::new());
        let all: Vec<PathBuf> = parse(table).into_iter().map(|mount| mount.point).collect();
        assert_eq!(below("/"), all);
    }

    #[test]
    fn what_is_no_line_is_passed_over() {
        assert_eq!(parse(b"\nhalf a line\n36 35 98:0 / / rw -\n"), []);
        assert!(own().unwrap().iter().any(|mount| mount.point == Path::new("/proc")));
    }
}
