//! What a machine has on it: files, rules, routes, links, sysctls, cgroups, mounts. Owns how each is looked at, what changes
//! by itself, and the list of what stays by design; the comparison is pure. Called by the tier's steps.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};

use super::machine::QemuMachine;

/// A kind of thing, the script that lists it, a line for each, and how a difference counts.
const LOOKS: [(&str, &str, Compare); 8] = [
    ("file", FILES, Compare::Both),
    ("rules", "nft list ruleset", Compare::Both),
    ("route", ROUTES, Compare::Both),
    ("link", "ls /sys/class/net", Compare::Both),
    ("sysctl", SYSCTLS, Compare::Both),
    ("cgroup", "find /sys/fs/cgroup -mindepth 1 -type d -not -path '*/user.slice/*'", Compare::Added),
    ("mount", "grep -v ' /run/user/' /proc/mounts | cut -d ' ' -f 2", Compare::Added),
    ("runtime file", "find /run -mindepth 1 -maxdepth 1", Compare::Added),
];

/// Begins the line that names a kind: no file is called so.
const HEAD: &str = "=== look: ";

/// Which differences count: services of the distribution come and go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compare {
    Both,
    Added,
}

/// Kind, mode, owner, size and target of all, and the content of what can be another one at the same size. Without what
/// apt, dpkg, systemd and logins write by themselves.
const FILES: &str = r"
all() {
    find $1 -xdev \( -path /tmp -o -path /root/tier -o -path '/var/tmp/*' -o -path '/var/log/journal/*' -o -path /var/log/apt \
        -o -path /var/log/dpkg.log -o -path /var/log/wtmp -o -path /var/log/btmp -o -path /var/log/lastlog \
        -o -path /var/log/alternatives.log -o -path /var/cache/apt -o -path /var/lib/apt -o -path /var/lib/dpkg/status \
        -o -path '/var/lib/dpkg/*-old' -o -path /var/lib/dpkg/diversions -o -path '/var/lib/dpkg/lock*' \
        -o -path '/var/lib/dpkg/triggers/*' -o -path '/var/lib/systemd/timers/*' -o -path '/var/cache/ldconfig/*' \
        -o -path /var/lib/systemd/random-seed -o -path '/var/lib/systemd/timesync/*' \
        \) -prune -o $2
}
all / '-type f -printf %y\40%m\40%u:%g\40%s\40%p\n -o -printf %y\40%m\40%u:%g\40%p\40%l\n'
all '/etc /opt /root /home /var/lib' '-type f -exec sha256sum {} +'
";

/// Without counters, random numbers, and what the kernel tunes by itself.
const SYSCTLS: &str = r"
sysctl --all 2>/dev/null | grep -v -E '^(fs\.(dentry-state|file-nr|inode-nr|inode-state|aio-nr|quota\.)|kernel\.(random\.|ns_last_pid|pty\.nr|perf_event_max_sample_rate|tainted)|net\.netfilter\.nf_conntrack_count|net\.ipv4\.(tcp_fastopen_key|tcp_mem|udp_mem)|vm\.user_reserve_kbytes)'
";

/// Without the time that is left of what a router has announced.
const ROUTES: &str = "{ ip -4 route; ip -4 rule; ip -6 route; ip -6 rule; } | sed 's/ expires [0-9]*sec//'";

/// What stays by design until a reboot or for ever, by how its line begins, and whose it is.
const STAY: [(&str, &str, &str); 9] = [
    // docs/join.md: what an agent of the network keeps is its own; that of `xtask/src/kind/cni.yaml`.
    ("rules", "table ip kind-router", "the network's agent"),
    ("runtime file", "/run/cni-ipam-state", "the network's agent"),
    ("runtime file", "/run/xtables.lock", "iptables"),
    // Of an empty folder that `ip netns` makes, too, and until a reboot.
    ("runtime file", "/run/netns", "namespaces of pods"),
    ("mount", "/run/netns", "namespaces of pods"),
    // Modules stay loaded until a reboot, and bring sysctls.
    ("sysctl", "net.netfilter.", "the module nf_conntrack"),
    ("sysctl", "net.nf_conntrack_max", "the module nf_conntrack"),
    ("sysctl", "net.bridge.", "the module br_netfilter"),
    ("sysctl", "fs.overlay", "the module overlay"),
];

/// By kind, each thing's line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Seen(BTreeMap<&'static str, BTreeSet<String>>);

impl Seen {
    /// Looks around, by one connection: the machine is slow at making one.
    ///
    /// # Errors
    /// When a look fails.
    pub(super) fn now(machine: &QemuMachine<'_>) -> Result<Self> {
        let mut script = String::new();
        for (kind, look, _) in LOOKS {
            script.push_str(&format!("echo '{HEAD}{kind}'\n{look}\n"));
        }
        Self::parse(&machine.run(&script)?)
    }

    /// Of the parts, each behind its kind's line.
    fn parse(printed: &str) -> Result<Self> {
        let mut seen = Self::default();
        for part in printed.split(HEAD).skip(1) {
            let (head, listed) = part.split_once('\n').unwrap_or((part, ""));
            let kind = LOOKS.iter().map(|(kind, ..)| *kind).find(|kind| *kind == head);
            let kind = kind.with_context(|| format!("no look is called {head}"))?;
            seen.0.insert(kind, if kind == "rules" { tables(listed) } else { lines(listed) });
        }
        ensure!(seen.0.len() == LOOKS.len(), "the machine told of {} of {} kinds", seen.0.len(), LOOKS.len());
        Ok(seen)
    }

    /// A line for each difference that counts.
    pub(super) fn compare(&self, later: &Self) -> Vec<String> {
        let none = BTreeSet::new();
        let mut differences = Vec::new();
        for (kind, _, counts) in LOOKS {
            let of = |seen: &'_ Self| seen.0.get(kind).unwrap_or(&none).clone();
            let (before, after) = (of(self), of(later));
            let stays = |line: &str| STAY.iter().any(|(of, begin, _)| *of == kind && line.starts_with(begin));
            let new = after.difference(&before).filter(|line| !stays(line));
            differences.extend(new.map(|line| format!("+ {kind} {line}")));
            if counts == Compare::Both {
                differences.extend(before.difference(&after).map(|line| format!("- {kind} {line}")));
            }
        }
        differences
    }
}

fn lines(listed: &str) -> BTreeSet<String> {
    listed.lines().map(|line| line.trim_end().to_owned()).collect()
}

/// Each line of a ruleset behind its table's name and its chain's: without these it says little.
fn tables(ruleset: &str) -> BTreeSet<String> {
    let (mut found, mut around) = (BTreeSet::new(), Vec::new());
    for line in ruleset.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if line == "}" {
            around.pop();
            continue;
        }
        let whole =
            around.iter().copied().chain([line.trim_end_matches(" {")]).collect::<Vec<_>>().join(": ");
        if let Some(block) = line.strip_suffix(" {") {
            around.push(block);
        }
        found.insert(whole);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(things: &[(&'static str, &str)]) -> Seen {
        let mut seen = Seen::default();
        for (kind, line) in things {
            seen.0.entry(kind).or_default().insert((*line).to_owned());
        }
        seen
    }

    #[test]
    fn what_came_and_what_went_is_named_but_for_what_stays_by_design() {
        let before = seen(&[("file", "f /etc/a"), ("cgroup", "/a.service"), ("link", "eth0")]);
        let later = seen(&[
            ("file", "f /etc/b"),
            ("link", "eth0"),
            ("runtime file", "/run/xtables.lock"),
            ("rules", "table ip kind-router"),
            ("rules", "table ip nat"),
        ]);
        assert_eq!(before.compare(&later), ["+ file f /etc/b", "- file f /etc/a", "+ rules table ip nat"]);
        assert!(before.compare(&before).is_empty());
    }

    #[test]
    fn each_look_is_parted_from_the_next_and_a_missing_one_is_an_error() {
        let mut printed = String::new();
        for (kind, ..) in LOOKS {
            printed.push_str(&format!("{HEAD}{kind}\none of {kind}\n"));
        }
        let seen = Seen::parse(&printed).unwrap();
        assert_eq!(seen.0["file"], BTreeSet::from(["one of file".to_owned()]));
        assert_eq!(seen.0["runtime file"], BTreeSet::from(["one of runtime file".to_owned()]));
        let cut = printed.split("runtime file").next().unwrap();
        assert!(Seen::parse(cut).is_err());
    }

    #[test]
    fn a_rule_is_told_with_its_table_and_chain() {
        let text = "table ip nat {\n\tchain out {\n\t\ttype nat hook output\n\t}\n}\ntable ip6 x {\n}\n";
        let found = tables(text);
        let expected = [
            "table ip nat",
            "table ip nat: chain out",
            "table ip nat: chain out: type nat hook output",
            "table ip6 x",
        ];
        assert_eq!(found.into_iter().collect::<Vec<_>>(), expected);
    }
}
