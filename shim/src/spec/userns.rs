//! The user namespace of a pod, and the owners of what is mounted into its containers, as a request asks
//! for them. Pure. Owns containerd's rules and words. Called by `spec::sandbox` and `spec::container`.

use gantry_proto::cri;
use gantry_proto::monitor::{IdMapping, StartContainer, UserMapping};

use super::Error;
use gantry_monitor::user_mapping;

/// The maps of a user namespace; None for the node's.
///
/// # Errors
/// What containerd refuses, and maps that the kernel would.
pub(crate) fn parse(options: Option<&cri::UserNamespace>) -> Result<Option<UserMapping>, Error> {
    let Some(options) = options else { return Ok(None) };
    let wrong = |what: String| Err(Error::Users(what));
    let mapping = lines(&options.uids, &options.gids)?;
    match cri::NamespaceMode::try_from(options.mode) {
        Ok(cri::NamespaceMode::Node) if mapping == UserMapping::default() => Ok(None),
        Ok(cri::NamespaceMode::Node) => wrong(format!(
            "can't use user namespace mode \"NODE\" with mappings. Got {} UID mappings and {} GID mappings",
            options.uids.len(),
            options.gids.len()
        )),
        Ok(cri::NamespaceMode::Pod) if mapping.uids.is_none() || mapping.gids.is_none() => {
            wrong("can't use user namespace mode \"POD\" without UID and GID mappings".to_owned())
        }
        Ok(cri::NamespaceMode::Pod) if user_mapping::owner(&mapping, 0, 0).is_none() => {
            wrong("user 0 and group 0 of the pod must be mapped".to_owned())
        }
        Ok(cri::NamespaceMode::Pod) => Ok(Some(mapping)),
        Ok(mode) => wrong(format!("unsupported user namespace mode: {:?}", mode.as_str_name())),
        Err(_) => wrong(format!("unsupported user namespace mode: {:?}", options.mode.to_string())),
    }
}

fn lines(uids: &[cri::IdMapping], gids: &[cri::IdMapping]) -> Result<UserMapping, Error> {
    let named = |name: &'static str| move |why: String| Error::Users(format!("{name} mapping: {why}"));
    Ok(UserMapping { uids: line(uids).map_err(named("UID"))?, gids: line(gids).map_err(named("GID"))? })
}

fn line(of: &[cri::IdMapping]) -> Result<Option<IdMapping>, String> {
    let line = match of {
        [] => return Ok(None),
        [line] => line,
        lines => return Err(format!("only one mapping line supported, got {} mapping lines", lines.len())),
    };
    let cri::IdMapping { host_id, container_id, length } = *line;
    if length < 1 {
        return Err(format!("invalid mapping length: {length}"));
    }
    if host_id.checked_add(length).is_none() || container_id.checked_add(length).is_none() {
        return Err(format!("{length} ids from {container_id} on to {host_id} do not fit into 32 bits"));
    }
    Ok(Some(IdMapping { container_id, host_id, length }))
}

/// Whose files a mount's appear as; None for those on the disk.
///
/// # Errors
/// Maps of one kind without the other, or that can't be.
pub(crate) fn of_mount(mount: &cri::Mount, pod: Option<&UserMapping>) -> Result<Option<UserMapping>, Error> {
    let mapping = lines(&mount.uid_mappings, &mount.gid_mappings)?;
    let invalid = |expected| {
        let value = mount.container_path.clone();
        Err(Error::Invalid { field: "mounts.uidMappings", value, expected })
    };
    match (mapping.uids, mapping.gids) {
        (None, None) => Ok(None),
        (Some(_), Some(_)) if mount.image.is_some() && pod != Some(&mapping) => {
            invalid("those of the pod, while an image is mounted")
        }
        (Some(_), Some(_)) => Ok(Some(mapping)),
        _ => invalid("set together with mounts.gidMappings"),
    }
}

/// A container has its sandbox's users.
///
/// # Errors
/// When it asks for others.
pub(crate) fn check_same(
    sandbox: Option<&UserMapping>,
    container: Option<&UserMapping>,
) -> Result<(), Error> {
    if sandbox == container {
        return Ok(());
    }
    let words = |of: Option<&UserMapping>| match of.map(|of| (of.uids, of.gids)) {
        Some((Some(uids), Some(gids))) => {
            format!("uids {:?} gids {:?}", user_mapping::line(&uids).trim(), user_mapping::line(&gids).trim())
        }
        _ => "the node's".to_owned(),
    };
    Err(Error::OtherUsers { sandbox: words(sandbox), container: words(container) })
}

/// Who runs has to be one of the pod's users.
///
/// # Errors
/// The number that is not.
pub(crate) fn check_user(user: &super::user::ProcessUser, pod: Option<&UserMapping>) -> Result<(), Error> {
    let Some(pod) = pod else { return Ok(()) };
    let unmapped = |kind: &str, id: u32| {
        Error::Users(format!("{kind} {id} of the container cannot be mapped to one of the node"))
    };
    if user_mapping::to_host(pod.uids.as_ref(), user.uid).is_none() {
        return Err(unmapped("user", user.uid));
    }
    for gid in std::iter::once(user.gid).chain(user.groups.iter().copied()) {
        if user_mapping::to_host(pod.gids.as_ref(), gid).is_none() {
            return Err(unmapped("group", gid));
        }
    }
    Ok(())
}

/// Hooks are told of a process, and with users of the pod's own there are two, one after the other.
///
/// # Errors
/// When there are any.
pub(crate) fn check_hooks(start: &StartContainer) -> Result<(), Error> {
    match &start.hooks {
        Some(_) if start.users.is_some() => Err(Error::Users(
            "hooks of CDI devices are not run in such a pod: use hostUsers: true".to_owned(),
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cri::NamespaceMode::{Container, Node, Pod, Target};

    fn options(mode: cri::NamespaceMode, uids: &[[u32; 3]], gids: &[[u32; 3]]) -> cri::UserNamespace {
        let lines = |of: &[[u32; 3]]| {
            let line = |[container_id, host_id, length]: &[u32; 3]| cri::IdMapping {
                container_id: *container_id,
                host_id: *host_id,
                length: *length,
            };
            of.iter().map(line).collect()
        };
        cri::UserNamespace { mode: mode.into(), uids: lines(uids), gids: lines(gids) }
    }

    #[test]
    fn a_pods_users_are_one_line_of_each_kind() {
        assert_eq!(parse(None), Ok(None));
        assert_eq!(parse(Some(&options(Node, &[], &[]))), Ok(None));
        let line = [0, 65_536, 65_536];
        let parsed = parse(Some(&options(Pod, &[line], &[line]))).unwrap().unwrap();
        assert_eq!(user_mapping::owner(&parsed, 0, 65_535), Some((65_536, 131_071)));
    }

    #[test]
    fn what_containerd_refuses_is_refused_in_its_words() {
        let line = [0, 65_536, 65_536];
        for (given, expected) in [
            (
                options(Pod, &[line, line], &[line]),
                "UID mapping: only one mapping line supported, got 2 mapping lines",
            ),
            (options(Pod, &[line], &[[0, 1, 0]]), "GID mapping: invalid mapping length: 0"),
            (
                options(Node, &[line], &[]),
                "can't use user namespace mode \"NODE\" with mappings. Got 1 UID mappings and 0 GID mappings",
            ),
            (options(Pod, &[], &[]), "can't use user namespace mode \"POD\" without UID and GID mappings"),
            (
                options(Pod, &[line], &[]),
                "can't use user namespace mode \"POD\" without UID and GID mappings",
            ),
            (options(Container, &[line], &[line]), "unsupported user namespace mode: \"CONTAINER\""),
            (options(Target, &[line], &[line]), "unsupported user namespace mode: \"TARGET\""),
            (options(Pod, &[[1, 65_536, 9]], &[line]), "user 0 and group 0 of the pod must be mapped"),
            (
                options(Pod, &[[0, u32::MAX, 9]], &[line]),
                "UID mapping: 9 ids from 0 on to 4294967295 do not fit into 32 bits",
            ),
        ] {
            assert_eq!(parse(Some(&given)), Err(Error::Users(expected.to_owned())), "{given:?}");
        }
    }

    #[test]
    fn hooks_are_refused_beside_users_of_the_pods_own() {
        let mut start = StartContainer { hooks: Some(Default::default()), ..StartContainer::default() };
        assert!(check_hooks(&start).is_ok());
        start.users = Some(UserMapping::default());
        assert!(check_hooks(&start).is_err());
        start.hooks = None;
        assert!(check_hooks(&start).is_ok());
    }

    #[test]
    fn a_mount_is_mapped_by_both_kinds_or_none_and_an_image_as_the_pod() {
        let all = options(Pod, &[[0, 65_536, 65_536]], &[[0, 65_536, 65_536]]);
        let pod = parse(Some(&all)).unwrap();
        let mut mount = cri::Mount::default();
        assert_eq!(of_mount(&mount, pod.as_ref()), Ok(None));
        mount.uid_mappings.clone_from(&all.uids);
        assert!(of_mount(&mount, pod.as_ref()).is_err());
        mount.gid_mappings = all.gids;
        assert_eq!(of_mount(&mount, None), Ok(pod));
        mount.image = Some(cri::ImageSpec::default());
        assert_eq!(of_mount(&mount, pod.as_ref()), Ok(pod));
        assert!(of_mount(&mount, None).is_err());
    }

    #[test]
    fn a_container_has_the_users_of_its_sandbox_and_runs_as_one_of_them() {
        let all = options(Pod, &[[0, 65_536, 10]], &[[0, 65_536, 10]]);
        let pod = parse(Some(&all)).unwrap();
        assert!(check_same(pod.as_ref(), pod.as_ref()).is_ok());
        assert!(check_same(pod.as_ref(), None).is_err() && check_same(None, pod.as_ref()).is_err());
        let user = |uid, gid, groups: &[u32]| crate::spec::user::ProcessUser {
            uid,
            gid,
            groups: groups.to_vec(),
            home: String::new(),
        };
        assert!(check_user(&user(9, 9, &[1]), pod.as_ref()).is_ok());
        assert!(check_user(&user(70_000, 0, &[]), None).is_ok());
        for wrong in [user(10, 0, &[]), user(0, 10, &[]), user(0, 0, &[10])] {
            assert!(check_user(&wrong, pod.as_ref()).is_err(), "{wrong:?}");
        }
    }
}
