//! Mounts of a container: what reaches the node, what reaches the container, and what neither changes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use gantry_proto::cri;
use gantry_proto::cri::MountPropagation;
use gantry_tests::leakcheck;
use gantry_tests::pod::{self, Pod};
use gantry_tests::poll::poll;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};

use crate::images::{Ready, ready};

fn tmpfs(at: &Path) -> Result<()> {
    std::fs::create_dir_all(at)?;
    rustix::mount::mount("none", at, "tmpfs", MountFlags::empty(), None).context("mount a tmpfs")
}

/// A tmpfs on the node that passes mounts on.
fn mount_shared_tmpfs(ready: &Ready) -> Result<PathBuf> {
    let folder = ready.node.roots().path("shared");
    tmpfs(&folder)?;
    rustix::mount::mount_change(&folder, MountPropagationFlags::SHARED)?;
    Ok(folder)
}

fn let_go(folder: &Path) -> Result<()> {
    rustix::mount::unmount(folder, UnmountFlags::DETACH).with_context(|| folder.display().to_string())
}

fn config(
    ready: &Ready,
    name: &str,
    script: &str,
    source: &Path,
    change: impl FnOnce(&mut cri::Mount),
) -> cri::ContainerConfig {
    let mut config = pod::container_config(name, &ready.image, &["/bin/sh", "-c", script]);
    let mut mount = cri::Mount {
        container_path: "/vol".into(),
        host_path: source.to_string_lossy().into_owned(),
        ..cri::Mount::default()
    };
    change(&mut mount);
    config.mounts.push(mount);
    config
}

fn await_log(pod: &Pod, name: &str, text: &str) -> Result<()> {
    poll(&format!("{text:?} in the log"), Duration::from_secs(20), || match pod.log(name) {
        Ok(log) if log.contains(text) => Ok(()),
        other => Err(format!("{other:?}")),
    })
}

#[test]
fn a_bidirectional_mount_reaches_the_node_and_a_private_one_does_not() -> Result<()> {
    let ready = ready()?;
    let folder = mount_shared_tmpfs(&ready)?;
    let pod = Pod::run(&ready.node, "both")?;
    let script = "mkdir -p /vol/$NAME && mount -t tmpfs none /vol/$NAME && echo seen > /vol/$NAME/file && \
        echo mounted; /workload sleep 600";
    for (name, propagation) in [
        ("there", MountPropagation::PropagationBidirectional),
        ("here", MountPropagation::PropagationPrivate),
    ] {
        let mut config = config(&ready, name, script, &folder, |mount| mount.set_propagation(propagation));
        config.envs.push(cri::KeyValue { key: "NAME".into(), value: name.into() });
        pod::with_security(&mut config, |security| {
            let capabilities = security.capabilities.get_or_insert_default();
            capabilities.add_capabilities.push("SYS_ADMIN".into());
        });
        pod.start(&config)?;
        await_log(&pod, name, "mounted")?;
    }
    assert_eq!(std::fs::read_to_string(folder.join("there/file"))?, "seen\n");
    assert!(folder.join("here").is_dir() && !folder.join("here/file").exists());
    pod.remove()?;
    let_go(&folder.join("there"))?;
    let_go(&folder)?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn what_the_node_mounts_later_arrives_in_a_host_to_container_mount() -> Result<()> {
    let ready = ready()?;
    let folder = mount_shared_tmpfs(&ready)?;
    let pod = Pod::run(&ready.node, "later")?;
    let script = "echo waits; while [ ! -e /vol/late/file ]; do sleep 0.1; done; cat /vol/late/file; \
        mount -t tmpfs none /vol/late";
    let config = config(&ready, "later", script, &folder, |mount| {
        mount.set_propagation(MountPropagation::PropagationHostToContainer);
    });
    pod.start(&config)?;
    await_log(&pod, "later", "waits")?;
    let late = folder.join("late");
    tmpfs(&late)?;
    std::fs::write(late.join("file"), "from the node\n")?;
    await_log(&pod, "later", "from the node")?;
    pod.remove()?;
    let_go(&late)?;
    let_go(&folder)?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn a_source_that_cannot_carry_its_propagation_is_refused_in_containerds_words() -> Result<()> {
    let ready = ready()?;
    let folder = ready.node.roots().path("private");
    tmpfs(&folder)?;
    rustix::mount::mount_change(&folder, MountPropagationFlags::PRIVATE)?;
    let pod = Pod::run(&ready.node, "refused")?;
    for (propagation, words) in [
        (MountPropagation::PropagationBidirectional, "but it is not a shared mount"),
        (MountPropagation::PropagationHostToContainer, "but it is not a shared or slave mount"),
    ] {
        let config = config(&ready, "refused", "true", &folder, |mount| mount.set_propagation(propagation));
        let error = pod.create(&config).expect_err("a promise that can't be kept");
        assert!(error.message().contains(words), "{error:?}");
    }
    pod.remove()?;
    let_go(&folder)?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn recursive_read_only_holds_for_the_mounts_below_too() -> Result<()> {
    let ready = ready()?;
    let folder = ready.node.roots().path("tree");
    tmpfs(&folder)?;
    tmpfs(&folder.join("sub"))?;
    let pod = Pod::run(&ready.node, "tree")?;
    let script = "echo x > /vol/top; echo x > /vol/sub/$0; ls /vol/sub; echo end";
    for (name, recursive) in [("top", false), ("all", true)] {
        let mut config = config(&ready, name, script, &folder, |mount| {
            mount.readonly = true;
            mount.recursive_read_only = recursive;
        });
        config.command.push(name.to_owned());
        let id = pod.start(&config)?;
        let status = pod::await_exit(&ready.node, &id)?;
        assert_eq!(status.mounts[0].recursive_read_only, recursive);
        assert_eq!(folder.join("sub").join(name).exists(), !recursive, "{}", pod.log(name)?);
        assert!(!folder.join("top").exists());
    }
    let not_read_only = config(&ready, "odd", "true", &folder, |mount| mount.recursive_read_only = true);
    assert!(pod.create(&not_read_only).is_err());
    pod.remove()?;
    let_go(&folder.join("sub"))?;
    let_go(&folder)?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn a_device_can_be_used_as_far_as_permitted() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "device")?;
    let script = "(: < /dev/own) && echo reads; (: > /dev/own) && echo writes; echo end";
    for (permissions, reads, writes) in [("r", true, false), ("w", false, true), ("rwm", true, true)] {
        let mut config = pod::container_config(permissions, &ready.image, &["/bin/sh", "-c", script]);
        config.devices.push(cri::Device {
            container_path: "/dev/own".into(),
            host_path: "/dev/kmsg".into(),
            permissions: permissions.into(),
        });
        pod::with_security(&mut config, |security| {
            // The kernel asks for it beside the device's own permissions.
            let capabilities = security.capabilities.get_or_insert_default();
            capabilities.add_capabilities.push("SYSLOG".into());
        });
        let id = pod.start(&config)?;
        pod::await_exit(&ready.node, &id)?;
        let log = pod.log(permissions)?;
        assert_eq!((log.contains("reads"), log.contains("writes")), (reads, writes), "{permissions}: {log}");
    }
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

fn device(host: &str, container: &str) -> cri::Device {
    cri::Device { container_path: container.into(), host_path: host.into(), permissions: "rwm".into() }
}

#[test]
fn a_device_takes_no_other_ones_place_and_does_not_give_way_in_silence() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "places")?;
    let mut config =
        pod::container_config("same", &ready.image, &["/bin/sh", "-c", "stat -c %t:%T /dev/null"]);
    config.devices = vec![device("/dev/null", "/dev/null"), device("/dev/ptmx", "/dev/ptmx")];
    let id = pod.start(&config)?;
    assert_eq!(pod::await_exit(&ready.node, &id)?.exit_code, 0);
    assert_eq!(pod.log("same")?.trim(), "1:3");
    for path in ["/dev/null", "/dev/stdin", "/etc/motd"] {
        let name = path.replace('/', "-");
        let mut config = pod::container_config(&name, &ready.image, &["/workload", "exit", "0"]);
        config.devices.push(device("/dev/zero", path));
        let error = pod.start(&config).expect_err("something else is there");
        let error = format!("{error:#}");
        assert!(error.contains(&format!("/dev/zero as {path}: something else is there")), "{error}");
    }
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn a_privileged_container_has_the_nodes_devices_and_those_that_it_names() -> Result<()> {
    let ready = ready()?;
    let mut config = pod::sandbox_config(&ready.node, "named");
    let security = config.linux.get_or_insert_default().security_context.get_or_insert_default();
    security.privileged = true;
    let pod = Pod::run_config(&ready.node, config)?;
    let script = "stat -c %t:%T /dev/mine /dev/kmsg /dev/null";
    let mut config = pod::container_config("named", &ready.image, &["/bin/sh", "-c", script]);
    pod::with_security(&mut config, |security| security.privileged = true);
    config.devices.push(device("/dev/zero", "/dev/mine"));
    let id = pod.start(&config)?;
    let status = pod::await_exit(&ready.node, &id)?;
    let log = pod.log("named")?;
    assert_eq!((status.exit_code, log.as_str()), (0, "1:5\n1:b\n1:3\n"));
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn rt_6_the_nodes_mount_table_grows_by_the_pods_network_namespace_only() -> Result<()> {
    let ready = ready()?;
    let points = || -> Result<Vec<PathBuf>> {
        Ok(leakcheck::mounts()?.into_iter().map(|mount| mount.point).collect())
    };
    let before = points()?;
    let pod = Pod::run(&ready.node, "table")?;
    for name in ["one", "two"] {
        pod.start(&pod::container_config(name, &ready.image, &["/workload", "sleep", "60"]))?;
    }
    let added: Vec<PathBuf> = points()?.into_iter().filter(|point| !before.contains(point)).collect();
    let [netns] = &added[..] else { anyhow::bail!("{added:?}") };
    assert_eq!(netns.parent(), Some(ready.node.roots().path("netns").as_path()));
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}
