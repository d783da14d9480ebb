//! An export of an NFS server as a volume: what mount(8) is told of it, and upstream's words for what comes of that. Pure.
//! Called by [`super::claim`], [`super::mount_program`] and [`super::host`].

use std::collections::BTreeSet;
use std::net::Ipv6Addr;
use std::path::Path;

use gantry_model::pod::volume::NfsVolume;

/// Of its volumes, below a pod's.
pub(super) const FOLDER: &str = "kubernetes.io~nfs";

/// By upstream's name.
pub(super) const SET_UP: &str = "MountVolume.SetUp";

/// Said beside what mount(8) says.
pub(crate) const NO_HELPER: &str =
    "This node has no mount.nfs: install nfs-common (Debian, Ubuntu) or nfs-utils (other distributions).";

/// How mount(8) says that it found no mount.nfs: before and since util-linux 2.39, and on a kernel without NFS.
const WITHOUT_HELPER: [&str; 3] =
    ["helper program", "mount program didn't pass remote address", "unknown filesystem type"];

/// What is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NfsMount {
    /// Of the volume: the PersistentVolume's, or the pod's own for it.
    pub(super) name: String,
    pub(super) server: String,
    pub(super) path: String,
    /// As the PersistentVolume has them.
    pub(super) options: Vec<String>,
    pub(super) read_only: bool,
}

impl NfsMount {
    /// A volume that is the pod's own.
    pub(super) fn own(name: &str, of: &NfsVolume) -> Self {
        let NfsVolume { server, path, read_only } = of.clone();
        Self { name: name.to_owned(), server, path, options: Vec::new(), read_only }
    }

    /// `SERVER:PATH`; an IPv6 address stands in brackets.
    pub(super) fn source(&self) -> String {
        let Self { server, path, .. } = self;
        match server.parse::<Ipv6Addr>() {
            Ok(address) if address.to_ipv4_mapped().is_none() => format!("[{server}]:{path}"),
            _ => format!("{server}:{path}"),
        }
    }

    /// For mount(8).
    ///
    /// # Errors
    /// A server whose name would be an option.
    pub(super) fn arguments(&self, target: &Path) -> Result<Vec<String>, String> {
        if self.server.starts_with('-') {
            return Err(format!(
                "NFS server {:?} begins with a dash, and mount would take it for an option: name a host",
                self.server
            ));
        }
        let mut arguments = vec!["-t".to_owned(), "nfs".to_owned()];
        let options = self.options.iter().map(String::as_str).filter(|option| !option.is_empty());
        // Each once, and sorted, as upstream.
        let options: BTreeSet<&str> = options.chain(self.read_only.then_some("ro")).collect();
        if !options.is_empty() {
            arguments.extend(["-o".to_owned(), options.into_iter().collect::<Vec<_>>().join(",")]);
        }
        arguments.extend([self.source(), target.to_string_lossy().into_owned()]);
        Ok(arguments)
    }
}

/// Upstream's words, and ours where the node lacks a package.
pub(super) fn mount_failed(why: &str, arguments: &[String], output: &str) -> String {
    let hint = if lacks_helper(output) { NO_HELPER } else { "" };
    let arguments = arguments.join(" ");
    format!(
        "mount failed: {why}\nMounting command: mount\nMounting arguments: {arguments}\nOutput: {output}{hint}"
    )
}

fn lacks_helper(output: &str) -> bool {
    WITHOUT_HELPER.iter().any(|words| output.contains(words))
}

/// Upstream's words.
pub(super) fn unmount_failed(why: &str, point: &Path, output: &str) -> String {
    format!("unmount failed: {why}\nUnmounting arguments: {}\nOutput: {output}", point.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn export(server: &str) -> NfsMount {
        NfsMount::own("data", &NfsVolume { server: server.into(), path: "/e".into(), read_only: false })
    }

    #[test]
    fn an_address_of_ipv6_stands_in_brackets() {
        for (server, source) in [
            ("nfs.example", "nfs.example:/e"),
            ("10.0.0.1", "10.0.0.1:/e"),
            ("fd00::1", "[fd00::1]:/e"),
            // As upstream: an address of IPv4, and one that Go does not read.
            ("::ffff:10.0.0.1", "::ffff:10.0.0.1:/e"),
            ("fe80::1%eth0", "fe80::1%eth0:/e"),
        ] {
            assert_eq!(export(server).source(), source);
        }
    }

    #[test]
    fn options_are_each_there_once_and_sorted_as_upstream() {
        let arguments = |options: &[&str], read_only| {
            let options = options.iter().map(|option| (*option).to_owned()).collect();
            let mount = NfsMount { options, read_only, ..export("s") };
            mount.arguments(Path::new("/k/data")).unwrap().join(" ")
        };
        assert_eq!(arguments(&[], false), "-t nfs s:/e /k/data");
        assert_eq!(arguments(&[], true), "-t nfs -o ro s:/e /k/data");
        let all = ["vers=4.2", "hard", "", "hard"];
        assert_eq!(arguments(&all, false), "-t nfs -o hard,vers=4.2 s:/e /k/data");
        assert_eq!(arguments(&all, true), "-t nfs -o hard,ro,vers=4.2 s:/e /k/data");
    }

    #[test]
    fn a_server_is_no_option() {
        let why = export("--bind").arguments(Path::new("/k/data")).unwrap_err();
        assert!(why.starts_with("NFS server \"--bind\" begins with a dash"), "{why}");
    }

    #[test]
    fn failures_are_told_in_upstreams_words_and_a_missing_package_by_name() {
        let arguments = export("s").arguments(Path::new("/k/data")).unwrap();
        let told = |output: &str| mount_failed("exit status 32", &arguments, output);
        let words = "mount failed: exit status 32\nMounting command: mount\nMounting arguments: -t nfs s:/e /k/data\nOutput: mount.nfs: access denied\n";
        assert_eq!(told("mount.nfs: access denied\n"), words);
        for output in [
            "mount: /k/data: bad option; for several filesystems (e.g. nfs, cifs) you might need a /sbin/mount.<type> helper program.\n",
            "mount: /k/data: fsconfig system call failed: NFS: mount program didn't pass remote address.\n",
            "mount: /k/data: unknown filesystem type 'nfs'.\n",
        ] {
            assert!(told(output).ends_with(&format!("Output: {output}{NO_HELPER}")), "{}", told(output));
        }
        assert_eq!(
            unmount_failed("exit status 16", Path::new("/k/data"), "umount.nfs: /k/data: device is busy\n"),
            "unmount failed: exit status 16\nUnmounting arguments: /k/data\nOutput: umount.nfs: /k/data: device is busy\n"
        );
    }
}
