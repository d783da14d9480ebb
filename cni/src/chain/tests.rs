//! What the chain refuses before it has any effect. What it does to links is tested in `tests/netlink.rs`.

use gantry_base::error::chain;

use super::*;

fn dirs(root: &Path) -> Dirs {
    Dirs {
        data_dir: root.join("networks"),
        cache_dir: root.join("results"),
        bin_dir: PathBuf::from("/nonexistent/cni/bin"),
        prefer_external: false,
    }
}

fn attachment<'a>(netns: &'a Path, container_id: &'a str, ifname: &'a str) -> Attachment<'a> {
    Attachment { container_id, netns, ifname, args: Vec::new(), capabilities: BTreeMap::new() }
}

fn refusal(list: &Conflist, attachment: &Attachment<'_>) -> String {
    let root = tempfile::tempdir().unwrap();
    let error =
        add(list, attachment, &dirs(root.path()), &mut |plugin, _, _| panic!("{plugin} ran")).unwrap_err();
    assert_eq!(root.path().read_dir().unwrap().count(), 0, "a refusal has no effect");
    chain(&error)
}

#[test]
fn a_program_that_is_not_there_is_refused_with_type_file_and_folder() {
    let text = r#"{"cniVersion": "1.0.0", "name": "a", "plugins": [{"type": "bridge"}, {"type": "tuning"}]}"#;
    let list = Conflist::parse(text, "/etc/cni/net.d/10-a.conflist").unwrap();
    let error = refusal(&list, &attachment(Path::new("/x"), "c1", "eth0"));
    for expected in ["\"tuning\"", "/etc/cni/net.d/10-a.conflist", "/nonexistent/cni/bin"] {
        assert!(error.contains(expected), "{error}");
    }
    let text =
        r#"{"cniVersion": "1.0.0", "name": "a", "plugins": [{"type": "bridge", "ipam": {"type": "dhcp"}}]}"#;
    let error = refusal(&Conflist::parse(text, "x").unwrap(), &attachment(Path::new("/x"), "c1", "eth0"));
    assert!(error.contains("there is no program \"dhcp\""), "{error}");
}

#[test]
fn programs_are_preferred_where_the_operator_says_so() {
    let root = tempfile::tempdir().unwrap();
    let list = Conflist::default_network();
    validate(&list, &dirs(root.path())).unwrap();
    let dirs = Dirs { prefer_external: true, ..dirs(root.path()) };
    let error = chain(&validate(&list, &dirs).unwrap_err());
    assert!(error.contains("there is no program \"bridge\" in /nonexistent/cni/bin"), "{error}");
}

#[test]
fn runtime_trap_7_2_del_needs_neither_program_nor_namespace() {
    let root = tempfile::tempdir().unwrap();
    let text = r#"{"cniVersion": "1.0.0", "name": "a", "plugins": [{"type": "gone"}]}"#;
    let list = Conflist::parse(text, "x").unwrap();
    let netns = root.path().join("gone");
    let attachment = attachment(&netns, "c1", "eth0");
    cache::write(&root.path().join("results"), &list, &attachment, &CniResult::default()).unwrap();
    del(&list, &attachment, &dirs(root.path())).unwrap();
    assert_eq!(root.path().join("results").read_dir().unwrap().count(), 0);
}

#[test]
fn a_wrong_configuration_is_refused_with_its_file() {
    let text = r#"{"cniVersion": "1.0.0", "name": "a", "plugins": [{"type": "bridge", "vlan": 7}]}"#;
    let list = Conflist::parse(text, "/etc/cni/net.d/10-a.conflist").unwrap();
    let error = refusal(&list, &attachment(Path::new("/x"), "c1", "eth0"));
    assert!(error.contains("10-a.conflist") && error.contains("vlan is not supported"), "{error}");
}

#[test]
fn check_needs_a_version_and_an_add() {
    let root = tempfile::tempdir().unwrap();
    let netns = Path::new("/x");
    let list = |version: &str, more: &str| {
        let text =
            format!(r#"{{"cniVersion": "{version}", "name": "a", "plugins": [{{"type": "gone"}}]{more}}}"#);
        Conflist::parse(&text, "x").unwrap()
    };
    let check = |list: &Conflist| check(list, &attachment(netns, "c1", "eth0"), &dirs(root.path()));
    assert!(matches!(check(&list("0.3.1", "")), Err(Error::CheckVersion { .. })));
    assert!(matches!(check(&list("1.0.0", "")), Err(Error::NotAdded { .. })));
    check(&list("1.0.0", r#", "disableCheck": true"#)).unwrap();
    check(&list("1.0.0", r#", "disableCheck": "TRUE""#)).unwrap();
}

#[test]
fn a_full_range_is_told_apart_from_other_trouble() {
    let root = tempfile::tempdir().unwrap();
    let list = |version: &str| {
        let text = format!(
            r#"{{"cniVersion": "{version}", "name": "a", "plugins": [{{"type": "bridge", "ipam": {{"type": "host-local",
            "subnet": "10.0.0.0/24", "rangeStart": "10.0.0.9", "rangeEnd": "10.0.0.9"}}}}]}}"#
        );
        Conflist::parse(&text, "x").unwrap()
    };
    status(&list("1.1.0"), &dirs(root.path())).unwrap();
    std::fs::create_dir_all(root.path().join("networks/a")).unwrap();
    std::fs::write(root.path().join("networks/a/10.0.0.9"), "c1\r\neth0").unwrap();
    assert!(status(&list("1.1.0"), &dirs(root.path())).unwrap_err().is_exhausted());
    status(&list("1.0.0"), &dirs(root.path())).unwrap();
}

/// A folder with attachments of two runtimes in the cache and leases of more.
#[test]
fn runtime_trap_7_1_gc_detaches_our_gone_sandboxes_and_leaves_others_alone() {
    let root = tempfile::tempdir().unwrap();
    let dirs = dirs(root.path());
    let text = r#"{"cniVersion": "1.1.0", "name": "a", "plugins": [
        {"type": "host-local", "ipam": {"type": "host-local", "subnet": "10.0.0.0/24"}}]}"#;
    let list = Conflist::parse(text, "x").unwrap();
    let leases = root.path().join("networks/a");
    std::fs::create_dir_all(&leases).unwrap();
    for (id, address) in [("live", 2), ("gone", 3), ("foreign", 4), ("unknown", 5)] {
        std::fs::write(leases.join(format!("10.0.0.{address}")), format!("{id}\r\neth0")).unwrap();
        if id != "unknown" {
            let netns = PathBuf::from(format!("/run/netns/{id}"));
            cache::write(&dirs.cache_dir, &list, &attachment(&netns, id, "eth0"), &CniResult::default())
                .unwrap();
        }
    }
    let valid = [ValidAttachment { container_id: "live".into(), ifname: "eth0".into() }];
    let left = || ["2", "3", "4", "5"].map(|last| leases.join(format!("10.0.0.{last}")).exists());
    let disabled = Conflist::parse(&text.replace("\"name\"", "\"disableGC\": true, \"name\""), "x").unwrap();
    gc(&disabled, &valid, &dirs, &|_| true).unwrap();
    assert_eq!(left(), [true; 4]);
    gc(&list, &valid, &dirs, &|cached| cached.container_id != "foreign").unwrap();
    assert_eq!(left(), [true, false, true, false]);
    let cached: Vec<String> =
        cached_attachments(&dirs).unwrap().into_iter().map(|cached| cached.container_id).collect();
    assert_eq!(cached, ["foreign", "live"]);
}

#[test]
fn names_that_would_lead_elsewhere_are_refused() {
    let list = Conflist::default_network();
    for (id, ifname) in [
        ("../x", "eth0"),
        ("", "eth0"),
        ("-c", "eth0"),
        ("c1", "a/b"),
        ("c1", ".."),
        ("c1", "sixteen-bytes-xx"),
        ("c1", ""),
    ] {
        let error = refusal(&list, &attachment(Path::new("/x"), id, ifname));
        assert!(error.contains("cannot be used"), "{id:?} {ifname:?}: {error}");
    }
}

#[test]
fn a_namespace_that_is_gone_fails_the_first_plugin_and_leaves_nothing() {
    let root = tempfile::tempdir().unwrap();
    let netns = root.path().join("netns");
    let error = add(
        &Conflist::default_network(),
        &attachment(&netns, "c1", "eth0"),
        &dirs(root.path()),
        &mut |_, _, _| {},
    )
    .unwrap_err();
    let text = chain(&error);
    assert!(text.contains("plugin loopback failed") && text.contains("No such file"), "{text}");
    assert_eq!(root.path().read_dir().unwrap().count(), 0);
}

#[test]
fn errors_of_undoing_are_told_beside_the_first() {
    let list = Conflist::default_network();
    let lost =
        || PluginError::from(PluginErrorKind::Cache(cache::Error::Encode(serde::ser::Error::custom("lost"))));
    let undo = vec![del_error(&list, &attachment(Path::new("/x"), "c1", "eth0"), "bridge", *lost().0)];
    let error = Error::Cache { network: "a".into(), container_id: "c1".into(), source: lost(), undo };
    let text = error.to_string();
    assert!(text.contains("and undoing failed: plugin bridge cannot remove eth0 of container c1"), "{text}");
}
