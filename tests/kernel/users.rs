//! Who a container runs as, by the image's own account files, wherever in its layers they are.

use anyhow::{Context, Result};
use gantry_proto::cri;
use gantry_tests::image::Layer;
use gantry_tests::node::Node;
use gantry_tests::pod::{self, Pod};
use gantry_tests::registry::Registry;

use crate::images::{facts, web_image};

/// What the workload says of itself.
fn who(
    node: &Node,
    image: &str,
    change: impl FnOnce(&mut cri::LinuxContainerSecurityContext),
) -> Result<(String, String, String)> {
    let pod = Pod::run(node, "who")?;
    let mut config = pod::container_config("who", image, &["/workload", "id"]);
    pod::with_security(&mut config, change);
    let id = pod.start(&config)?;
    let status = pod::await_exit(node, &id)?;
    let log = pod.log("who")?;
    assert_eq!(status.exit_code, 0, "{log}");
    let facts = facts(&log);
    let linux = status.user.and_then(|user| user.linux).context("no user in the status")?;
    let first = |key: &str| facts[key].split(' ').next().unwrap_or_default().to_owned();
    assert_eq!(first("Uid"), linux.uid.to_string());
    pod.remove()?;
    Ok((first("Uid"), first("Gid"), facts["Groups"].replace(' ', ",")))
}

fn triple(uid: &str, gid: &str, groups: &str) -> (String, String, String) {
    (uid.to_owned(), gid.to_owned(), groups.to_owned())
}

#[test]
fn image_users_in_every_form_and_accounts_behind_links() -> Result<()> {
    gantry_tests::place::require_own_namespaces()?;
    let (registry, node) = (Registry::start()?, Node::start()?);
    let before = node.snapshot()?;
    let passwd = "root:x:0:0::/:/bin/sh\nlinked:x:4001:4002::/:/bin/sh\n";
    let below = Layer::default().file("usr/lib/accounts/passwd", 0o644, passwd).file(
        "usr/lib/accounts/group",
        0o644,
        "root:x:0:\nmore:x:4003:linked\n",
    );
    let above = Layer::default()
        .symlink("etc/passwd", "../usr/lib/accounts/passwd")
        .symlink("etc/group", "/usr/lib/accounts/group");
    for (tag, user, linked, want) in [
        ("name", "web", false, triple("1000", "1000", "1000,1234")),
        ("uid", "1000", false, triple("1000", "1000", "1000,1234")),
        ("pair", "1000:7", false, triple("1000", "7", "7,1234")),
        ("group", "web:extra", false, triple("1000", "1234", "1234")),
        ("stranger", "77", false, triple("77", "0", "0")),
        ("linked", "linked", true, triple("4001", "4002", "4002,4003")),
    ] {
        let mut image = web_image()?;
        image.user = user.to_owned();
        if linked {
            image.layers.extend([below.clone(), above.clone()]);
        }
        let name = registry.push("demo/users", tag, &image.build()?)?;
        node.pull(&name).context("PullImage")?;
        assert_eq!(who(&node, &name, |_| {})?, want, "{user}");
    }
    let name = format!("{}/demo/users:name", registry.host());
    let strict = who(&node, &name, |context| {
        context.supplemental_groups = vec![55];
        context.supplemental_groups_policy = cri::SupplementalGroupsPolicy::Strict.into();
    })?;
    assert_eq!(strict, triple("1000", "1000", "55,1000"));
    let merged = who(&node, &name, |context| context.supplemental_groups = vec![55])?;
    assert_eq!(merged, triple("1000", "1000", "55,1000,1234"));
    let named = who(&node, &name, |context| context.run_as_username = "root".to_owned())?;
    assert_eq!((named.0.as_str(), named.1.as_str()), ("0", "0"));
    for image in node.cri().list_images(cri::ListImagesRequest::default())?.images {
        let image = Some(cri::ImageSpec { image: image.id, ..Default::default() });
        node.cri().remove_image(cri::RemoveImageRequest { image })?;
    }
    node.assert_clean(&before)
}

#[test]
fn a_user_that_the_image_lacks_is_refused_by_name() -> Result<()> {
    gantry_tests::place::require_own_namespaces()?;
    let (registry, node) = (Registry::start()?, Node::start()?);
    let mut image = web_image()?;
    image.user = "ghost".to_owned();
    let name = registry.push("demo/ghost", "v1", &image.build()?)?;
    node.pull(&name).context("PullImage")?;
    let before = node.snapshot()?;
    let pod = Pod::run(&node, "ghost")?;
    let error = pod.create(&pod::container_config("ghost", &name, &["/workload", "id"]));
    assert!(format!("{:#}", error.expect_err("nobody is ghost")).contains("ghost"));
    pod.remove()?;
    node.assert_clean(&before)
}
