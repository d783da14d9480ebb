//! Devices by name, from files to what the monitor is told.

use std::collections::BTreeMap;
use std::path::Path;

use gantry_proto::monitor::{HookStage, Mount, StartContainer};

use super::*;

const FILE: &str = "
cdiVersion: 1.0.0
kind: v.com/c
containerEdits:
  env: [ALL=1, B=of-the-file]
  mounts: [{hostPath: /lib/v, containerPath: /lib/v, options: [ro, bind]}]
devices:
- name: a
  containerEdits:
    env: [B=of-a]
    deviceNodes: [{path: /dev/a, hostPath: /dev/zero}]
    mounts: [{hostPath: /b, containerPath: /lib/v/deep/er}, {hostPath: /c, containerPath: /c}]
    hooks: [{hookName: createContainer, path: /h, args: [h, x], timeout: 5}, {hookName: poststop, path: /p}]
    additionalGids: [0, 44, 44]
- name: b
  containerEdits: {env: [C=c]}
- name: rdt
  containerEdits: {intelRdt: {closID: x}}
";

fn folder() -> (tempfile::TempDir, Vec<PathBuf>) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("v.yaml"), FILE).unwrap();
    let folders = vec![folder.path().to_owned()];
    (folder, folders)
}

fn config(fields: &[&str], annotations: &[(&str, &str)]) -> cri::ContainerConfig {
    cri::ContainerConfig {
        cdi_devices: fields.iter().map(|name| cri::CdiDevice { name: (*name).to_owned() }).collect(),
        annotations: annotations
            .iter()
            .map(|(a, b)| ((*a).to_owned(), (*b).to_owned()))
            .collect::<BTreeMap<_, _>>(),
        ..cri::ContainerConfig::default()
    }
}

#[test]
fn devices_are_asked_for_by_the_field_and_by_annotations() {
    let both = config(
        &["v/c=a", "v/c=b", "v/c=a"],
        &[("cdi.k8s.io/x", "v/c=b,v/c=d"), ("cdi.k8s.io", "odd"), ("other", "odd")],
    );
    assert_eq!(requested_devices(&both, true).unwrap(), ["v/c=a", "v/c=b", "v/c=d"]);
    let odd = config(&[], &[("cdi.k8s.io/x", "v/c=b, v/c=d")]);
    assert_eq!(
        requested_devices(&odd, true).unwrap_err().to_string(),
        "failed to parse CDI device annotations: invalid CDI device name \" v/c=d\""
    );
    assert_eq!(
        requested_devices(&both, false).unwrap_err().to_string(),
        "CDI devices (v/c=a, v/c=b, v/c=a) requested but CDI support is explicitly disabled"
    );
    assert!(requested_devices(&odd, false).unwrap().is_empty());
}

#[test]
fn a_container_gets_what_its_devices_say() {
    let (_folder, folders) = folder();
    let mount = |at: &str| Mount { source: "/own".into(), destination: at.into(), ..Mount::default() };
    let mut start = StartContainer {
        env: vec![b"BB=1".to_vec(), b"B=own".to_vec()],
        mounts: vec![mount("/a/b/c"), mount("/c")],
        ..StartContainer::default()
    };
    inject(&mut start, &["v.com/c=a".into(), "v.com/c=b".into()], &folders).unwrap();
    let env: Vec<&str> = start.env.iter().map(|pair| std::str::from_utf8(pair).unwrap()).collect();
    assert_eq!(env, ["BB=1", "B=of-a", "ALL=1", "C=c"]);
    let mounts: Vec<_> = start.mounts.iter().map(|m| (m.source.as_str(), m.destination.as_str())).collect();
    assert_eq!(mounts, [("/c", "/c"), ("/lib/v", "/lib/v"), ("/own", "/a/b/c"), ("/b", "/lib/v/deep/er")]);
    assert_eq!(start.devices.len(), 1);
    assert_eq!(start.additional_gids, [44]);
    let hooks = start.hooks.unwrap().hooks;
    let stages: Vec<HookStage> = hooks.iter().map(|hook| hook.stage()).collect();
    assert_eq!(stages, [HookStage::HookCreateContainer, HookStage::HookPoststop]);
    assert_eq!((hooks[0].args.join(" "), hooks[0].timeout, hooks[1].timeout), ("h x".into(), Some(5), None));
}

#[test]
fn what_can_not_be_given_is_named_in_containerds_words() {
    let (folder, folders) = folder();
    let try_inject = |name: &str| {
        inject(&mut StartContainer::default(), &["v.com/c=b".into(), name.into()], &folders)
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        try_inject("v.com/c=none"),
        "CDI device injection failed: unresolvable CDI devices v.com/c=none"
    );
    assert!(try_inject("v.com/c=rdt").contains("intelRdt is not supported"));
    std::fs::write(folder.path().join("bad.json"), "{").unwrap();
    let error = try_inject("w.com/c=x");
    assert!(error.contains("unresolvable CDI devices w.com/c=x (bad files: ") && error.contains("bad.json"));
    // A bad file is no reason to keep others' devices back.
    let names = ["v.com/c=b".to_owned()];
    assert!(inject(&mut StartContainer::default(), &names, &folders).is_ok());
    assert_eq!(errors(&folders).len(), 1);
    assert!(errors(&[Path::new("/nowhere/at/all").to_owned()]).is_empty());
}
