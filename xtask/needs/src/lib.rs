//! The one list of what `cargo xtask demo` and `cargo xtask test` need from Debian. Owns the list
//! and who needs which part of it; starts nothing and installs nothing. Called by the program of
//! this crate before a build, by `xtask` and by `tests` for the error that a program is missing.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// What a command or a tier does, as far as it needs programs for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// Compiles Rust and C
    Build,
    /// Runs pods in namespaces of its own, with a registry beside them
    Pods,
    /// Makes images from Debian packages
    Packages,
    /// Builds Go programs that link C libraries
    Cgo,
    /// Boots a virtual machine
    Machine,
    /// Sends requests to a server in a pod
    Load,
    /// Compiles what is behind the feature `containerd`
    Protobuf,
    /// Reads the history of the sources
    History,
    /// Counts instructions
    Count,
    /// Feeds parsers
    Fuzz,
    /// Makes a Debian system in a folder
    CleanRoom,
    /// Makes a Debian package and looks at it
    Dist,
    /// Makes a box for Vagrant
    Vagrant,
    /// Runs a kind cluster
    Kind,
    /// Talks to a machine that it has booted from a disk
    Ssh,
    /// Runs Vagrant's machines by libvirt
    Libvirt,
    /// Plays logind on a system bus of its own: only by hand, so nothing installs it
    Bus,
}

/// A program in PATH or a file, and the package that has it.
#[derive(Debug, Clone, Copy)]
pub struct Need {
    /// A program's name, or an absolute path.
    pub what: &'static str,
    /// The Debian package.
    pub package: &'static str,
    /// Who needs it.
    pub by: Use,
}

const fn need(what: &'static str, package: &'static str, by: Use) -> Need {
    Need { what, package, by }
}

/// The list.
pub const NEEDS: &[Need] = &[
    need("cc", "gcc", Use::Build),
    need("cmake", "cmake", Use::Build),
    need("/usr/include/stdio.h", "libc6-dev", Use::Build),
    need("/etc/ssl/certs/ca-certificates.crt", "ca-certificates", Use::Build),
    need("strip", "binutils", Use::Pods),
    need("docker-registry", "docker-registry", Use::Pods),
    need("/bin/busybox", "busybox-static", Use::Pods),
    // The package busybox has that program, too, with libraries that no image has.
    need("/var/lib/dpkg/info/busybox-static.list", "busybox-static", Use::Pods),
    need("ip", "iproute2", Use::Pods),
    need("nft", "nftables", Use::Pods),
    need("unshare", "util-linux", Use::Pods),
    need("nsenter", "util-linux", Use::Pods),
    need("mount", "mount", Use::Pods),
    need("mke2fs", "e2fsprogs", Use::Pods),
    need("losetup", "mount", Use::Pods),
    need("tar", "tar", Use::Pods),
    need("strace", "strace", Use::Pods),
    need("apt-get", "apt", Use::Packages),
    need("apt-cache", "apt", Use::Packages),
    need("dpkg-deb", "dpkg", Use::Packages),
    need("pkg-config", "pkg-config", Use::Cgo),
    need("/usr/include/seccomp.h", "libseccomp-dev", Use::Cgo),
    need("qemu-system-x86_64", "qemu-system-x86", Use::Machine),
    need("depmod", "kmod", Use::Machine),
    need("xz", "xz-utils", Use::Machine),
    need("/usr/share/keyrings/debian-archive-keyring.gpg", "debian-archive-keyring", Use::Machine),
    need("find", "findutils", Use::Machine),
    need("ldd", "libc-bin", Use::Machine),
    need("timeout", "coreutils", Use::Machine),
    need("ab", "apache2-utils", Use::Load),
    need("protoc", "protobuf-compiler", Use::Protobuf),
    need("git", "git", Use::History),
    need("valgrind", "valgrind", Use::Count),
    need("g++", "g++", Use::Fuzz),
    need("debootstrap", "debootstrap", Use::CleanRoom),
    need("/usr/share/keyrings/debian-archive-keyring.gpg", "debian-archive-keyring", Use::CleanRoom),
    need("lintian", "lintian", Use::Dist),
    need("dpkg-shlibdeps", "dpkg-dev", Use::Dist),
    need("qemu-img", "qemu-utils", Use::Vagrant),
    need("docker", "docker.io", Use::Kind),
    need("dockerd", "docker.io", Use::Kind),
    need("runc", "runc", Use::Kind),
    need("iptables", "iptables", Use::Kind),
    need("sha256sum", "coreutils", Use::Kind),
    need("ssh", "openssh-client", Use::Ssh),
    need("debugfs", "e2fsprogs", Use::Ssh),
    need("setpriv", "util-linux", Use::Ssh),
    need("vagrant", "vagrant", Use::Libvirt),
    need("/usr/share/vagrant-plugins/plugins.d/vagrant-libvirt.json", "vagrant-libvirt", Use::Libvirt),
    need("libvirtd", "libvirt-daemon-system", Use::Libvirt),
    need("virsh", "libvirt-clients", Use::Libvirt),
    need("dnsmasq", "dnsmasq-base", Use::Libvirt),
    need("qemu-img", "qemu-utils", Use::Libvirt),
    need("dbus-daemon", "dbus-daemon", Use::Bus),
];

/// The tiers that CI runs, by their names on the command line.
pub const CI: [&str; 10] =
    ["static", "unit", "kernel", "failpoints", "vm", "cri", "standalone", "demo", "smoke", "kind"];

/// What a task of `cargo xtask` needs. `tiers` are those that were asked for: none means all that
/// CI runs.
#[must_use]
pub fn uses(task: &str, tiers: &[String], full: bool) -> Vec<Use> {
    let mut uses = match task {
        "demo" => vec![Use::Build, Use::Pods],
        "clean-room" => vec![Use::Build, Use::CleanRoom],
        "dist" => vec![Use::Build, Use::History, Use::Dist],
        "vagrant-box" => vec![Use::Build, Use::CleanRoom, Use::Machine, Use::Vagrant],
        "kind" => vec![Use::Build, Use::Pods, Use::Packages, Use::CleanRoom, Use::Kind],
        "test" if tiers.is_empty() => CI.iter().flat_map(|tier| of_tier(tier)).copied().collect(),
        "test" => tiers.iter().flat_map(|tier| of_tier(tier)).copied().collect(),
        _ => Vec::new(),
    };
    if full && task == "test" {
        uses.extend([Use::History, Use::Fuzz, Use::CleanRoom, Use::Dist, Use::Kind, Use::Ssh, Use::Libvirt]);
    }
    uses
}

/// What a tier needs.
fn of_tier(tier: &str) -> &'static [Use] {
    match tier {
        "static" => &[Use::Build, Use::Protobuf],
        "unit" => &[Use::Build, Use::Protobuf, Use::History, Use::Count],
        "demo" | "churn" => &[Use::Build, Use::Pods],
        "monitor-compat" => &[Use::Build, Use::Pods, Use::History],
        "fuzz" => &[Use::Build, Use::Pods, Use::Fuzz],
        "kernel" | "failpoints" | "faults" => &[Use::Build, Use::Pods, Use::Packages, Use::Cgo],
        "clean-room" => &[Use::Build, Use::CleanRoom],
        "kind" => &[Use::Build, Use::Pods, Use::Packages, Use::Cgo, Use::CleanRoom, Use::Kind],
        "dist" => &[Use::Build, Use::History, Use::CleanRoom, Use::Dist],
        "vagrant" => &[
            Use::Build,
            Use::History,
            Use::Pods,
            Use::Packages,
            Use::Cgo,
            Use::CleanRoom,
            Use::Dist,
            Use::Machine,
            Use::Kind,
            Use::Ssh,
            Use::Libvirt,
        ],
        "join-vm" | "power-cuts" => &[
            Use::Build,
            Use::History,
            Use::Pods,
            Use::Packages,
            Use::CleanRoom,
            Use::Dist,
            Use::Machine,
            Use::Kind,
            Use::Ssh,
        ],
        "vm" | "vm-cri" | "vm-failpoints" | "vm-systemd" => {
            &[Use::Build, Use::Pods, Use::Packages, Use::Cgo, Use::Machine, Use::Load]
        }
        _ => &[Use::Build, Use::Pods, Use::Packages, Use::Cgo, Use::Load, Use::Protobuf],
    }
}

/// Those of the list that these uses want and that are not there, as `exists` says.
pub fn missing(uses: &[Use], exists: impl Fn(&str) -> bool) -> Vec<Need> {
    NEEDS.iter().filter(|need| uses.contains(&need.by) && !exists(need.what)).copied().collect()
}

/// Their packages, each once, in the list's order.
#[must_use]
pub fn packages(needs: &[Need]) -> Vec<&'static str> {
    let mut packages = Vec::new();
    for need in needs {
        if !packages.contains(&need.package) {
            packages.push(need.package);
        }
    }
    packages
}

/// Whether a program is in PATH or in one of root's folders, or a file exists.
#[must_use]
pub fn exists(what: &str) -> bool {
    what.starts_with('/') && Path::new(what).exists()
        || std::env::split_paths(&path()).any(|folder| folder.join(what).is_file())
}

/// PATH with root's folders, and with the one where Go's own instructions put it.
#[must_use]
pub fn path() -> OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/sbin", "/sbin", "/usr/local/go/bin"].map(PathBuf::from);
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    folders.extend(more.into_iter().filter(|folder| folder.is_dir()));
    std::env::join_paths(folders).unwrap_or(path)
}

/// The words for a program that could not be started: how it is installed.
#[must_use]
pub fn remedy(program: &str) -> String {
    let name = Path::new(program).file_name().and_then(std::ffi::OsStr::to_str).unwrap_or(program);
    let found = NEEDS
        .iter()
        .find(|need| need.what == program || need.what.ends_with(&format!("/{name}")) || need.what == name);
    match (found, name) {
        (Some(need), _) if program.starts_with('/') => {
            format!("{program} is missing: apt-get install {}", need.package)
        }
        (Some(need), _) => format!("start {program}: apt-get install {}", need.package),
        (None, "go" | "gofmt") => {
            format!(
                "start {program}: install Go 1.26 or newer from https://go.dev/dl and put its bin folder into PATH"
            )
        }
        (None, "cargo-deny") => format!("start {program}: cargo install --locked cargo-deny@{CARGO_DENY}"),
        (None, "sudo") => format!("start {program}: apt-get install sudo, or become root"),
        (None, _) => format!("start {program}"),
    }
}

/// The version of cargo-deny that the static tier runs.
pub const CARGO_DENY: &str = "0.20.2";

/// Programs that the demo and the tests start, with arguments that change nothing. Not derived from
/// [`NEEDS`]: the check in the clean room finds what that list lacks.
pub const STARTED: &[(&str, &[&str], Use)] = &[
    ("cc", &["--version"], Use::Build),
    ("cmake", &["--version"], Use::Build),
    ("test", &["-e", "/usr/include/stdio.h"], Use::Build),
    ("test", &["-e", "/etc/ssl/certs/ca-certificates.crt"], Use::Build),
    ("strip", &["--version"], Use::Pods),
    ("docker-registry", &["--help"], Use::Pods),
    ("/bin/busybox", &["true"], Use::Pods),
    ("test", &["-e", "/var/lib/dpkg/info/busybox-static.list"], Use::Pods),
    ("ip", &["-V"], Use::Pods),
    ("nft", &["--version"], Use::Pods),
    ("unshare", &["--version"], Use::Pods),
    ("nsenter", &["--version"], Use::Pods),
    ("mount", &["--version"], Use::Pods),
    ("mke2fs", &["-V"], Use::Pods),
    ("losetup", &["--version"], Use::Pods),
    ("tar", &["--version"], Use::Pods),
    ("strace", &["--version"], Use::Pods),
    ("apt-get", &["--version"], Use::Packages),
    ("apt-cache", &["--version"], Use::Packages),
    ("dpkg-deb", &["--version"], Use::Packages),
    ("pkg-config", &["--exists", "libseccomp"], Use::Cgo),
    ("qemu-system-x86_64", &["--version"], Use::Machine),
    ("depmod", &["--version"], Use::Machine),
    ("xz", &["--version"], Use::Machine),
    ("find", &["--version"], Use::Machine),
    ("test", &["-e", "/usr/share/keyrings/debian-archive-keyring.gpg"], Use::Machine),
    ("ldd", &["--version"], Use::Machine),
    ("timeout", &["--version"], Use::Machine),
    ("ab", &["-V"], Use::Load),
    ("protoc", &["--version"], Use::Protobuf),
    ("git", &["--version"], Use::History),
    ("valgrind", &["--version"], Use::Count),
    ("g++", &["--version"], Use::Fuzz),
    ("debootstrap", &["--version"], Use::CleanRoom),
    ("test", &["-e", "/usr/share/keyrings/debian-archive-keyring.gpg"], Use::CleanRoom),
    ("lintian", &["--version"], Use::Dist),
    ("dpkg-shlibdeps", &["--version"], Use::Dist),
    ("qemu-img", &["--version"], Use::Vagrant),
    ("docker", &["--version"], Use::Kind),
    ("dockerd", &["--version"], Use::Kind),
    ("runc", &["--version"], Use::Kind),
    ("iptables", &["--version"], Use::Kind),
    ("sha256sum", &["--version"], Use::Kind),
    ("ssh", &["-V"], Use::Ssh),
    ("debugfs", &["-V"], Use::Ssh),
    ("setpriv", &["--version"], Use::Ssh),
    ("vagrant", &["--version"], Use::Libvirt),
    ("test", &["-e", "/usr/share/vagrant-plugins/plugins.d/vagrant-libvirt.json"], Use::Libvirt),
    ("libvirtd", &["--version"], Use::Libvirt),
    ("virsh", &["--version"], Use::Libvirt),
    ("dnsmasq", &["--version"], Use::Libvirt),
    ("qemu-img", &["--version"], Use::Libvirt),
    ("dbus-daemon", &["--version"], Use::Bus),
    ("cargo", &["--version"], Use::Build),
    ("rustc", &["--version"], Use::Build),
    ("go", &["version"], Use::Build),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_started_program_has_a_row() {
        let without: Vec<_> = STARTED
            .iter()
            .map(|(program, _, _)| *program)
            .filter(|program| !["cargo", "rustc", "go", "test"].contains(program))
            .filter(|program| !NEEDS.iter().any(|need| need.what == *program))
            .collect();
        assert_eq!(without, [""; 0]);
    }

    #[test]
    fn every_row_stands_once_and_is_tried_in_the_clean_room() {
        for (index, need) in NEEDS.iter().enumerate() {
            let what = need.what;
            assert!(
                !NEEDS[index + 1..].iter().any(|other| (other.what, other.by) == (what, need.by)),
                "{what} stands twice"
            );
            let tried = STARTED.iter().any(|(program, args, by)| {
                let file = *program == "test" && args.contains(&what);
                let library = what == "/usr/include/seccomp.h" && args.contains(&"libseccomp");
                *by == need.by && (*program == what || file || library)
            });
            assert!(tried, "nothing tries {what}");
        }
    }

    #[test]
    fn a_missing_program_is_named_with_its_package_once() {
        let uses = uses("demo", &[], false);
        let found = missing(&uses, |what| !["nft", "unshare", "nsenter"].contains(&what));
        assert_eq!(packages(&found), ["nftables", "util-linux"]);
        assert_eq!(missing(&uses, |_| true).len(), 0);
        assert_eq!(remedy("nft"), "start nft: apt-get install nftables");
        assert_eq!(
            remedy("/usr/bin/docker-registry"),
            "/usr/bin/docker-registry is missing: apt-get install docker-registry"
        );
        assert_eq!(remedy("busybox"), "start busybox: apt-get install busybox-static");
        assert_eq!(remedy("frobnicate"), "start frobnicate");
    }

    #[test]
    fn a_tier_asks_for_its_own_part() {
        let of = |tier: &str| packages(&missing(&uses("test", &[tier.to_owned()], false), |_| false));
        assert!(!of("unit").contains(&"docker-registry"));
        // A commit's time is read from the history.
        assert!(of("unit").contains(&"git") && !of("kernel").contains(&"git"));
        let ci = packages(&missing(&uses("test", &[], false), |_| false));
        for tier in CI {
            assert!(of(tier).iter().all(|package| ci.contains(package)), "{tier}");
        }
        assert!(of("kind").contains(&"debootstrap") && of("kind").contains(&"docker.io"));
        assert!(of("kernel").contains(&"docker-registry") && !of("kernel").contains(&"qemu-system-x86"));
        assert!(of("vm").contains(&"qemu-system-x86"));
        assert!(!ci.contains(&"vagrant"));
        assert!(packages(&missing(&uses("test", &[], true), |_| false)).contains(&"vagrant"));
        assert_eq!(uses("build", &[], false), []);
    }
}
