//! AppArmor as the container's processes meet it, with Debian's parser and the kernel of the small VM: the default profile
//! compiles, is loaded and holds. Which container gets which profile is tested in shim/src/apparmor.rs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use gantry_proto::cri;
use gantry_proto::cri::security_profile::ProfileType;
use gantry_tests::not_run::not_run;
use gantry_tests::place;
use gantry_tests::pod::{self, Pod};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::images::{Ready, ready};

/// Where the small VM has the parser and what profiles include, out of the way of those who want a machine without.
const APART: &str = "/gantry/apparmor";
/// Where they are looked for.
const PLACES: [&str; 3] = ["usr/sbin/apparmor_parser", "etc/apparmor.d", "usr/share/apparmor-features"];
const SECURITY: &str = "/sys/kernel/security";
const DEFAULT: &str = "cri-containerd.apparmor.d";

/// Of the test's own: it writes nothing below /tmp.
const OWN: &str = "abi <abi/3.0>,\nprofile gantry-test-no-tmp flags=(attach_disconnected,mediate_deleted) {\n  file,\n  capability,\n  deny /tmp/** w,\n}\n";

/// A machine whose containers are confined.
struct Confined;

impl Confined {
    /// None on a machine without the parser.
    fn begin() -> Result<Option<Self>> {
        place::require_own_namespaces()?;
        if !Path::new(APART).exists() {
            not_run("there is no AppArmor: the small VM has it");
            return Ok(None);
        }
        mount("none", SECURITY, "securityfs", MountFlags::empty(), None).context("mount securityfs")?;
        let this = Self;
        fs::create_dir_all("/usr/share")?;
        for place in PLACES {
            let to = Path::new("/").join(place);
            symlink(Path::new(APART).join(place), &to).with_context(|| format!("link {}", to.display()))?;
        }
        Ok(Some(this))
    }

    fn load(text: &str) -> Result<()> {
        let file = tempfile::NamedTempFile::new()?;
        fs::write(file.path(), text)?;
        let output = Command::new("/usr/sbin/apparmor_parser").arg("-Kr").arg(file.path()).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }
}

impl Drop for Confined {
    fn drop(&mut self) {
        for name in [DEFAULT, "gantry-test-no-tmp"] {
            let _ = fs::write(Path::new(SECURITY).join("apparmor/.remove"), name);
        }
        for place in PLACES {
            let _ = fs::remove_file(Path::new("/").join(place));
        }
        let _ = unmount(SECURITY, UnmountFlags::empty());
    }
}

fn profile(kind: ProfileType, name: &str) -> cri::SecurityProfile {
    cri::SecurityProfile { profile_type: kind.into(), localhost_ref: name.to_owned() }
}

/// Which profile it has, whether it may mount with the capability to, and whether it may write to /tmp.
const LOOK: &str = "echo profile $(cat /proc/self/attr/current); mkdir -p /m; mount -t tmpfs none /m && echo mounted; \
                    touch /tmp/x && echo written; echo end";

fn config(
    ready: &Ready,
    name: &str,
    script: &str,
    apparmor: Option<cri::SecurityProfile>,
) -> cri::ContainerConfig {
    let mut config = pod::container_config(name, &ready.image, &["/bin/sh", "-c", script]);
    pod::with_security(&mut config, |security| {
        security.apparmor = apparmor;
        let add_capabilities = vec!["SYS_ADMIN".to_owned()];
        security.capabilities = Some(cri::Capability { add_capabilities, ..Default::default() });
    });
    config
}

fn look(ready: &Ready, pod: &Pod, name: &str, apparmor: Option<cri::SecurityProfile>) -> Result<String> {
    let id = pod.start(&config(ready, name, LOOK, apparmor))?;
    pod::await_exit(&ready.node, &id)?;
    pod.log(name)
}

#[test]
fn containers_are_confined_by_the_kernel_as_their_profiles_say_only_in_the_vm() -> Result<()> {
    let Some(_confined) = Confined::begin()? else { return Ok(()) };
    let mut ready = ready()?;
    let runc = place::bin_dir()?.join("runc");
    ready.node.set_flags(&[format!("--handlers=runc:type=oci,path={}", runc.display())]);
    ready.node.restart()?;
    let before = ready.node.snapshot()?;
    Confined::load(OWN)?;
    let named = || Some(profile(ProfileType::Localhost, "localhost/gantry-test-no-tmp"));
    for handler in ["", "runc"] {
        let pod = Pod::run_handler(&ready.node, pod::sandbox_config(&ready.node, "confined"), handler)?;
        let log = look(&ready, &pod, "unset", None)?;
        let line = format!("profile {DEFAULT} (enforce)");
        ensure!(log.contains(&line) && log.contains("written") && log.contains("end"), "{handler:?}: {log}");
        ensure!(!log.contains("mounted"), "{handler:?}: {log}");
        let log = look(&ready, &pod, "default", Some(profile(ProfileType::RuntimeDefault, "")))?;
        ensure!(log.contains(&line) && !log.contains("mounted"), "{handler:?}: {log}");
        let log = look(&ready, &pod, "unconfined", Some(profile(ProfileType::Unconfined, "")))?;
        ensure!(log.contains("profile unconfined") && log.contains("mounted"), "{handler:?}: {log}");
        let log = look(&ready, &pod, "named", named())?;
        ensure!(
            log.contains("profile gantry-test-no-tmp (enforce)") && log.contains("end"),
            "{handler:?}: {log}"
        );
        ensure!(!log.contains("written"), "{handler:?}: {log}");
        pod.remove()?;
    }
    ready.node.assert_clean(&before)
}

/// Signals of the runtime and what exec starts are the profile's, too.
#[test]
fn a_confined_container_is_entered_and_stopped_and_a_missing_profile_refused_only_in_the_vm() -> Result<()> {
    let Some(_confined) = Confined::begin()? else { return Ok(()) };
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "confined")?;
    let wait = "trap 'echo asked; exit 3' TERM; while :; do sleep 0.1; done";
    let id = pod.start(&config(&ready, "main", wait, None))?;
    let cmd = ["cat", "/proc/self/attr/current"].map(str::to_owned).into();
    let request = cri::ExecSyncRequest { container_id: id.clone(), cmd, timeout: 60 };
    let said = ready.node.cri().exec_sync(request)?;
    let profile_of_exec = String::from_utf8_lossy(&said.stdout).into_owned();
    ensure!(profile_of_exec.starts_with(DEFAULT), "{profile_of_exec}");
    ready.node.cri().stop_container(cri::StopContainerRequest { container_id: id.clone(), timeout: 60 })?;
    let status = pod::container_status(&ready.node, &id)?;
    ensure!(status.exit_code == 3 && pod.log("main")?.contains("asked"), "{status:?}");
    let missing = Some(profile(ProfileType::Localhost, "gantry-test-none"));
    let error =
        pod.create(&config(&ready, "gone", "true", missing)).expect_err("created without its profile");
    let words = "failed to generate apparmor spec opts: apparmor profile not found gantry-test-none";
    ensure!(error.message().contains(words), "{error:?}");
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}
