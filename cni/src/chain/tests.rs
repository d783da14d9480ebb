//! What the chain refuses before it has any effect. What it does to links is tested in `tests/netlink.rs`.

use super::*;

fn dirs(root: &Path) -> Dirs {
    Dirs {
        data_dir: root.join("networks"),
        cache_dir: root.join("results"),
        bin_dir: PathBuf::from("/opt/cni/bin"),
    }
}

fn attachment<'a>(netns: &'a Path, container_id: &'a str, ifname: &'a str) -> Attachment<'a> {
    Attachment { container_id, netns, ifname, args: Vec::new() }
}

fn refusal(list: &Conflist, attachment: &Attachment<'_>) -> String {
    let root = tempfile::tempdir().unwrap();
    let error =
        add(list, attachment, &dirs(root.path()), &mut |plugin, _, _| panic!("{plugin} ran")).unwrap_err();
    assert_eq!(root.path().read_dir().unwrap().count(), 0, "a refusal has no effect");
    explain(&error)
}

#[test]
fn an_unknown_plugin_is_refused_with_type_file_and_what_is_there() {
    let text =
        r#"{"cniVersion": "1.0.0", "name": "a", "plugins": [{"type": "bridge"}, {"type": "portmap"}]}"#;
    let list = Conflist::parse(text, "/etc/cni/net.d/10-a.conflist").unwrap();
    let error = refusal(&list, &attachment(Path::new("/x"), "c1", "eth0"));
    for expected in
        ["\"portmap\"", "/etc/cni/net.d/10-a.conflist", "bridge and loopback", "/opt/cni/bin/portmap"]
    {
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_wrong_configuration_is_refused_with_its_file() {
    let text = r#"{"cniVersion": "1.0.0", "name": "a", "plugins": [{"type": "bridge", "ipMasq": true}]}"#;
    let list = Conflist::parse(text, "/etc/cni/net.d/10-a.conflist").unwrap();
    let error = refusal(&list, &attachment(Path::new("/x"), "c1", "eth0"));
    assert!(error.contains("10-a.conflist") && error.contains("ipMasq is not supported yet"), "{error}");
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
fn a_wish_for_an_address_is_refused() {
    let mut attachment = attachment(Path::new("/x"), "c1", "eth0");
    attachment.args.push(("IP".into(), "10.87.0.9".into()));
    let error = refusal(&Conflist::default_network(), &attachment);
    assert!(error.contains("argument IP \"10.87.0.9\""), "{error}");
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
    let text = explain(&error);
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
