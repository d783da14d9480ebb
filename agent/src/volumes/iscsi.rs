//! A disk of an iSCSI target as a volume: its names and places, and what is written down of it, all as upstream has them.
//! Pure, but for two looks at folders; what is done is [`session`]'s. Called by [`super::claim`] and [`super::host`].
//!
//! ```text
//! ROOT/plugins/kubernetes.io/iscsi/iface-IFACE/PORTAL-IQN-lun-LUN                 the file system, once for all pods
//! ROOT/plugins/kubernetes.io/iscsi/volumeDevices/iface-IFACE/PORTAL-IQN-lun-LUN   maps of the device, one for each pod
//! …/iscsi.json                                                                    what it takes to log out
//! ```

pub(super) mod session;
mod sysfs;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use gantry_base::files::replace;
use gantry_model::go_json;
use gantry_model::pod::volume::IscsiVolume;
use serde::{Deserialize, Serialize};

use crate::block;

/// Of its volumes, below a pod's.
pub(super) const FOLDER: &str = "kubernetes.io~iscsi";
/// Of its disks, below the plugins'.
pub(super) const PLUGIN: &str = "kubernetes.io/iscsi";
/// Within a disk's folder, beneath what is mounted on it.
const RECORD: &str = "iscsi.json";
const PORT: &str = ":3260";

/// Said beside what Go says of a program that is nowhere.
pub(crate) const NO_ISCSIADM: &str = "this node has no iscsiadm: install open-iscsi (Debian, Ubuntu) or iscsi-initiator-utils (other distributions)";

/// A disk that a pod wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IscsiDisk {
    /// Of the volume: the PersistentVolume's, or the pod's own for it.
    pub(super) name: String,
    /// Of the PersistentVolume; none where the volume is the pod's own.
    pub(super) uid: Option<String>,
    pub(super) of: IscsiVolume,
    /// As the PersistentVolume has them.
    pub(super) options: Vec<String>,
    /// ReadWriteOncePod is its only access mode.
    pub(super) one_pod: bool,
    /// Pods have it as a device, not as a folder.
    pub(super) block: bool,
}

/// What is written down of a disk, in upstream's form: by it the node is logged out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct IscsiRecord {
    #[serde(default)]
    vol_name: String,
    portals: Vec<String>,
    iqn: String,
    lun: String,
    /// As configured on the node.
    #[serde(default)]
    init_iface: String,
    /// The one that logs in: a copy of the other where the initiator has a name of its own.
    iface: String,
    #[serde(default)]
    initiator_name: String,
    /// Upstream writes it, and reads nothing in it.
    #[serde(default)]
    metrics_provider: Option<()>,
}

impl IscsiDisk {
    /// A volume that is the pod's own.
    pub(super) fn own(name: &str, of: &IscsiVolume) -> Self {
        let (name, of) = (name.to_owned(), of.clone());
        Self { name, uid: None, of, options: Vec::new(), one_pod: false, block: false }
    }

    /// As the Node's status names it.
    pub(super) fn unique_name(&self) -> String {
        let IscsiVolume { target_portal, iqn, lun, .. } = &self.of;
        format!("{PLUGIN}/{target_portal}:{iqn}:{lun}")
    }

    pub(super) fn record(&self) -> IscsiRecord {
        let all = [&self.of.target_portal].into_iter().chain(&self.of.portals);
        let portals: Vec<String> = all.map(|portal| with_port(portal)).collect();
        let initiator_name = self.of.initiator.clone().unwrap_or_default();
        let init_iface = self.of.interface.clone();
        let iface = match (initiator_name.is_empty(), portals.first()) {
            (false, Some(first)) => format!("{first}:{}", self.name),
            _ => init_iface.clone(),
        };
        IscsiRecord {
            vol_name: self.name.clone(),
            portals,
            iqn: self.of.iqn.clone(),
            lun: self.of.lun.to_string(),
            init_iface,
            iface,
            initiator_name,
            metrics_provider: None,
        }
    }

    /// Where the disk is for all pods.
    pub(super) fn place(&self, plugins: &Path) -> PathBuf {
        let IscsiRecord { portals, iqn, lun, iface, .. } = self.record();
        let portal = portals.first().map(String::as_str).unwrap_or_default();
        let all = plugins.join(PLUGIN);
        let all = if self.block { all.join(block::FOLDER) } else { all };
        all.join(format!("iface-{iface}")).join(format!("{portal}-{iqn}-lun-{lun}"))
    }

    /// Names become folders, and come from a manifest or from the API server.
    ///
    /// # Errors
    /// Names what cannot be one.
    pub(super) fn check_names(&self) -> Result<(), String> {
        let IscsiVolume { target_portal, iqn, interface, .. } = &self.of;
        for (what, text) in [
            ("targetPortal", target_portal),
            ("iqn", iqn),
            ("iscsiInterface", interface),
            ("name", &self.name),
        ] {
            if text.is_empty() || text == "." || text == ".." || text.contains(['/', '\0']) {
                return Err(format!("{what} {text:?} of an iSCSI volume cannot be part of a path: mend it"));
            }
        }
        Ok(())
    }

    /// For mount(8), each once and sorted, as upstream.
    pub(super) fn mount_options(&self, first: Option<&str>) -> Vec<String> {
        let own = self.options.iter().map(String::as_str).filter(|option| !option.is_empty());
        let ro = self.of.read_only.then_some("ro");
        let all: std::collections::BTreeSet<&str> = own.chain(ro).chain(first).collect();
        all.into_iter().map(str::to_owned).collect()
    }

    /// For who waits for it.
    pub(super) fn target(&self) -> String {
        format!("{} {}", with_port(&self.of.target_portal), self.of.iqn)
    }
}

fn with_port(portal: &str) -> String {
    if portal.contains(':') { portal.to_owned() } else { format!("{portal}{PORT}") }
}

impl IscsiRecord {
    /// As the Node's status may have named it: the portal stands there as it was written.
    fn unique_names(&self) -> Vec<String> {
        let portal = self.portals.first().map(String::as_str).unwrap_or_default();
        let written = [Some(portal), portal.strip_suffix(PORT)];
        written
            .into_iter()
            .flatten()
            .map(|portal| format!("{PLUGIN}/{portal}:{}:{}", self.iqn, self.lun))
            .collect()
    }

    pub(super) fn volume(&self) -> &str {
        &self.vol_name
    }

    pub(super) fn iqn(&self) -> &str {
        &self.iqn
    }

    /// Into the folder of its disk.
    ///
    /// # Errors
    /// Names the file.
    pub(super) fn save(&self, folder: &Path) -> Result<(), String> {
        let file = folder.join(RECORD);
        let text = go_json::text(self).map_err(|error| format!("iscsi: encode err: {error}"))?;
        replace(&file, format!("{text}\n").as_bytes(), 0o644)
            .map_err(|error| format!("iscsi: create {} err {error}", file.display()))
    }

    /// Of the disk in that folder, which nothing is mounted on: as written, or as the folder's name says.
    ///
    /// # Errors
    /// Neither says it.
    pub(super) fn load(folder: &Path) -> Result<Self, String> {
        let file = folder.join(RECORD);
        let why = match fs::read(&file) {
            Ok(text) => match serde_json::from_slice::<Self>(&text) {
                Ok(record) if !record.portals.is_empty() => return Ok(record),
                Ok(_) => "it names no portal".to_owned(),
                Err(error) => error.to_string(),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => "it is not there".to_owned(),
            Err(error) => return Err(format!("read {}: {error}", file.display())),
        };
        Self::of_path(folder)
            .ok_or_else(|| format!("{}: {why}, and the folder's name says no more", file.display()))
    }

    fn of_path(folder: &Path) -> Option<Self> {
        let iface = folder.parent()?.file_name()?.to_str()?.strip_prefix("iface-")?.to_owned();
        let name = folder.file_name()?.to_str()?;
        let (target, lun) = name.rsplit_once("-lun-")?;
        let at = ["-iqn.", "-eui.", "-naa."].iter().filter_map(|kind| target.find(kind)).min()?;
        let (portal, iqn) = (target.get(..at)?, target.get(at + 1..)?);
        lun.parse::<u32>().ok()?;
        Some(Self {
            vol_name: String::new(),
            portals: vec![portal.to_owned()],
            iqn: iqn.to_owned(),
            lun: lun.to_owned(),
            init_iface: iface.clone(),
            iface,
            initiator_name: String::new(),
            metrics_provider: None,
        })
    }

    /// Whether another disk of the same target is on this node, by the same portal.
    ///
    /// # Errors
    /// Names the folder.
    pub(super) fn is_shared(&self, plugins: &Path) -> Result<bool, String> {
        let first = self.portals.first().map(String::as_str).unwrap_or_default();
        let prefix = format!("{first}-{}-lun-", self.iqn);
        let of_target = |folder: &PathBuf| {
            folder.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(&prefix))
        };
        Ok(list_disks(plugins)?.iter().filter(|folder| of_target(folder)).count() > 1)
    }
}

/// How the Node's status may name the disk in that folder; none of a folder with a strange name.
pub(super) fn unique_names(folder: &Path) -> Vec<String> {
    IscsiRecord::of_path(folder).map(|record| record.unique_names()).unwrap_or_default()
}

/// Folders of disks, of both kinds, whoever made them.
///
/// # Errors
/// Names the folder.
pub(super) fn list_disks(plugins: &Path) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    for all in [plugins.join(PLUGIN), plugins.join(PLUGIN).join(block::FOLDER)] {
        for iface in folders(&all)? {
            if iface.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("iface-"))
            {
                found.extend(folders(&iface)?);
            }
        }
    }
    Ok(found)
}

/// Whether that is a folder of maps of a device.
pub(super) fn is_block(folder: &Path, plugins: &Path) -> bool {
    folder.starts_with(plugins.join(PLUGIN).join(block::FOLDER))
}

/// None where there is none.
fn folders(path: &Path) -> Result<Vec<PathBuf>, String> {
    let failed = |error: io::Error| format!("list {}: {error}", path.display());
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        if entry.file_type().map_err(failed)?.is_dir() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const IQN: &str = "iqn.2003-01.io.k8s:e2e.volume-1";

    fn disk(change: impl FnOnce(&mut IscsiDisk)) -> IscsiDisk {
        let of = IscsiVolume {
            target_portal: "10.0.0.1".into(),
            portals: vec!["10.0.0.2:3261".into()],
            iqn: IQN.into(),
            lun: 3,
            interface: "default".into(),
            ..IscsiVolume::default()
        };
        let mut disk = IscsiDisk::own("pv", &of);
        change(&mut disk);
        disk
    }

    #[test]
    fn a_disk_has_upstreams_name_places_and_record() {
        let plain = disk(|_| {});
        assert_eq!(plain.unique_name(), format!("kubernetes.io/iscsi/10.0.0.1:{IQN}:3"));
        let place = |disk: &IscsiDisk| disk.place(Path::new("/k/plugins")).to_string_lossy().into_owned();
        let name = format!("10.0.0.1:3260-{IQN}-lun-3");
        assert_eq!(place(&plain), format!("/k/plugins/kubernetes.io/iscsi/iface-default/{name}"));
        let block = disk(|disk| disk.block = true);
        let below = format!("/k/plugins/kubernetes.io/iscsi/volumeDevices/iface-default/{name}");
        assert_eq!(place(&block), below);
        let named = disk(|disk| disk.of.initiator = Some("iqn.2020-01.a:b".into()));
        assert_eq!(place(&named), format!("/k/plugins/kubernetes.io/iscsi/iface-10.0.0.1:3260:pv/{name}"));
        let folder = tempfile::tempdir().unwrap();
        named.record().save(folder.path()).unwrap();
        // As upstream's kubelet writes it.
        let text = format!(
            "{{\"VolName\":\"pv\",\"Portals\":[\"10.0.0.1:3260\",\"10.0.0.2:3261\"],\"Iqn\":\"{IQN}\",\"Lun\":\"3\",\"InitIface\":\"default\",\"Iface\":\"10.0.0.1:3260:pv\",\"InitiatorName\":\"iqn.2020-01.a:b\",\"MetricsProvider\":null}}\n"
        );
        assert_eq!(fs::read_to_string(folder.path().join("iscsi.json")).unwrap(), text);
        assert_eq!(IscsiRecord::load(folder.path()), Ok(named.record()));
        let names = named.record().unique_names();
        assert_eq!(names.get(1), Some(&named.unique_name()), "{names:?}");
    }

    #[test]
    fn without_a_record_the_folders_name_says_what_it_takes_to_log_out() {
        let root = tempfile::tempdir().unwrap();
        let folder = disk(|disk| disk.of.portals.clear()).place(root.path());
        fs::create_dir_all(&folder).unwrap();
        let mut wanted = disk(|disk| disk.of.portals.clear()).record();
        wanted.vol_name.clear();
        assert_eq!(IscsiRecord::load(&folder).unwrap(), wanted);
        fs::write(folder.join("iscsi.json"), "{").unwrap();
        assert_eq!(IscsiRecord::load(&folder).unwrap(), wanted, "what was cut off in writing");
        let strange = root.path().join("iface-default/what");
        fs::create_dir_all(&strange).unwrap();
        let told = IscsiRecord::load(&strange).unwrap_err();
        assert!(told.ends_with("iscsi.json: it is not there, and the folder's name says no more"), "{told}");
    }

    #[test]
    fn a_target_is_shared_with_every_disk_of_it_and_no_other() {
        let root = tempfile::tempdir().unwrap();
        let make = |change: fn(&mut IscsiDisk)| {
            fs::create_dir_all(disk(change).place(root.path())).unwrap();
        };
        let is_shared = || disk(|_| {}).record().is_shared(root.path()).unwrap();
        make(|_| {});
        make(|disk| disk.of.iqn.push('0'));
        make(|disk| disk.of.target_portal = "10.0.0.9".into());
        assert!(!is_shared());
        make(|disk| (disk.of.lun, disk.block) = (4, true));
        assert!(is_shared());
    }

    #[test]
    fn what_cannot_be_part_of_a_path_is_refused_by_name() {
        assert_eq!(disk(|_| {}).check_names(), Ok(()));
        for wrong in ["a/b", "..", ""] {
            let told = disk(|disk| disk.of.interface = wrong.into()).check_names().unwrap_err();
            assert!(told.starts_with(&format!("iscsiInterface {wrong:?} of an iSCSI volume")), "{told}");
        }
        assert!(disk(|disk| disk.of.iqn = "iqn.2003-01.a:../..".into()).check_names().is_err());
    }

    #[test]
    fn options_are_each_there_once_and_sorted_as_upstream() {
        let options = |all: &[&str], read_only, first| {
            let all = all.iter().map(|option| (*option).to_owned()).collect();
            disk(|disk| (disk.options, disk.of.read_only) = (all, read_only)).mount_options(first).join(",")
        };
        assert_eq!(options(&["noatime", "", "discard", "noatime"], true, None), "discard,noatime,ro");
        assert_eq!(options(&[], false, Some("bind")), "bind");
    }
}
