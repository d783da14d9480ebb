//! AppArmor on this node: whether it is there, which profiles the kernel has, and the default one, loaded by
//! `apparmor_parser` (a program of the node: the kernel takes compiled policy only). Owns the profile's text;
//! who gets which is `spec::apparmor`'s. Called by `container::create`, on a blocking thread.

#![expect(
    clippy::disallowed_methods,
    reason = "runs apparmor_parser, without which AppArmor takes no profile, on a file that is not kept"
)]

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::spec;
use crate::spec::apparmor::{self, DEFAULT, Profile, is_listed, refusal};

/// Where the kernel says what it has loaded.
const LIST: &str = "sys/kernel/security/apparmor/profiles";

/// The program that compiles and loads.
const PARSER: &str = "sbin/apparmor_parser";

/// A profile that could not be looked for or loaded.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request asks for what can't be had.
    #[error(transparent)]
    Spec(#[from] spec::Error),
    /// The list can't be read.
    #[error("read the list of AppArmor profiles {path}", path = path.display())]
    List {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The program can't be run, or its input not written.
    #[error("load apparmor profile {path}", path = path.display())]
    Load {
        /// The profile's file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The program says no.
    #[error("load apparmor profile {name}: parser error({said:?}): {status}")]
    Parser {
        /// The profile.
        name: &'static str,
        /// What it said.
        said: String,
        /// How it ended.
        status: std::process::ExitStatus,
    },
}

/// AppArmor as found below a root folder: `/`, but for tests.
#[derive(Debug)]
pub(crate) struct AppArmor {
    root: PathBuf,
    enabled: bool,
    /// The kernel has it, and no profile can be loaded: the default one is then none at all, as under containerd.
    lacks_parser: bool,
}

impl AppArmor {
    /// Looks once: a kernel does not change its mind. `wanted` is what the configuration says.
    #[must_use]
    pub(crate) fn find(root: &Path, wanted: bool) -> Self {
        let on = || fs::read(root.join("sys/module/apparmor/parameters/enabled"));
        let in_kernel = wanted
            && root.join("sys/kernel/security/apparmor").exists()
            // As containerd: within a container the profiles are another's.
            && std::env::var_os("container").is_none_or(|value| value.is_empty())
            && on().is_ok_and(|text| text.first() == Some(&b'Y'));
        let has_parser = root.join(PARSER).exists();
        let (enabled, lacks_parser) = (in_kernel && has_parser, in_kernel && !has_parser);
        Self { root: root.to_owned(), enabled, lacks_parser }
    }

    /// Says once what nobody would notice: pods that ask for the default profile run without one.
    pub(crate) fn warn_if_off(&self) {
        if self.lacks_parser {
            tracing::warn!(
                "the kernel has AppArmor and the node has no /{PARSER}: containers that ask for RuntimeDefault run \
                 unconfined; install the package apparmor, or set disable_apparmor"
            );
        }
    }

    /// The profile's name that a container gets, empty for none; loads the default one when it is not there.
    ///
    /// # Errors
    /// A profile that the kernel does not have.
    pub(crate) fn of(
        &self,
        security: &gantry_proto::cri::LinuxContainerSecurityContext,
        scratch: &Path,
    ) -> Result<String, Error> {
        match apparmor::profile(security, self.enabled)? {
            Profile::Unconfined => Ok(String::new()),
            Profile::Named(name) if self.has(&name)? => Ok(name),
            Profile::Named(name) => Err(not_found_error(&name).into()),
            Profile::Default => {
                if !self.has(DEFAULT)? {
                    self.load(scratch)?;
                }
                Ok(DEFAULT.to_owned())
            }
        }
    }

    fn has(&self, name: &str) -> Result<bool, Error> {
        let path = self.root.join(LIST);
        let list = fs::read_to_string(&path).map_err(|source| Error::List { path, source })?;
        Ok(is_listed(&list, name))
    }

    /// Two at once are harmless: the second replaces what the first has loaded by the same.
    fn load(&self, scratch: &Path) -> Result<(), Error> {
        let file = tempfile_in(scratch);
        let wrap = |source| Error::Load { path: file.clone(), source };
        fs::write(&file, self.text()).map_err(wrap)?;
        let ran = Command::new(self.root.join(PARSER)).arg("-Kr").arg(&file).output();
        // What it says counts, not whether the file could be taken away.
        let _ = fs::remove_file(&file);
        let ran = ran.map_err(wrap)?;
        if ran.status.success() {
            return Ok(());
        }
        let said = [ran.stdout, ran.stderr].concat();
        Err(Error::Parser {
            name: DEFAULT,
            said: String::from_utf8_lossy(&said).trim().chars().take(1000).collect(),
            status: ran.status,
        })
    }

    /// With what the node's own AppArmor folder offers.
    fn text(&self) -> String {
        let has = |name: &str| self.root.join("etc/apparmor.d").join(name).exists();
        let own = fs::read_to_string(self.root.join("proc/self/attr/current")).unwrap_or_default();
        // "NAME (MODE)"; unconfined is usual.
        let own = own.split([' ', '\n', '\0']).next().filter(|name| !name.is_empty()).unwrap_or("unconfined");
        let abi = if has("abi/3.0") { "abi <abi/3.0>,\n" } else { "" };
        let tunables =
            if has("tunables/global") { "#include <tunables/global>\n" } else { "@{PROC}=/proc/\n" };
        let base = if has("abstractions/base") { "  #include <abstractions/base>\n" } else { "" };
        format!(
            "{abi}{tunables}\nprofile {DEFAULT} flags=(attach_disconnected,mediate_deleted) {{\n{base}{}}}\n",
            rules(own)
        )
    }
}

fn not_found_error(name: &str) -> spec::Error {
    refusal(&format!("apparmor profile not found {name}"))
}

fn tempfile_in(scratch: &Path) -> PathBuf {
    let number =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_nanos();
    scratch.join(format!("{DEFAULT}.{number}"))
}

/// What a container may do at all, less what reaches the node through /proc and /sys. The same grants and
/// denials as containerd's default profile, so that images meet what they were made for.
fn rules(own: &str) -> String {
    let signals: String = ["unconfined", own, "runc", "crun", DEFAULT]
        .iter()
        .map(|peer| format!("  signal (receive) peer={peer},\n"))
        .collect();
    format!(
        "  network,\n  capability,\n  file,\n  umount,\n{signals}  signal (send) peer={DEFAULT},\n  \
         ptrace (trace,tracedby,read,readby) peer={DEFAULT},\n\n  deny mount,\n\n  # Below /proc only processes, \
         and of sysctls only those of shared memory.\n  deny @{{PROC}}/* w,\n  \
         deny @{{PROC}}/{{[^1-9/],[^1-9/][^0-9/],[^1-9s/][^0-9y/][^0-9s/],[^1-9/][^0-9/][^0-9/][^0-9/]*}}/** w,\n  \
         deny @{{PROC}}/sys/[^k]** w,\n  deny @{{PROC}}/sys/kernel/{{?,??,[^s][^h][^m]**}} w,\n  \
         deny @{{PROC}}/sysrq-trigger rwklx,\n  deny @{{PROC}}/kcore rwklx,\n\n  # Below /sys only cgroups.\n  \
         deny /sys/[^f]*/** wklx,\n  deny /sys/f[^s]*/** wklx,\n  deny /sys/fs/[^c]*/** wklx,\n  \
         deny /sys/fs/c[^g]*/** wklx,\n  deny /sys/fs/cg[^r]*/** wklx,\n  deny /sys/firmware/** rwklx,\n  \
         deny /sys/devices/virtual/powercap/** rwklx,\n  deny /sys/kernel/security/** rwklx,\n"
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use gantry_proto::cri;
    use gantry_proto::cri::security_profile::ProfileType;

    use super::*;

    /// A node whose parser keeps what it is given.
    fn node(list: &str, parser: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for folder in ["sys/kernel/security/apparmor", "sys/module/apparmor/parameters", "sbin", "scratch"] {
            fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        fs::write(root.path().join(LIST), list).unwrap();
        fs::write(root.path().join("sys/module/apparmor/parameters/enabled"), "Y\n").unwrap();
        let parser = format!("#!/bin/sh\nROOT={}\n{parser}\n", root.path().display());
        fs::write(root.path().join(PARSER), parser).unwrap();
        fs::set_permissions(root.path().join(PARSER), fs::Permissions::from_mode(0o755)).unwrap();
        root
    }

    fn of(root: &Path, kind: ProfileType, name: &str) -> Result<String, String> {
        let profile = cri::SecurityProfile { profile_type: kind.into(), localhost_ref: name.into() };
        let security = cri::LinuxContainerSecurityContext { apparmor: Some(profile), ..Default::default() };
        let apparmor = AppArmor::find(root, true);
        apparmor.of(&security, &root.join("scratch")).map_err(|error| gantry_base::error::chain(&error))
    }

    #[test]
    fn the_default_profile_is_loaded_once_and_by_the_nodes_parser() {
        let root = node("other (enforce)\n", "[ \"$1\" = -Kr ] && cp \"$2\" $ROOT/loaded");
        assert_eq!(of(root.path(), ProfileType::RuntimeDefault, ""), Ok(DEFAULT.to_owned()));
        let text = fs::read_to_string(root.path().join("loaded")).unwrap();
        assert!(text.starts_with("@{PROC}=/proc/\n\nprofile cri-containerd.apparmor.d flags="), "{text}");
        assert_eq!(text.matches('{').count(), text.matches('}').count(), "{text}");
        assert!(text.contains("  deny @{PROC}/sysrq-trigger rwklx,\n"), "{text}");
        assert_eq!(fs::read_dir(root.path().join("scratch")).unwrap().count(), 0);
        let loaded = node("cri-containerd.apparmor.d (enforce)\n", "exit 1");
        assert_eq!(of(loaded.path(), ProfileType::RuntimeDefault, ""), Ok(DEFAULT.to_owned()));
    }

    #[test]
    fn a_profile_that_is_not_there_and_a_parser_that_fails_are_named() {
        let root = node("mine (enforce)\n", "echo no such abi >&2; exit 3");
        assert_eq!(of(root.path(), ProfileType::Localhost, "localhost/mine"), Ok("mine".to_owned()));
        assert_eq!(
            of(root.path(), ProfileType::Localhost, "min"),
            Err("failed to generate apparmor spec opts: apparmor profile not found min".to_owned())
        );
        let error = of(root.path(), ProfileType::RuntimeDefault, "").unwrap_err();
        assert!(error.contains("parser error(\"no such abi\")"), "{error}");
    }

    #[test]
    fn a_node_without_the_parser_or_with_the_module_off_has_no_apparmor() {
        let root = node("mine (enforce)\n", "true");
        let found = AppArmor::find(root.path(), false);
        assert!(!found.enabled && !found.lacks_parser);
        fs::write(root.path().join("sys/module/apparmor/parameters/enabled"), "N\n").unwrap();
        assert!(of(root.path(), ProfileType::Localhost, "mine").unwrap_err().contains("is not supported"));
        fs::write(root.path().join("sys/module/apparmor/parameters/enabled"), "Y\n").unwrap();
        fs::remove_file(root.path().join(PARSER)).unwrap();
        let found = AppArmor::find(root.path(), true);
        assert!(!found.enabled && found.lacks_parser);
        assert!(!AppArmor::find(root.path(), false).lacks_parser);
        assert!(!AppArmor::find(tempfile::tempdir().unwrap().path(), true).enabled);
    }
}
