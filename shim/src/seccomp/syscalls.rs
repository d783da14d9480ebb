//! System call numbers by name, for the ABIs that a process on this machine can use. Pure. Called by
//! `profile`.

use std::collections::HashMap;
use std::sync::LazyLock;

const TABLE: &str = include_str!("syscalls.txt");

/// A calling convention with numbers of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Abi {
    X86_64,
    I386,
    X32,
    Aarch64,
}

/// The ABI of this program.
#[cfg(target_arch = "x86_64")]
pub(super) const NATIVE: Abi = Abi::X86_64;
#[cfg(target_arch = "aarch64")]
pub(super) const NATIVE: Abi = Abi::Aarch64;

/// Set in every number of x32, which shares its audit architecture with x86_64.
pub(super) const X32_BIT: u32 = 0x4000_0000;

impl Abi {
    /// By its name in a profile; None for one that this machine can't run.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        let found = match name {
            "SCMP_ARCH_X86_64" => Self::X86_64,
            "SCMP_ARCH_X86" => Self::I386,
            "SCMP_ARCH_X32" => Self::X32,
            "SCMP_ARCH_AARCH64" => Self::Aarch64,
            _ => return None,
        };
        (found.is_intel() == NATIVE.is_intel()).then_some(found)
    }

    fn is_intel(self) -> bool {
        self != Self::Aarch64
    }

    /// `AUDIT_ARCH_*` of linux/audit.h, which seccomp_data carries.
    pub(super) fn audit(self) -> u32 {
        match self {
            Self::X86_64 | Self::X32 => 0xc000_003e,
            Self::I386 => 0x4000_0003,
            Self::Aarch64 => 0xc000_00b7,
        }
    }

    /// The number of a call, without x32's bit; None where this ABI has no such call.
    pub(super) fn number(self, name: &str) -> Option<u32> {
        static NUMBERS: LazyLock<HashMap<&str, [Option<u32>; 4]>> = LazyLock::new(|| {
            let lines = TABLE.lines().filter(|line| !line.starts_with('#'));
            lines
                .filter_map(|line| {
                    let mut words = line.split(' ');
                    let name = words.next()?;
                    Some((name, [(); 4].map(|()| words.next().and_then(|word| word.parse().ok()))))
                })
                .collect()
        });
        let [x86_64, i386, x32, aarch64] = *NUMBERS.get(name)?;
        match self {
            Self::X86_64 => x86_64,
            Self::I386 => i386,
            Self::X32 => x32,
            Self::Aarch64 => aarch64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_the_kernels() {
        assert_eq!(Abi::X86_64.number("clone3"), Some(435));
        assert_eq!(Abi::I386.number("socketcall"), Some(102));
        assert_eq!(Abi::X86_64.number("socketcall"), None);
        assert_eq!(Abi::X32.number("ioctl"), Some(514));
        assert_eq!(Abi::Aarch64.number("openat"), Some(56));
        #[cfg(target_arch = "x86_64")]
        assert_eq!(Abi::X86_64.number("openat2"), u32::try_from(libc::SYS_openat2).ok());
    }
}
