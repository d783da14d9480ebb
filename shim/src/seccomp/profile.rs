//! A seccomp profile as JSON: the OCI runtime specification's format, and that of Docker and
//! containers/common, which adds `archMap`, `includes` and `excludes`. Owns what a profile means for one
//! container: a list of rules for each ABI. Pure but for
//! the release of the running kernel. Called by `seccomp`.

mod oci;

use std::collections::BTreeMap;

use serde::Deserialize;

use super::syscalls::{Abi, NATIVE};
use crate::capabilities;

const KILL_PROCESS: u32 = 0x8000_0000;
const KILL_THREAD: u32 = 0;
const TRAP: u32 = 0x0003_0000;
const ERRNO: u32 = 0x0005_0000;
const TRACE: u32 = 0x7ff0_0000;
const LOG: u32 = 0x7ffc_0000;
pub(super) const ALLOW: u32 = 0x7fff_0000;

/// errno of a call that the kernel does not have.
const ENOSYS: u32 = 38;
const EPERM: u32 = 1;

const FLAG_LOG: u32 = 2;
const FLAG_SPEC_ALLOW: u32 = 4;

/// What is wrong with a profile.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not JSON, or not of this shape.
    #[error("does not parse")]
    Parse(#[source] serde_json::Error),
    /// An action that is unknown, or needs an agent.
    #[error(
        "action {0:?} is not supported: use ALLOW, ERRNO, LOG, TRAP, TRACE, KILL, KILL_THREAD or KILL_PROCESS"
    )]
    Action(String),
    /// A comparison that is unknown.
    #[error("operator {0:?} of syscall {1:?} is unknown")]
    Operator(String, String),
    /// A system call has six arguments.
    #[error("syscall {0:?} has no argument {1}")]
    Argument(String, u32),
    /// An architecture name that is no SCMP_ARCH_….
    #[error("architecture {0:?} is unknown")]
    Architecture(String),
    /// A flag that is unknown, or needs an agent.
    #[error("flag {0:?} is not supported: use SECCOMP_FILTER_FLAG_LOG, _SPEC_ALLOW or _TSYNC")]
    Flag(String),
    /// An errno that the kernel would cut.
    #[error("errno {0} is over 4095")]
    Errno(u32),
    /// More than the kernel takes.
    #[error("compiles to {0} instructions, the kernel takes 4096")]
    TooLong(usize),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Profile {
    default_action: String,
    default_errno_ret: Option<u32>,
    #[serde(default)]
    architectures: Vec<String>,
    #[serde(default)]
    arch_map: Vec<ArchMap>,
    flags: Option<Vec<String>>,
    #[serde(default)]
    syscalls: Vec<SyscallRule>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ArchMap {
    architecture: String,
    sub_architectures: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SyscallRule {
    #[serde(default)]
    names: Vec<String>,
    /// Docker's old format.
    name: Option<String>,
    action: String,
    errno_ret: Option<u32>,
    args: Option<Vec<Arg>>,
    includes: Option<Condition>,
    excludes: Option<Condition>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Condition {
    #[serde(default)]
    caps: Vec<String>,
    #[serde(default)]
    arches: Vec<String>,
    min_kernel: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Arg {
    index: u32,
    value: u64,
    #[serde(default)]
    value_two: u64,
    op: String,
}

/// How an argument is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operator {
    NotEqual,
    Less,
    LessOrEqual,
    Equal,
    GreaterOrEqual,
    Greater,
    /// `argument & value == value_two`.
    MaskedEqual,
}

/// A condition on one argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Compare {
    pub(super) index: u32,
    pub(super) operator: Operator,
    pub(super) value: u64,
    pub(super) value_two: u64,
}

/// One alternative for a call: all conditions hold → the action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SeccompRule {
    pub(super) conditions: Vec<Compare>,
    pub(super) action: u32,
}

/// What one ABI's calls meet with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Section {
    pub(super) abi: Abi,
    /// By number; tried in order, the default action last.
    pub(super) calls: BTreeMap<u32, Vec<SeccompRule>>,
    /// Numbers above this are newer than the profile and answer ENOSYS, so that a new libc falls back
    /// to what it used before (runc#2750). None: they meet with the default action.
    pub(super) newest: Option<u32>,
}

/// A profile resolved for one container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Policy {
    pub(super) default: u32,
    pub(super) sections: Vec<Section>,
    pub(super) flags: u32,
}

/// The answer to calls newer than the profile.
pub(super) const TOO_NEW: u32 = ERRNO | ENOSYS;

/// The answer to ABIs that the profile does not list, as libseccomp gives it.
pub(super) const BAD_ABI: u32 = KILL_PROCESS;

fn action(name: &str, errno: Option<u32>) -> Result<u32, Error> {
    let with = |action: u32| match errno.unwrap_or(EPERM) {
        errno @ 0..=4095 => Ok(action | errno),
        errno => Err(Error::Errno(errno)),
    };
    match name {
        "SCMP_ACT_ALLOW" => Ok(ALLOW),
        "SCMP_ACT_ERRNO" => with(ERRNO),
        "SCMP_ACT_TRACE" => with(TRACE),
        "SCMP_ACT_TRAP" => Ok(TRAP),
        "SCMP_ACT_LOG" => Ok(LOG),
        "SCMP_ACT_KILL" | "SCMP_ACT_KILL_THREAD" => Ok(KILL_THREAD),
        "SCMP_ACT_KILL_PROCESS" => Ok(KILL_PROCESS),
        _ => Err(Error::Action(name.to_owned())),
    }
}

fn operator(name: &str) -> Option<Operator> {
    Some(match name {
        "SCMP_CMP_NE" => Operator::NotEqual,
        "SCMP_CMP_LT" => Operator::Less,
        "SCMP_CMP_LE" => Operator::LessOrEqual,
        "SCMP_CMP_EQ" => Operator::Equal,
        "SCMP_CMP_GE" => Operator::GreaterOrEqual,
        "SCMP_CMP_GT" => Operator::Greater,
        "SCMP_CMP_MASKED_EQ" => Operator::MaskedEqual,
        _ => return None,
    })
}

impl Condition {
    /// Every named thing is there.
    fn holds(&self, held: u64) -> bool {
        self.caps.iter().all(|name| has(held, name))
            && (self.arches.is_empty() || self.arches.iter().any(|arch| is_native(arch)))
            && self.min_kernel.as_deref().is_none_or(kernel_is_at_least)
    }

    /// Any named thing is there.
    fn touches(&self, held: u64) -> bool {
        self.caps.iter().any(|name| has(held, name))
            || self.arches.iter().any(|arch| is_native(arch))
            || self.min_kernel.as_deref().is_some_and(kernel_is_at_least)
    }
}

/// A capability that has no name here is one that the container does not have.
fn has(held: u64, name: &str) -> bool {
    capabilities::bit(name).is_ok_and(|bit| held & bit == bit)
}

/// Architectures of the conditions are Go's names.
fn is_native(arch: &str) -> bool {
    match NATIVE {
        Abi::Aarch64 => arch == "arm64",
        _ => matches!(arch, "amd64" | "x86" | "x32"),
    }
}

/// `4.8` against uname's `6.18.0-…`.
fn kernel_is_at_least(wanted: &str) -> bool {
    let pair = |text: &str| -> Option<(u32, u32)> {
        let mut numbers = text.split(['.', '-']);
        Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    };
    let running = rustix::system::uname().release().to_string_lossy().into_owned();
    pair(&running).zip(pair(wanted)).is_some_and(|(running, wanted)| running >= wanted)
}

impl Profile {
    /// Reads JSON.
    ///
    /// # Errors
    /// When it is none, or lacks the default action.
    pub(super) fn parse(text: &str) -> Result<Self, Error> {
        serde_json::from_str(text).map_err(Error::Parse)
    }

    /// Resolves the profile for a container whose bounding set is `held`.
    ///
    /// # Errors
    /// What is not supported, by name.
    pub(super) fn policy(&self, held: u64) -> Result<Policy, Error> {
        let default = action(&self.default_action, self.default_errno_ret)?;
        let mut sections: Vec<Section> = self
            .abis()?
            .into_iter()
            .map(|abi| Section { abi, calls: BTreeMap::new(), newest: None })
            .collect();
        for call in &self.syscalls {
            let is_meant = call.is_meant(held);
            let meets = action(&call.action, call.errno_ret)?;
            for name in call.names.iter().chain(&call.name) {
                let rules = call.rules(name, meets)?;
                if is_meant {
                    sections.iter_mut().for_each(|section| section.add(name, &rules, default));
                }
            }
        }
        // A filter that lets unknown calls through leaves the kernel to answer; one that says ENOSYS does.
        let lenient = matches!(default, ALLOW | LOG | TOO_NEW) || default & 0xffff_0000 == TRACE;
        for section in &mut sections {
            section.newest = section.newest.filter(|_| !lenient);
        }
        Ok(Policy { default, sections, flags: self.flags()? })
    }

    /// This machine's own ABI always, as in libseccomp, and those listed.
    fn abis(&self) -> Result<Vec<Abi>, Error> {
        let mapped = self
            .arch_map
            .iter()
            .filter(|map| Abi::from_name(&map.architecture) == Some(NATIVE))
            .flat_map(|map| map.sub_architectures.iter().flatten());
        let mut abis = vec![NATIVE];
        for name in self.architectures.iter().chain(mapped) {
            if !name.starts_with("SCMP_ARCH_") {
                return Err(Error::Architecture(name.clone()));
            }
            abis.extend(Abi::from_name(name).filter(|abi| !abis.contains(abi)));
        }
        Ok(abis)
    }

    fn flags(&self) -> Result<u32, Error> {
        let Some(flags) = &self.flags else { return Ok(FLAG_SPEC_ALLOW) };
        flags.iter().try_fold(0, |set, flag| match flag.as_str() {
            "SECCOMP_FILTER_FLAG_LOG" => Ok(set | FLAG_LOG),
            "SECCOMP_FILTER_FLAG_SPEC_ALLOW" => Ok(set | FLAG_SPEC_ALLOW),
            // The child that installs it has one thread.
            "SECCOMP_FILTER_FLAG_TSYNC" => Ok(set),
            _ => Err(Error::Flag(flag.clone())),
        })
    }
}

impl SyscallRule {
    /// Conditions on different arguments must all hold; when one argument has several, each condition is
    /// an alternative by itself (runc has it so, and profiles rely on it).
    fn rules(&self, name: &str, action: u32) -> Result<Vec<SeccompRule>, Error> {
        let compare = |arg: &Arg| -> Result<Compare, Error> {
            if arg.index > 5 {
                return Err(Error::Argument(name.to_owned(), arg.index));
            }
            let operator =
                operator(&arg.op).ok_or_else(|| Error::Operator(arg.op.clone(), name.to_owned()))?;
            Ok(Compare { index: arg.index, operator, value: arg.value, value_two: arg.value_two })
        };
        let conditions: Vec<Compare> = self.args.iter().flatten().map(compare).collect::<Result<_, _>>()?;
        let repeated = (0..6).any(|index| conditions.iter().filter(|c| c.index == index).count() > 1);
        Ok(if repeated {
            conditions
                .into_iter()
                .map(|condition| SeccompRule { conditions: vec![condition], action })
                .collect()
        } else {
            vec![SeccompRule { conditions, action }]
        })
    }
}

impl Section {
    fn add(&mut self, name: &str, rules: &[SeccompRule], default: u32) {
        // A name that this ABI, or this table, does not have: nothing to filter.
        let Some(number) = self.abi.number(name) else { return };
        self.newest = self.newest.max(Some(number));
        // Rules that say what the default says are left out, as in runc.
        let rules = rules.iter().filter(|rule| rule.action != default).cloned();
        self.calls.entry(number).or_default().extend(rules);
    }
}
