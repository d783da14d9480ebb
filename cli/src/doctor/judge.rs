//! What `gantry doctor` makes of what it saw. Pure: facts in, checks out.

use std::collections::BTreeSet;
use std::path::Path;

use super::look::{AppArmor, CniNetwork, DataFolder, HostFacts};
use super::store::StoreFacts;
use super::{Check, CheckStatus};
use crate::output;

/// Older kernels lack what containers are set up with.
const KERNEL: (u32, u32) = (5, 15);
/// Less than this much, or less than a tenth, is little.
const SPACE: u64 = 2 << 30;

/// What the runtime does with each capability (capabilities(7) numbers).
const NEEDED: [(u32, &str); 10] = [
    (0, "CAP_CHOWN"),
    (1, "CAP_DAC_OVERRIDE"),
    (3, "CAP_FOWNER"),
    (5, "CAP_KILL"),
    (6, "CAP_SETGID"),
    (7, "CAP_SETUID"),
    (12, "CAP_NET_ADMIN"),
    (18, "CAP_SYS_CHROOT"),
    (21, "CAP_SYS_ADMIN"),
    (27, "CAP_MKNOD"),
];
const CAP_SYS_RESOURCE: u32 = 24;

pub(super) fn machine(facts: &HostFacts) -> Vec<Check> {
    let mut checks = vec![root(facts), kernel(&facts.kernel), namespaces(&facts.namespaces)];
    checks.push(filesystems(&facts.filesystems, &facts.modules));
    checks.push(cgroups(&facts.v1, &facts.v2));
    if facts.root {
        checks.push(capabilities(facts.capabilities));
    }
    checks.extend([seccomp(&facts.seccomp), apparmor(facts.apparmor)]);
    checks.extend([netfilter(facts), swap(facts.swaps), programs(facts)]);
    checks.extend([nfs(facts.nfs_helper.as_deref()), iscsi(facts.iscsiadm.as_deref())]);
    checks.push(network(&facts.network));
    checks.extend(facts.folders.iter().map(folder));
    checks
}

pub(super) fn registry(host: &str, answer: Result<String, String>) -> Check {
    match answer {
        Ok(line) => ok("registry", format!("{host}: {line}")),
        Err(error) => fail(
            "registry",
            format!("{host}: {error}"),
            "check the name, that it runs, and the way to it; a mirror of it is asked for under its own name"
                .to_owned(),
        ),
    }
}

/// A row for all, and one for each fault.
pub(super) fn store(facts: &StoreFacts) -> Vec<Check> {
    match facts {
        StoreFacts::None(root) => vec![ok("store", format!("no images in {}", root.display()))],
        StoreFacts::Unknown(error) => {
            vec![fail("store", error.clone(), "mend what the error names".to_owned())]
        }
        StoreFacts::Looked { images, layers, bytes, faults } => {
            let all = format!("{images} images, {layers} layers, {} in their files", output::bytes(*bytes));
            if faults.is_empty() {
                return vec![ok("store", format!("{all}: as they were unpacked"))];
            }
            faults.iter().map(|fault| fail("store", fault.what.clone(), fault.remedy.clone())).collect()
        }
    }
}

pub(super) fn ok(name: &'static str, seen: String) -> Check {
    Check { name, verdict: CheckStatus::Ok, seen, remedy: String::new() }
}

pub(super) fn warn(name: &'static str, seen: String, remedy: String) -> Check {
    Check { name, verdict: CheckStatus::Warn, seen, remedy }
}

pub(super) fn fail(name: &'static str, seen: String, remedy: String) -> Check {
    Check { name, verdict: CheckStatus::Fail, seen, remedy }
}

fn root(facts: &HostFacts) -> Check {
    if facts.root {
        return ok("user", "root".to_owned());
    }
    let remedy = "namespaces, mounts and cgroups are made by root: use sudo".to_owned();
    fail("user", "not root".to_owned(), remedy)
}

fn kernel(release: &str) -> Check {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let (major, minor) = KERNEL;
    if version >= KERNEL {
        ok("kernel", release.to_owned())
    } else {
        fail("kernel", release.to_owned(), format!("Gantry needs Linux {major}.{minor} or newer"))
    }
}

fn namespaces(found: &BTreeSet<String>) -> Check {
    let missing = lacking(&["mnt", "net", "pid", "ipc", "uts", "cgroup"], found);
    match missing.is_empty() {
        true => ok("namespaces", "all kinds that pods use".to_owned()),
        false => fail(
            "namespaces",
            format!("no {}", missing.join(", ")),
            "a kernel with these namespaces is needed".to_owned(),
        ),
    }
}

fn filesystems(found: &BTreeSet<String>, modules: &BTreeSet<String>) -> Check {
    let missing = lacking(&["overlay", "tmpfs", "proc", "sysfs", "mqueue"], found);
    let (loadable, missing): (Vec<_>, Vec<_>) = missing.into_iter().partition(|name| modules.contains(*name));
    if !missing.is_empty() {
        let remedy = "install the kernel's module, or use a kernel that has it".to_owned();
        return fail("file systems", format!("no {}", missing.join(", ")), remedy);
    }
    let all = "overlay, tmpfs, proc, sysfs, mqueue";
    match loadable.is_empty() {
        true => ok("file systems", all.to_owned()),
        false => ok(
            "file systems",
            format!("{all}; the kernel loads {} with the first container", loadable.join(", ")),
        ),
    }
}

/// A controller may be on either version, but cpu and memory must be somewhere.
fn cgroups(v1: &BTreeSet<String>, v2: &BTreeSet<String>) -> Check {
    let kind = match (v1.is_empty(), v2.iter().any(|c| c == "memory" || c == "cpu")) {
        (true, true) => "v2",
        (false, true) => "hybrid, controllers on both",
        (false, false) => "v1",
        (true, false) => {
            let remedy = "mount cgroup2 at /sys/fs/cgroup (mount -t cgroup2 none /sys/fs/cgroup)".to_owned();
            return fail("cgroups", "no hierarchy with controllers".to_owned(), remedy);
        }
    };
    let all: BTreeSet<String> = v1.union(v2).cloned().collect();
    let missing = lacking(&["cpu", "memory", "pids", "cpuset"], &all);
    if missing.is_empty() {
        return ok("cgroups", kind.to_owned());
    }
    let seen = format!("{kind}, without {}", missing.join(", "));
    let essential = missing.iter().any(|c| *c == "memory" || *c == "cpu");
    if essential {
        let remedy = "enable them at boot (cgroup_enable=memory) or in cgroup.subtree_control".to_owned();
        fail("cgroups", seen, remedy)
    } else {
        warn("cgroups", seen, "limits of these kinds will be refused".to_owned())
    }
}

fn capabilities(held: u64) -> Check {
    let has = |number: u32| held & (1 << number) != 0;
    let missing: Vec<&str> =
        NEEDED.iter().filter(|(number, _)| !has(*number)).map(|(_, name)| *name).collect();
    if !missing.is_empty() {
        let remedy = "start Gantry with them (a container or unit may have taken them away)".to_owned();
        return fail("capabilities", format!("no {}", missing.join(", ")), remedy);
    }
    if !has(CAP_SYS_RESOURCE) {
        return warn(
            "capabilities",
            "all that pods need, but no CAP_SYS_RESOURCE".to_owned(),
            "oom_score_adj is clamped and rlimits can't be raised; pods run all the same".to_owned(),
        );
    }
    ok("capabilities", "all that pods need".to_owned())
}

fn seccomp(actions: &str) -> Check {
    if actions.split_whitespace().any(|action| action == "errno") {
        return ok("seccomp", "filters".to_owned());
    }
    // Every sandbox of an agent asks for RuntimeDefault.
    let remedy = "no pod can be confined, and none starts; a kernel with CONFIG_SECCOMP_FILTER is needed";
    fail("seccomp", "no filters".to_owned(), remedy.to_owned())
}

fn apparmor(found: AppArmor) -> Check {
    match found {
        AppArmor::Off => ok("apparmor", "not in use".to_owned()),
        AppArmor::On => ok("apparmor", "profiles".to_owned()),
        AppArmor::WithoutParser => warn(
            "apparmor",
            "no apparmor_parser".to_owned(),
            "pods that ask for RuntimeDefault run unconfined: install the package apparmor".to_owned(),
        ),
    }
}

fn netfilter(facts: &HostFacts) -> Check {
    let forward = match facts.ip_forward {
        Some(true) => "ip_forward is on",
        Some(false) => "ip_forward is off until the first pod's network turns it on",
        None => "ip_forward cannot be read",
    };
    if facts.netfilter {
        return ok("netfilter", forward.to_owned());
    }
    let remedy =
        "hostPort and masquerading need nf_tables: load the module (modprobe nf_tables nf_nat)".to_owned();
    warn("netfilter", format!("not there; {forward}"), remedy)
}

fn swap(devices: usize) -> Check {
    if devices == 0 {
        return ok("swap", "off".to_owned());
    }
    let remedy = "a kubelet refuses to start with swap unless failSwapOn is false (swapoff -a turns it off)";
    warn("swap", format!("{devices} in use"), remedy.to_owned())
}

fn programs(facts: &HostFacts) -> Check {
    let missing: Vec<String> = facts
        .programs
        .iter()
        .filter(|(_, there)| !there)
        .map(|(path, _)| path.display().to_string())
        .collect();
    if missing.is_empty() {
        return ok("programs", format!("{} beside gantry", facts.programs.len()));
    }
    let remedy =
        "install them beside gantry (cargo xtask build makes them) or name their folder with --programs-dir";
    fail("programs", format!("no {}", missing.join(", ")), remedy.to_owned())
}

/// Most nodes need none: it is no warning.
fn nfs(helper: Option<&Path>) -> Check {
    let seen = helper.map_or_else(
        || "no mount.nfs, which volumes of the kind nfs need: nfs-common (Debian, Ubuntu) or nfs-utils has it".to_owned(),
        |path| format!("mounted by {}", path.display()),
    );
    ok("nfs", seen)
}

/// Likewise.
fn iscsi(program: Option<&Path>) -> Check {
    let seen = program.map_or_else(
        || "no iscsiadm, which volumes of the kind iscsi need: open-iscsi (Debian, Ubuntu) or iscsi-initiator-utils has it".to_owned(),
        |path| format!("logged in by {}", path.display()),
    );
    ok("iscsi", seen)
}

pub(super) fn network(network: &CniNetwork) -> Check {
    match network {
        CniNetwork::None(folder) => ok(
            "network",
            format!(
                "no configuration in {}: `gantry run` uses its built-in bridge; `gantry runtime` is not NetworkReady without one",
                folder.display()
            ),
        ),
        CniNetwork::List { name, origin, missing } if missing.is_empty() => {
            ok("network", format!("{name} from {origin}"))
        }
        CniNetwork::List { name, origin, missing } => fail(
            "network",
            format!("{name} from {origin} names plugins that are not there: {}", missing.join(", ")),
            "install them in --cni-bin-dir or take them out of the list".to_owned(),
        ),
        CniNetwork::Broken(error) => fail("network", error.clone(), "mend or remove the file".to_owned()),
    }
}

fn folder(folder: &DataFolder) -> Check {
    let DataFolder { flag, path, space } = folder;
    match space {
        Ok((free, all)) => {
            let seen = format!(
                "{flag} {}: {} of {} free",
                path.display(),
                output::bytes(*free),
                output::bytes(*all)
            );
            // The state folder holds sockets and small files.
            let little = *flag == "--root" && (*free < SPACE || *free < all / 10);
            if little {
                let remedy = "images need room: `gantry rmi` gives some back, --root moves them".to_owned();
                warn("space", seen, remedy)
            } else {
                ok("space", seen)
            }
        }
        Err(error) => fail(
            "space",
            format!("{flag} {}: {error}", path.display()),
            "make the folder, or name another".to_owned(),
        ),
    }
}

fn lacking<'a>(wanted: &[&'a str], found: &BTreeSet<String>) -> Vec<&'a str> {
    wanted.iter().copied().filter(|name| !found.contains(*name)).collect()
}

#[cfg(test)]
mod tests {
    use gantry_proto::runtime_ext::StoreFault;

    use super::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn kernels_by_number_not_by_text() {
        for (release, verdict) in [
            ("5.15.0", CheckStatus::Ok),
            ("6.1.0-18-cloud-amd64", CheckStatus::Ok),
            ("10.0", CheckStatus::Ok),
            ("5.9.16", CheckStatus::Fail),
            ("", CheckStatus::Fail),
        ] {
            assert_eq!(kernel(release).verdict, verdict, "{release}");
        }
    }

    #[test]
    fn a_file_system_is_there_or_a_module_of_this_kernel() {
        let seen = |found: &[&str], modules: &[&str]| {
            let check = filesystems(&set(found), &set(modules));
            (check.verdict, check.seen)
        };
        let others = ["tmpfs", "proc", "sysfs", "mqueue"];
        let all = "overlay, tmpfs, proc, sysfs, mqueue".to_owned();
        assert_eq!(seen(&[&others[..], &["overlay"]].concat(), &[]), (CheckStatus::Ok, all.clone()));
        let loaded = format!("{all}; the kernel loads overlay with the first container");
        assert_eq!(seen(&others, &["overlay", "fuse"]), (CheckStatus::Ok, loaded));
        assert_eq!(seen(&others, &["fuse"]), (CheckStatus::Fail, "no overlay".to_owned()));
    }

    #[test]
    fn controllers_may_be_on_either_version() {
        let all = set(&["cpu", "memory", "pids", "cpuset"]);
        assert_eq!(cgroups(&set(&[]), &all).seen, "v2");
        assert_eq!(cgroups(&all, &set(&["hugetlb"])).seen, "v1");
        assert_eq!(cgroups(&set(&["pids", "cpuset"]), &set(&["cpu", "memory"])).verdict, CheckStatus::Ok);
        assert_eq!(cgroups(&set(&["cpu", "memory"]), &set(&[])).verdict, CheckStatus::Warn);
        assert_eq!(cgroups(&set(&["cpu"]), &set(&[])).verdict, CheckStatus::Fail);
        assert_eq!(cgroups(&set(&[]), &set(&["hugetlb"])).verdict, CheckStatus::Fail);
    }

    #[test]
    fn a_missing_sys_resource_is_a_warning_and_a_missing_sys_admin_a_failure() {
        let verdict = |held| capabilities(held).verdict;
        assert_eq!(verdict(u64::MAX), CheckStatus::Ok);
        assert_eq!(verdict(!(1 << 24)), CheckStatus::Warn);
        assert_eq!(verdict(!(1 << 21)), CheckStatus::Fail);
        assert_eq!(verdict(!(1 << 21 | 1 << 24)), CheckStatus::Fail);
    }

    #[test]
    fn a_kernel_with_apparmor_and_no_parser_is_told() {
        assert_eq!(apparmor(AppArmor::Off).verdict, CheckStatus::Ok);
        assert_eq!(apparmor(AppArmor::On).verdict, CheckStatus::Ok);
        assert_eq!(apparmor(AppArmor::WithoutParser).verdict, CheckStatus::Warn);
    }

    #[test]
    fn a_node_without_the_programs_of_nfs_and_iscsi_is_told_their_packages() {
        let [without, with] = [None, Some(Path::new("/sbin/mount.nfs"))].map(nfs);
        assert_eq!([without.verdict, with.verdict], [CheckStatus::Ok; 2]);
        assert!(
            without.seen.contains("nfs-common") && without.seen.contains("nfs-utils"),
            "{}",
            without.seen
        );
        assert_eq!(with.seen, "mounted by /sbin/mount.nfs");
        let [without, with] = [None, Some(Path::new("/usr/sbin/iscsiadm"))].map(iscsi);
        assert_eq!([without.verdict, with.verdict], [CheckStatus::Ok; 2]);
        assert!(without.seen.contains("open-iscsi"), "{}", without.seen);
        assert_eq!(with.seen, "logged in by /usr/sbin/iscsiadm");
    }

    #[test]
    fn a_store_is_one_row_and_each_of_its_faults_another() {
        let looked = |faults| StoreFacts::Looked { images: 2, layers: 3, bytes: 1 << 20, faults };
        let whole = store(&looked(Vec::new()));
        assert_eq!(whole.len(), 1);
        assert_eq!(whole[0].verdict, CheckStatus::Ok);
        let seen = "2 images, 3 layers, 1.0MB in their files: as they were unpacked";
        assert_eq!(whole[0].seen, seen);
        let fault = |what: &str| StoreFault { what: what.into(), remedy: "mend it".into() };
        let broken = store(&looked(vec![fault("one"), fault("two")]));
        assert_eq!(broken[0].remedy, "mend it");
        let seen: Vec<_> = broken.iter().map(|check| (check.verdict, check.seen.as_str())).collect();
        assert_eq!(seen, [(CheckStatus::Fail, "one"), (CheckStatus::Fail, "two")]);
        assert_eq!(store(&StoreFacts::None("/x".into()))[0].verdict, CheckStatus::Ok);
        assert_eq!(store(&StoreFacts::Unknown("no".into()))[0].verdict, CheckStatus::Fail);
    }

    #[test]
    fn whatever_is_wrong_has_a_remedy() {
        let checks = [
            kernel("4.4"),
            namespaces(&set(&["mnt"])),
            filesystems(&set(&[]), &set(&[])),
            cgroups(&set(&[]), &set(&[])),
            seccomp(""),
            apparmor(AppArmor::WithoutParser),
            swap(1),
            network(&CniNetwork::Broken("x".into())),
            folder(&DataFolder { flag: "--root", path: "/x".into(), space: Ok((1, 100)) }),
            registry("h", Err("refused".into())),
        ];
        for check in checks {
            assert!(check.verdict != CheckStatus::Ok && !check.remedy.is_empty(), "{check:?}");
        }
    }
}
