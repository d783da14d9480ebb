//! Overlays of layers: how many fit, and which options every one has. Owns the mount call; never decides which layers or
//! where. Called by `init` for containers and their image mounts, and by `container::merged` to look into an image.

use std::ffi::CString;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags};

use super::{StepContext, StepError, refuse};

/// Set in every mount: the kernel's defaults differ by distribution (runtime-traps 1.4).
pub const OPTIONS: [(&str, &str); 4] =
    [("index", "off"), ("redirect_dir", "nofollow"), ("metacopy", "off"), ("xino", "off")];

/// Data of mount(2) is one page with a NUL at its end.
const PAGE: usize = 4095;

/// As many lower layers as overlayfs stacks (`OVL_MAX_STACK`).
const MOST: usize = 500;

/// Mounts `lower`, the uppermost first and best named relative to the working folder, on `target`. An option without a
/// value is a flag.
///
/// # Errors
/// When the kernel refuses, or has no way to be told of so many layers.
pub fn mount(
    lower: &[String],
    options: &[(&str, &str)],
    flags: MountFlags,
    target: &str,
) -> Result<(), StepError> {
    let count = lower.len();
    let what = || format!("mount {count} layers on {target}");
    if count > MOST {
        return refuse(libc::E2BIG, format!("{}: overlayfs stacks {MOST} at most", what()));
    }
    let data = data(lower, options);
    if data.len() > PAGE {
        let context = rustix::mount::fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).step(what)?;
        return match add_layers(&context, lower) {
            // What a kernel says that does not know `lowerdir+`.
            Err(Errno::INVAL) => {
                let most = "more than fit into a page of mount options, and longer lists need Linux 6.8";
                refuse(libc::E2BIG, format!("{}: {most}", what()))
            }
            added => added.and_then(|()| finish(&context, options, flags, target)).step(what),
        };
    }
    let data = CString::new(data).step(|| "a mount option holds a NUL".into())?;
    rustix::mount::mount("overlay", target, "overlay", flags, data.as_c_str()).step(what)
}

/// As mount(2) wants them. A security context holds commas, which part options: it is quoted.
fn data(lower: &[String], options: &[(&str, &str)]) -> String {
    let mut data = format!("lowerdir={}", lower.join(":"));
    for (key, value) in options {
        data += &match (*key, *value) {
            (key, "") => format!(",{key}"),
            ("context", value) => format!(",context=\"{value}\""),
            (key, value) => format!(",{key}={value}"),
        };
    }
    data
}

/// A call for each layer (Linux 6.8).
fn add_layers(context: &OwnedFd, lower: &[String]) -> Result<(), Errno> {
    lower
        .iter()
        .try_for_each(|layer| rustix::mount::fsconfig_set_string(context, "lowerdir+", layer.as_str()))
}

fn finish(context: &OwnedFd, options: &[(&str, &str)], flags: MountFlags, target: &str) -> Result<(), Errno> {
    for (key, value) in options {
        if value.is_empty() {
            rustix::mount::fsconfig_set_flag(context, *key)?;
        } else {
            rustix::mount::fsconfig_set_string(context, *key, *value)?;
        }
    }
    rustix::mount::fsconfig_create(context)?;
    let mount = rustix::mount::fsmount(context, FsMountFlags::FSMOUNT_CLOEXEC, attributes(flags))?;
    let place = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    rustix::mount::move_mount(&mount, "", rustix::fs::CWD, target, place)
}

fn attributes(flags: MountFlags) -> MountAttrFlags {
    let both = [
        (MountFlags::RDONLY, MountAttrFlags::MOUNT_ATTR_RDONLY),
        (MountFlags::NODEV, MountAttrFlags::MOUNT_ATTR_NODEV),
        (MountFlags::NOSUID, MountAttrFlags::MOUNT_ATTR_NOSUID),
        (MountFlags::NOEXEC, MountAttrFlags::MOUNT_ATTR_NOEXEC),
    ];
    both.iter().filter(|(flag, _)| flags.contains(*flag)).map(|(_, attribute)| *attribute).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_name_every_layer_once_and_pin_the_kernels_defaults() {
        let mut options = vec![("upperdir", "/c/upper"), ("workdir", "/c/work")];
        options.extend(OPTIONS);
        options.extend([("volatile", ""), ("context", "u:r:t:s0:c1,c2")]);
        assert_eq!(
            data(&["b".into(), "a".into()], &options),
            "lowerdir=b:a,upperdir=/c/upper,workdir=/c/work,\
             index=off,redirect_dir=nofollow,metacopy=off,xino=off,volatile,context=\"u:r:t:s0:c1,c2\""
        );
    }

    #[test]
    fn more_layers_than_the_kernel_stacks_are_no_question_of_its_version() {
        let layers: Vec<String> = (0..=MOST).map(|index| format!("{index:064}")).collect();
        let error = mount(&layers, &[], MountFlags::empty(), "/nonexistent").unwrap_err();
        assert_eq!(error.what, "mount 501 layers on /nonexistent: overlayfs stacks 500 at most");
    }
}
