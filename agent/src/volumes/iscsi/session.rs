//! Logs this node into an iSCSI target, finds the disk, and logs it out again, by `iscsiadm` and the kernel's own switches.
//! Owns the order and upstream's words; whose turn it is with a target is the caller's. Called by [`crate::volumes::host`].

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::sleep;

use super::super::host_program::{HostProgram, NOT_FOUND, ProgramFailure};
use super::{IscsiRecord, NO_ISCSIADM, sysfs};

/// A portal that does not answer keeps iscsiadm for about two minutes. Upstream waits without end.
const PATIENCE: Duration = Duration::from_secs(300);
/// So often portals are tried: for all of them, for two, and for one.
const ATTEMPTS: u32 = 5;
const ATTEMPTS_FOR_TWO: u32 = 2;
/// Exit codes of iscsiadm(8): nothing of what was named is there.
const NOTHING: [i32; 2] = [2, 21];
/// A record of that name is there.
const EXISTS: i32 = 15;
const DISCOVERY: &str = "discovery.sendtargets.auth";
const SESSION: &str = "node.session.auth";

/// This machine's.
#[derive(Debug, Clone)]
pub(crate) struct IscsiHost {
    pub(crate) iscsiadm: HostProgram,
    pub(crate) multipath: HostProgram,
    pub(crate) sys: PathBuf,
    /// Where udev names disks.
    pub(crate) by_path: PathBuf,
    /// Between two looks for a disk, and how many there are.
    pub(crate) pause: Duration,
    pub(crate) looks: u32,
    /// For a multipath device, where a disk has several portals.
    pub(crate) multipath_looks: u32,
}

impl Default for IscsiHost {
    fn default() -> Self {
        Self {
            iscsiadm: HostProgram::new(&["iscsiadm"], PATIENCE),
            multipath: HostProgram::new(&["multipath"], PATIENCE),
            sys: PathBuf::from("/sys"),
            by_path: PathBuf::from("/dev/disk/by-path"),
            pause: Duration::from_secs(1),
            looks: 30,
            multipath_looks: 10,
        }
    }
}

/// Names and passwords of CHAP.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Chap {
    pub(crate) discovery: bool,
    pub(crate) session: bool,
    /// By the keys that `iscsiadm` has for them.
    pub(crate) secret: BTreeMap<String, String>,
}

impl std::fmt::Debug for Chap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { discovery, session, secret: _ } = self;
        f.debug_struct("Chap").field("discovery", discovery).field("session", session).finish_non_exhaustive()
    }
}

impl IscsiHost {
    /// The disk's device: of a session that is there, or of a new one.
    ///
    /// # Errors
    /// In upstream's words.
    pub(crate) async fn attach(&self, disk: &IscsiRecord, chap: &Chap) -> Result<PathBuf, String> {
        let shown = self.run(&["-m", "iface", "-I", &disk.init_iface, "-o", "show"]).await;
        let shown = shown.map_err(|failure| match failure.why.ends_with(NOT_FOUND) {
            true => format!("{}: {NO_ISCSIADM}", failure.why),
            false => format!("{}: {}", failure.why, failure.output.trim_end()),
        })?;
        if disk.has_own_iface() {
            self.clone_iface(disk, &shown).await?;
        }
        let paths = self.paths(disk, chap, transport(&shown)).await?;
        let looks = if disk.portals.len() > 1 { self.multipath_looks } else { 1 };
        let over = self.look(looks, || paths.iter().find_map(|path| sysfs::multipath(&self.sys, path))).await;
        over.or_else(|| paths.into_iter().next()).ok_or_else(|| "it names no portal".to_owned())
    }

    /// A device for each portal that leads to the disk, in their order.
    async fn paths(
        &self,
        disk: &IscsiRecord,
        chap: &Chap,
        transport: Option<&str>,
    ) -> Result<Vec<PathBuf>, String> {
        let mut paths: BTreeMap<usize, PathBuf> = BTreeMap::new();
        let mut last = String::new();
        for attempt in 1..=ATTEMPTS {
            for (index, portal) in disk.portals.iter().enumerate() {
                if paths.contains_key(&index) {
                    continue;
                }
                match self.path(disk, chap, portal, transport).await {
                    Ok(path) => drop(paths.insert(index, path)),
                    Err(why) => last = why,
                }
            }
            if paths.is_empty() {
                if disk.has_own_iface() {
                    self.clean(&["-m", "iface", "-I", &disk.iface, "-o", "delete"]).await;
                }
                return Err(format!("failed to get any path for iscsi disk, last err seen:\n{last}"));
            }
            if paths.len() == disk.portals.len() || (paths.len() > 1 && attempt >= ATTEMPTS_FOR_TWO) {
                break;
            }
        }
        if !last.is_empty() {
            tracing::warn!(iqn = disk.iqn, why = last, "a portal leads to no disk");
        }
        Ok(paths.into_values().collect())
    }

    /// The device by one portal.
    async fn path(
        &self,
        disk: &IscsiRecord,
        chap: &Chap,
        portal: &str,
        transport: Option<&str>,
    ) -> Result<PathBuf, String> {
        let host = match self.host(disk, portal).await? {
            Some(host) => host,
            None => {
                self.log_in(disk, chap, portal).await?;
                let found = self.host(disk, portal).await?;
                found.ok_or_else(|| {
                    format!("Could not get SCSI host number for portal {portal} after logging in")
                })?
            }
        };
        let lun = disk.number()?;
        self.on_sys(move |sys| sysfs::scan(sys, host, lun)).await?;
        let transport = transport.ok_or_else(|| format!("could not parse iface file for {}", disk.iface))?;
        let found = self.look(self.looks, || device(&self.by_path, disk, portal, transport)).await;
        found.ok_or_else(|| {
            let shown = self.by_path.join(name(disk, portal, transport));
            format!("Timed out waiting for device at path {} after {}s", shown.display(), self.looks)
        })
    }

    /// Of the session by that portal.
    async fn host(&self, disk: &IscsiRecord, portal: &str) -> Result<Option<u32>, String> {
        let iqn = disk.iqn.clone();
        let hosts = self.on_sys(move |sys| sysfs::portal_hosts(sys, &iqn)).await?;
        Ok(hosts.get(portal).copied())
    }

    async fn log_in(&self, disk: &IscsiRecord, chap: &Chap, portal: &str) -> Result<(), String> {
        let IscsiRecord { iface, iqn, .. } = disk;
        let discovery = ["-m", "discoverydb", "-t", "sendtargets", "-p", portal, "-I", iface];
        self.clean(&with(&discovery, &["-o", "new"])).await;
        if chap.discovery {
            self.set_chap(&discovery, DISCOVERY, chap, "discoverydb").await.map_err(|why| {
                format!("iscsi: failed to update discoverydb to portal {portal} error: {why}")
            })?;
        }
        if let Err(ProgramFailure { why, output, .. }) = self.run(&with(&discovery, &["--discover"])).await {
            self.clean(&with(&discovery, &["-o", "delete"])).await;
            return Err(format!(
                "iscsi: failed to sendtargets to portal {portal} output: {output}, err {why}"
            ));
        }
        let node = ["-m", "node", "-p", portal, "-T", iqn, "-I", iface];
        // Else the kernel looks for every disk of the target, and others' disks are this node's too (#90982).
        if let Err(failure) =
            self.run(&with(&node, &["-o", "update", "-n", "node.session.scan", "-v", "manual"])).await
        {
            tracing::warn!(
                iqn,
                output = failure.output,
                "iscsiadm has no node.session.scan: all disks of the target appear"
            );
        }
        if chap.session {
            self.set_chap(&node, SESSION, chap, "node").await.map_err(|why| {
                format!("iscsi: failed to update iscsi node to portal {portal} error: {why}")
            })?;
        }
        if let Err(ProgramFailure { why, output, .. }) = self.run(&with(&node, &["--login"])).await {
            self.clean(&with(&node, &["-o", "delete"])).await;
            return Err(format!("iscsi: failed to attach disk: Error: {output} ({why})"));
        }
        // After a reboot the kubelet logs in, not the boot: that would wait for a target that is gone.
        let startup =
            ["-m", "node", "-p", portal, "-T", iqn, "-o", "update", "-n", "node.startup", "-v", "manual"];
        if let Err(failure) = self.run(&startup).await {
            tracing::warn!(iqn, output = failure.output, "the login at boot is not turned off");
        }
        Ok(())
    }

    /// What `iscsiadm` says of a password is told, the password never is.
    async fn set_chap(&self, of: &[&str], key: &str, chap: &Chap, what: &str) -> Result<(), String> {
        let method = format!("{key}.authmethod");
        let set = self.run(&with(of, &["-o", "update", "-n", &method, "-v", "CHAP"])).await;
        set.map_err(|failure| {
            format!("iscsi: failed to update {what} with CHAP, output: {}", failure.output)
        })?;
        for name in ["username", "password", "username_in", "password_in"] {
            let name = format!("{key}.{name}");
            let Some(value) = chap.secret.get(&name).filter(|value| !value.is_empty()) else { continue };
            let set = self.run(&with(of, &["-o", "update", "-n", &name, "-v", value])).await;
            set.map_err(|failure| {
                format!("iscsi: failed to update {what} key {name:?} error: {}", failure.output)
            })?;
        }
        Ok(())
    }

    /// A copy of the node's interface, with an initiator's name of its own.
    async fn clone_iface(&self, disk: &IscsiRecord, shown: &str) -> Result<(), String> {
        let IscsiRecord { iface, init_iface, initiator_name, .. } = disk;
        if iface == init_iface {
            return Err(format!("iscsi: cannot clone iface with same name: {init_iface}"));
        }
        let mut settings =
            settings(shown).map_err(|why| format!("iscsi: failed to parse iface records: {why}"))?;
        settings.insert("iface.initiatorname".to_owned(), initiator_name.clone());
        let of = ["-m", "iface", "-I", iface.as_str()];
        match self.run(&with(&of, &["-o", "new"])).await {
            Ok(_) => {}
            Err(ProgramFailure { code: Some(EXISTS), .. }) => {}
            Err(ProgramFailure { why, output, .. }) => {
                return Err(format!("iscsi: failed to create new iface: {output} ({why})"));
            }
        }
        for (name, value) in &settings {
            let set = self.run(&with(&of, &["-o", "update", "-n", name, "-v", value])).await;
            if let Err(ProgramFailure { why, output, .. }) = set {
                self.clean(&with(&of, &["-o", "delete"])).await;
                return Err(format!(
                    "iscsi: failed to update iface records: {output} ({why}). iface({init_iface}) will be used"
                ));
            }
        }
        Ok(())
    }

    /// Has the kernel forget the disk, which nobody may use any more.
    ///
    /// # Errors
    /// Of `/sys`; a device that stays is told and no error, as upstream: a logout may help.
    pub(crate) async fn forget_devices(&self, disk: &IscsiRecord) -> Result<(), String> {
        let (iqn, lun) = (disk.iqn.clone(), disk.number()?);
        let devices = self.on_sys(move |sys| sysfs::devices(sys, &iqn, lun)).await?;
        let path = |device: &String| Path::new("/dev").join(device);
        let maps: std::collections::BTreeSet<PathBuf> =
            devices.iter().filter_map(|device| sysfs::multipath(&self.sys, &path(device))).collect();
        for map in maps {
            let shown = map.to_string_lossy().into_owned();
            if let Err(failure) = self.multipath.run("multipath", &["-f".to_owned(), shown.clone()]).await {
                tracing::warn!(
                    map = shown,
                    why = failure.why,
                    output = failure.output,
                    "a multipath map stays"
                );
            }
        }
        for device in devices {
            let of = device.clone();
            if let Err(why) = self.on_sys(move |sys| sysfs::delete(sys, &of)).await {
                tracing::warn!(device, why, "a device stays");
            }
        }
        Ok(())
    }

    /// Ends the sessions with the target. None is no error.
    ///
    /// # Errors
    /// In upstream's words.
    pub(crate) async fn log_out(&self, disk: &IscsiRecord) -> Result<(), String> {
        let IscsiRecord { iface, iqn, portals, .. } = disk;
        let failed = |why| format!("failed to finish detachISCSIDisk, err: {why}");
        let mut done = std::collections::BTreeSet::new();
        for portal in portals.iter().filter(|portal| done.insert(portal.as_str())) {
            for end in [&["--logout"][..], &["-o", "delete"]] {
                let node = with(&["-m", "node", "-p", portal, "-T", iqn], end);
                self.end(&with(&node, &["-I", iface])).await.map_err(failed)?;
            }
        }
        if disk.has_own_iface() {
            self.end(&["-m", "iface", "-I", iface, "-o", "delete"]).await.map_err(failed)?;
        }
        Ok(())
    }

    /// What is not there need not be ended.
    async fn end(&self, words: &[&str]) -> Result<(), String> {
        match self.run(words).await {
            Ok(_) => Ok(()),
            Err(ProgramFailure { code: Some(code), .. }) if NOTHING.contains(&code) => Ok(()),
            Err(ProgramFailure { why, output, .. }) => Err(format!("{why}: {}", output.trim_end())),
        }
    }

    async fn run(&self, words: &[&str]) -> Result<String, ProgramFailure> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        self.iscsiadm.run("iscsiadm", &words).await
    }

    /// What may fail: it is there already, or is gone.
    async fn clean(&self, words: &[&str]) {
        if let Err(failure) = self.run(words).await {
            tracing::debug!(?words, why = failure.why, output = failure.output, "iscsiadm");
        }
    }

    async fn on_sys<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
    ) -> Result<T, String> {
        let sys = self.sys.clone();
        let done = tokio::task::spawn_blocking(move || work(&sys)).await;
        done.unwrap_or_else(|error| Err(io::Error::other(error))).map_err(|error| error.to_string())
    }

    /// Looks until something is there, for so many times.
    async fn look<T>(&self, looks: u32, mut found: impl FnMut() -> Option<T>) -> Option<T> {
        for index in 0..looks {
            if index > 0 {
                sleep(self.pause).await;
            }
            if let Some(found) = found() {
                return Some(found);
            }
        }
        None
    }
}

impl IscsiRecord {
    fn has_own_iface(&self) -> bool {
        let Some(first) = self.portals.first() else { return false };
        !self.initiator_name.is_empty() && self.iface == format!("{first}:{}", self.vol_name)
    }

    fn number(&self) -> Result<u32, String> {
        self.lun
            .parse()
            .map_err(|error| format!("AttachDisk: lun is not a number: {}\nError: {error}", self.lun))
    }
}

fn with<'a>(first: &[&'a str], rest: &[&'a str]) -> Vec<&'a str> {
    first.iter().chain(rest).copied().collect()
}

/// As the kernel calls it; none where `iscsiadm` shows none.
fn transport(shown: &str) -> Option<&str> {
    let found = shown.lines().find_map(|line| line.split_once("iface.transport_name = "))?.1;
    Some(if found == "<empty>" { "tcp" } else { found })
}

/// Of an interface, as `iscsiadm -m iface -o show` prints them; its name is not to be copied.
fn settings(shown: &str) -> Result<BTreeMap<String, String>, String> {
    let mut all = BTreeMap::new();
    for line in shown.lines().filter(|line| line.starts_with("iface.") && !line.contains("<empty>")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, "=", value] = words[..] else {
            return Err(format!("error: invalid iface setting: {words:?}"));
        };
        if name != "iface.iscsi_ifacename" {
            all.insert(name.to_owned(), value.to_owned());
        }
    }
    Ok(all)
}

/// As udev names the disk. Which PCI device other transports have, nobody knows before.
fn name(disk: &IscsiRecord, portal: &str, transport: &str) -> String {
    let portal = portal.replace(['[', ']'], "");
    let first = if transport == "tcp" { "" } else { "pci-*-" };
    format!("{first}ip-{portal}-iscsi-{}-lun-{}", disk.iqn, disk.lun)
}

fn device(by_path: &Path, disk: &IscsiRecord, portal: &str, transport: &str) -> Option<PathBuf> {
    let name = name(disk, portal, transport);
    let Some(rest) = name.strip_prefix("pci-*") else {
        return Some(by_path.join(name)).filter(|path| path.exists());
    };
    let mut all: Vec<PathBuf> = fs::read_dir(by_path).ok()?.flatten().map(|entry| entry.path()).collect();
    all.sort();
    all.into_iter().find(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.strip_prefix("pci-").is_some_and(|name| name.ends_with(rest)) && path.exists()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As open-iscsi 2.1.8 prints it.
    const SHOWN: &str = "# BEGIN RECORD 2.1.8\niface.iscsi_ifacename = default\niface.net_ifacename = <empty>\niface.transport_name = tcp\niface.initiatorname = <empty>\n# END RECORD\n";

    #[test]
    fn an_interface_tells_its_transport_and_what_a_copy_has() {
        assert_eq!(transport(SHOWN), Some("tcp"));
        assert_eq!(transport(&SHOWN.replace("= tcp", "= <empty>")), Some("tcp"));
        assert_eq!(transport("iscsiadm: what\n"), None);
        let kept = BTreeMap::from([("iface.transport_name".to_owned(), "tcp".to_owned())]);
        assert_eq!(settings(SHOWN), Ok(kept));
        assert!(settings("iface.mtu = 1 2\n").unwrap_err().contains("invalid iface setting"));
    }

    #[test]
    fn passwords_are_not_shown() {
        let secret = BTreeMap::from([("node.session.auth.password".to_owned(), "hunter2".to_owned())]);
        let chap = Chap { discovery: false, session: true, secret };
        assert!(!format!("{chap:?}").contains("hunter2"));
    }
}
