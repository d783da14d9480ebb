//! Who the container runs as: groups, user, capabilities, no_new_privs, limits, OOM score. Called by
//! `init::container` after all mounts, because nothing privileged may follow.

#![expect(clippy::disallowed_methods, reason = "a file of the kernel's")]

use std::fs;

use gantry_proto::monitor::{Capabilities, Rlimit, StartContainer};
use rustix::process::{Gid, Resource, Uid};
use rustix::thread::{CapabilitiesSecureBits, CapabilitySet, CapabilitySets};

use super::{StepContext, StepError, refuse};
use gantry_sys as sys;

/// Writes oom_score_adj. Without CAP_SYS_RESOURCE it can't go below where it stands: then it stays,
/// which makes the container a likelier victim, never a less likely one.
pub(super) fn oom_score(score: i32) -> Result<(), StepError> {
    match fs::write("/proc/self/oom_score_adj", score.to_string()) {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Ok(()),
        result => result.step(|| format!("set oom_score_adj {score}")),
    }
}

/// Sets limits; a hard limit over this node's own is lowered to it when the node may not raise it.
pub(super) fn limits(limits: &[Rlimit]) -> Result<(), StepError> {
    for limit in limits {
        let Some(resource) = resource(limit.resource) else {
            return refuse(libc::EINVAL, format!("resource limit {} is unknown", limit.resource));
        };
        let set = |hard: u64| {
            let value = |n: u64| (n != u64::MAX).then_some(n);
            rustix::process::setrlimit(
                resource,
                rustix::process::Rlimit { current: value(limit.soft.min(hard)), maximum: value(hard) },
            )
        };
        match set(limit.hard) {
            Err(rustix::io::Errno::PERM) => {
                set(rustix::process::getrlimit(resource).maximum.unwrap_or(u64::MAX).min(limit.hard))
            }
            result => result,
        }
        .step(|| format!("set resource limit {}", limit.resource))?;
    }
    Ok(())
}

fn resource(number: u32) -> Option<Resource> {
    Some(match i32::try_from(number).ok()?.unsigned_abs() {
        libc::RLIMIT_CPU => Resource::Cpu,
        libc::RLIMIT_FSIZE => Resource::Fsize,
        libc::RLIMIT_DATA => Resource::Data,
        libc::RLIMIT_STACK => Resource::Stack,
        libc::RLIMIT_CORE => Resource::Core,
        libc::RLIMIT_RSS => Resource::Rss,
        libc::RLIMIT_NPROC => Resource::Nproc,
        libc::RLIMIT_NOFILE => Resource::Nofile,
        libc::RLIMIT_MEMLOCK => Resource::Memlock,
        libc::RLIMIT_AS => Resource::As,
        libc::RLIMIT_LOCKS => Resource::Locks,
        libc::RLIMIT_SIGPENDING => Resource::Sigpending,
        libc::RLIMIT_MSGQUEUE => Resource::Msgqueue,
        libc::RLIMIT_NICE => Resource::Nice,
        libc::RLIMIT_RTPRIO => Resource::Rtprio,
        libc::RLIMIT_RTTIME => Resource::Rttime,
        _ => return None,
    })
}

/// Installs the request's filter. Without no_new_privs this takes CAP_SYS_ADMIN, so it goes before the
/// change of user; with it, it goes last, so that the filter need not allow the set-up (runtime-traps
/// 2.12).
pub(super) fn filter(program: &[u8], flags: u32) -> Result<(), StepError> {
    if program.is_empty() {
        return Ok(());
    }
    sys::seccomp::install(program, flags).step(|| "install the seccomp filter".into())
}

/// Becomes the container's user with exactly the capabilities of the request. The bounding set goes
/// first, while CAP_SETPCAP is there; keep_caps carries the rest over the change of user.
pub(super) fn assume(start: &StartContainer) -> Result<(), StepError> {
    let caps = start.capabilities.unwrap_or_default();
    bound(caps.bounding)?;
    rustix::thread::set_capabilities_secure_bits(CapabilitiesSecureBits::empty())
        .step(|| "reset securebits".into())?;
    rustix::thread::set_keep_capabilities(true).step(|| "keep capabilities".into())?;
    let groups: Vec<Gid> = start.additional_gids.iter().map(|gid| Gid::from_raw(*gid)).collect();
    rustix::thread::set_thread_groups(&groups).step(|| format!("set groups {:?}", start.additional_gids))?;
    let (uid, gid) = (Uid::from_raw(start.uid), Gid::from_raw(start.gid));
    rustix::thread::set_thread_res_gid(gid, gid, gid).step(|| format!("become group {}", start.gid))?;
    rustix::thread::set_thread_res_uid(uid, uid, uid).step(|| format!("become user {}", start.uid))?;
    rustix::thread::set_keep_capabilities(false).step(|| "drop keep_caps".into())?;
    confine(&caps)?;
    if start.no_new_privs {
        rustix::thread::set_no_new_privs(true).step(|| "set no_new_privs".into())?;
    }
    Ok(())
}

fn bound(bounding: u64) -> Result<(), StepError> {
    for number in 0..64u32 {
        let bit = CapabilitySet::from_bits_retain(1 << number);
        // EINVAL: the kernel has no such capability, nor any above.
        let Ok(held) = rustix::thread::capability_is_in_bounding_set(bit) else { break };
        if held && bounding & (1 << number) == 0 {
            rustix::thread::remove_capability_from_bounding_set(bit)
                .step(|| format!("drop capability {number} from the bounding set"))?;
        }
    }
    Ok(())
}

fn confine(caps: &Capabilities) -> Result<(), StepError> {
    // What the node itself lacks can't be given: "privileged" means all that the node has.
    let held = rustix::thread::capabilities(None).step(|| "read capabilities".into())?.permitted.bits();
    let sets = CapabilitySets {
        effective: CapabilitySet::from_bits_retain(caps.effective & held),
        permitted: CapabilitySet::from_bits_retain(caps.permitted & held),
        inheritable: CapabilitySet::from_bits_retain(caps.inheritable & held),
    };
    rustix::thread::set_capabilities(None, sets).step(|| "set capabilities".into())?;
    rustix::thread::clear_ambient_capability_set().step(|| "clear ambient capabilities".into())?;
    for number in (0..64u32).filter(|number| caps.ambient & held & (1 << number) != 0) {
        rustix::thread::configure_capability_in_ambient_set(
            CapabilitySet::from_bits_retain(1 << number),
            true,
        )
        .step(|| format!("raise ambient capability {number}"))?;
    }
    Ok(())
}
