//! Images whose layers are not simple, seen from inside a container through the real overlay:
//! whiteouts, opaque folders, implied folders, a layer twice, an empty layer (runtime-traps §1).

use anyhow::{Context, Result};
use gantry_tests::image::Layer;
use gantry_tests::node::Node;
use gantry_tests::pod::{self, Pod};
use gantry_tests::registry::Registry;

use crate::images::web_image;

/// Runs a shell script in a container of an image with these layers on top of the web image's.
fn run_image(layers: Vec<Layer>, script: &str) -> Result<String> {
    let registry = Registry::start()?;
    let node = Node::start()?;
    let mut image = web_image()?;
    image.layers.extend(layers);
    let name = registry.push("demo/layers", "v1", &image.build()?)?;
    node.pull(&name).context("PullImage")?;
    let before = node.snapshot()?;
    let pod = Pod::run(&node, "layers")?;
    let started = pod.start(&pod::container_config("look", &name, &["/bin/sh", "-c", script]));
    if started.is_err() {
        pod.remove()?;
        node.assert_clean(&before)?;
    }
    let id = started?;
    let status = pod::await_exit(&node, &id)?;
    let log = pod.log("look")?;
    assert_eq!(status.exit_code, 0, "{log}");
    pod.remove()?;
    node.assert_clean(&before)?;
    Ok(log)
}

#[test]
fn rt_1_1_an_implied_folder_keeps_what_a_lower_layer_says_of_it() -> Result<()> {
    let layers = vec![Layer::default().file("tmp/note", 0o644, "x").file("root/note", 0o644, "y")];
    let log = run_image(layers, "stat -c %a /tmp /root /; cat /tmp/note /root/note")?;
    assert_eq!(log, "1777\n700\n755\nxy");
    Ok(())
}

#[test]
fn rt_1_2_equal_and_empty_layers_stand_once_or_not_at_all() -> Result<()> {
    let add = || Layer::default().file("srv/again", 0o644, "here");
    let remove = Layer::default().file("srv/.wh.again", 0o644, "");
    let layers = vec![add(), Layer::default(), remove, add(), Layer::default()];
    assert_eq!(run_image(layers, "cat /srv/again")?, "here");
    Ok(())
}

#[test]
fn rt_1_6_whiteouts_and_opaque_folders_hide_what_lies_below_and_nothing_else() -> Result<()> {
    let layers = vec![
        Layer::default()
            .file("etc/.wh.motd", 0o644, "")
            .dir("srv", 0o755)
            .file("srv/new", 0o644, "new")
            .file("srv/.wh..wh..opq", 0o644, ""),
    ];
    let log = run_image(layers, "ls /srv; test ! -e /etc/motd && test -e /etc/passwd && echo rest")?;
    assert_eq!(log, "new\nrest\n");
    Ok(())
}

#[test]
fn a_link_that_leads_nowhere_is_a_fine_mount_target() -> Result<()> {
    let link = "../run/systemd/resolve/stub-resolv.conf";
    let layers = vec![Layer::default().symlink("etc/resolv.conf", link)];
    assert_eq!(
        run_image(layers, "readlink /etc/resolv.conf; test -f /etc/resolv.conf")?,
        format!("{link}\n")
    );
    Ok(())
}

/// Debian 12's kernel knows no `lowerdir+`: names must be short enough for one page of options.
#[test]
fn rt_1_3_an_image_of_a_hundred_layers_runs() -> Result<()> {
    let layers = (0..100).map(|n| Layer::default().file(&format!("many/{n}"), 0o644, format!("{n}\n")));
    let log = run_image(layers.collect(), "ls /many | wc -l; cat /many/0 /many/99")?;
    assert_eq!(log, "100\n0\n99\n");
    Ok(())
}

#[test]
fn rt_1_3_more_layers_than_a_page_of_options_names_run_or_are_refused_with_the_remedy() -> Result<()> {
    let layers = (0..300).map(|n| Layer::default().file(&format!("many/{n}"), 0o644, format!("{n}\n")));
    let (major, minor) = kernel()?;
    match run_image(layers.collect(), "ls /many | wc -l; cat /many/0 /many/299") {
        Ok(log) => assert_eq!(log, "300\n0\n299\n"),
        Err(error) => {
            let told = format!("{error:#}");
            assert!((major, minor) < (6, 8), "{told}");
            assert!(told.contains(" layers on ") && told.contains("longer lists need Linux 6.8"), "{told}");
        }
    }
    Ok(())
}

fn kernel() -> Result<(u32, u32)> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let mut parts = release.split(['.', '-']).map(str::parse);
    Ok((parts.next().context("no version")??, parts.next().context("no minor version")??))
}

#[test]
fn rt_1_5_set_id_bits_links_and_harmless_xattrs_arrive() -> Result<()> {
    let capability = b"\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00";
    let layers = vec![
        Layer::default()
            .file("x/suid", 0o4755, "s")
            .with_owner(7, 8)
            .file("x/cap", 0o755, "c")
            .xattr("security.capability", capability)
            .xattr("trusted.overlay.opaque", b"y")
            .link("x/same", "x/cap"),
    ];
    let script = "stat -c '%a %u %g' /x/suid; stat -c %h /x/cap; cat /x/same; ls /srv/index.html";
    assert_eq!(run_image(layers, script)?, "4755 7 8\n2\nc/srv/index.html\n");
    Ok(())
}

#[test]
fn rt_1_7_a_hard_link_into_a_lower_layer_is_refused_with_its_remedy() -> Result<()> {
    let layers = vec![Layer::default().link("linked", "bin/busybox")];
    let error = run_image(layers, "true").expect_err("no layer of its own has the target");
    let text = format!("{error:#}");
    for words in ["linked", "bin/busybox", "rebuild the image"] {
        assert!(text.contains(words), "{words} in {text}");
    }
    Ok(())
}
