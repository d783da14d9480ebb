//! Filters as the kernel would run them: a small interpreter of classic BPF, and what it answers.

use super::profile::ALLOW;
use super::syscalls::Abi;
use super::*;

const EPERM: u32 = 0x0005_0001;
const ENOSYS: u32 = 0x0005_0026;
const KILL: u32 = 0x8000_0000;

/// `struct seccomp_data` through the program.
fn run(filter: &Filter, arch: u32, number: u32, args: [u64; 6]) -> u32 {
    let mut data = Vec::new();
    data.extend(number.to_le_bytes());
    data.extend(arch.to_le_bytes());
    data.extend(0u64.to_le_bytes());
    args.iter().for_each(|arg| data.extend(arg.to_le_bytes()));
    let word = |at: usize| u32::from_le_bytes(data[at..at + 4].try_into().unwrap());
    let (mut at, mut held) = (0usize, 0u32);
    loop {
        let i = &filter.program[at * 8..at * 8 + 8];
        let operand = u32::from_ne_bytes(i[4..8].try_into().unwrap());
        let jump = |taken: bool| usize::from(if taken { i[2] } else { i[3] });
        at += 1;
        match u16::from_ne_bytes([i[0], i[1]]) {
            0x20 => held = word(operand as usize),
            0x54 => held &= operand,
            0x06 => return operand,
            0x05 => at += operand as usize,
            0x15 => at += jump(held == operand),
            0x25 => at += jump(held > operand),
            0x35 => at += jump(held >= operand),
            0x45 => at += jump(held & operand != 0),
            other => unreachable!("{other:#x}"),
        }
    }
}

fn call(filter: &Filter, abi: Abi, name: &str, args: &[u64]) -> u32 {
    let bit = if abi == Abi::X32 { 0x4000_0000 } else { 0 };
    let number = abi.number(name).unwrap_or_else(|| panic!("{name} is no call of {abi:?}"));
    let mut all = [0; 6];
    all[..args.len()].copy_from_slice(args);
    run(filter, abi.audit(), number | bit, all)
}

fn default(capabilities: u64) -> Filter {
    filter(&SeccompChoice::RuntimeDefault, capabilities).unwrap()
}

const SYS_ADMIN: u64 = 1 << 21;
const SYS_TIME: u64 = 1 << 25;

#[test]
fn the_default_profile_lets_programs_run_and_refuses_what_only_the_node_may() {
    let filter = default(0);
    for abi in [Abi::X86_64, Abi::I386, Abi::X32] {
        for name in ["read", "execve", "openat", "futex", "sendmsg", "rt_sigaction", "ioctl", "ptrace"] {
            assert_eq!(call(&filter, abi, name, &[]), ALLOW, "{name} of {abi:?}");
        }
        for name in
            ["mount", "unshare", "setns", "bpf", "reboot", "keyctl", "swapon", "userfaultfd", "kexec_load"]
        {
            assert_eq!(call(&filter, abi, name, &[]), EPERM, "{name} of {abi:?}");
        }
    }
    assert_eq!(call(&filter, Abi::X86_64, "arch_prctl", &[]), ALLOW);
    assert_eq!(call(&filter, Abi::I386, "socketcall", &[]), ALLOW);
}

#[test]
fn rules_follow_the_capabilities() {
    assert_eq!(call(&default(SYS_ADMIN), Abi::X86_64, "mount", &[]), ALLOW);
    assert_eq!(call(&default(0), Abi::X86_64, "clock_settime", &[]), EPERM);
    assert_eq!(call(&default(SYS_TIME), Abi::X86_64, "clock_settime", &[]), ALLOW);
    assert_eq!(call(&default(SYS_TIME), Abi::X86_64, "mount", &[]), EPERM);
}

#[test]
fn clone_makes_processes_and_no_namespaces_and_clone3_is_as_if_it_were_not_there() {
    let (plain, admin) = (default(0), default(SYS_ADMIN));
    for (flags, answer) in [(0, ALLOW), (0x0100_0000 | 17, ALLOW), (0x1000_0000, EPERM), (0x0002_0000, EPERM)]
    {
        assert_eq!(call(&plain, Abi::X86_64, "clone", &[flags]), answer, "{flags:#x}");
        assert_eq!(call(&admin, Abi::X86_64, "clone", &[flags]), ALLOW);
    }
    assert_eq!(call(&plain, Abi::X86_64, "clone3", &[]), ENOSYS);
    assert_eq!(call(&admin, Abi::X86_64, "clone3", &[]), ALLOW);
}

#[test]
fn arguments_are_compared_in_both_halves() {
    let filter = default(0);
    for (domain, answer) in
        [(1, ALLOW), (37, ALLOW), (38, EPERM), (39, ALLOW), (40, EPERM), (45, ALLOW), (46, EPERM)]
    {
        assert_eq!(call(&filter, Abi::X86_64, "socket", &[domain]), answer, "{domain}");
    }
    assert_eq!(call(&filter, Abi::X86_64, "socket", &[(1 << 32) | 2]), EPERM);
    for (persona, answer) in [(0, ALLOW), (8, ALLOW), (0xffff_ffff, ALLOW), (1, EPERM), (0x0004_0000, EPERM)]
    {
        assert_eq!(call(&filter, Abi::X86_64, "personality", &[persona]), answer, "{persona:#x}");
    }
}

#[test]
fn rt_2_12_calls_newer_than_the_profile_answer_enosys_and_unknown_abis_are_killed() {
    let filter = default(0);
    for abi in [Abi::X86_64, Abi::I386, Abi::Aarch64] {
        let answer = if abi == Abi::Aarch64 { KILL } else { ENOSYS };
        assert_eq!(run(&filter, abi.audit(), 4000, [0; 6]), answer, "{abi:?}");
    }
    assert_eq!(run(&filter, Abi::X32.audit(), 0x4000_0000 | 4000, [0; 6]), ENOSYS);
    assert_eq!(run(&filter, Abi::X86_64.audit(), u32::MAX, [0; 6]), ENOSYS);
    assert_eq!(filter.flags, 4, "SPEC_ALLOW");
}

fn localhost(text: &str) -> Result<Filter, Error> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    filter(&SeccompChoice::Localhost(file.path().to_owned()), 0)
}

#[test]
fn a_profile_of_ones_own_is_honoured_to_the_errno() {
    let filter = localhost(
        r#"{"defaultAction": "SCMP_ACT_ALLOW", "flags": ["SECCOMP_FILTER_FLAG_LOG"], "syscalls": [
            {"names": ["mkdirat", "no_such_call"], "action": "SCMP_ACT_ERRNO", "errnoRet": 13},
            {"names": ["lseek"], "action": "SCMP_ACT_ERRNO", "args": [
                {"index": 1, "value": 4294967296, "op": "SCMP_CMP_GE"}, {"index": 2, "value": 0, "op": "SCMP_CMP_NE"}]},
            {"name": "dup2", "action": "SCMP_ACT_LOG", "args": [
                {"index": 1, "value": 3, "op": "SCMP_CMP_LT"}, {"index": 1, "value": 9, "op": "SCMP_CMP_GT"}]}]}"#,
    )
    .unwrap();
    let of = |name: &str, args: &[u64]| call(&filter, Abi::X86_64, name, args);
    assert_eq!(of("mkdirat", &[]), 0x0005_000d);
    assert_eq!(of("lseek", &[0, 1 << 32, 1]), EPERM);
    assert_eq!(of("lseek", &[0, 1 << 32, 0]), ALLOW);
    assert_eq!(of("lseek", &[0, 0xffff_ffff, 1]), ALLOW);
    // Two conditions on one argument are alternatives.
    for (target, answer) in [(2, 0x7ffc_0000), (3, ALLOW), (9, ALLOW), (10, 0x7ffc_0000)] {
        assert_eq!(of("dup2", &[0, target]), answer, "{target}");
    }
    // New calls are the kernel's to refuse, other ABIs are not listed.
    assert_eq!(run(&filter, Abi::X86_64.audit(), 4000, [0; 6]), ALLOW);
    assert_eq!(call(&filter, Abi::I386, "read", &[]), KILL);
    assert_eq!(filter.flags, 2);
}

#[test]
fn what_a_profile_may_not_say_is_refused_by_name() {
    let chain = |text: &str| gantry_base::error::chain(&localhost(text).unwrap_err());
    for (text, word) in [
        ("{}", "defaultAction"),
        (r#"{"defaultAction": "SCMP_ACT_NOTIFY"}"#, "SCMP_ACT_NOTIFY"),
        (r#"{"defaultAction": "SCMP_ACT_ALLOW", "flags": ["FLY"]}"#, "FLY"),
        (r#"{"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["PDP11"]}"#, "PDP11"),
        (
            r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["read"], "action": "SCMP_ACT_LOG",
                "args": [{"index": 6, "value": 0, "op": "SCMP_CMP_EQ"}]}]}"#,
            "argument 6",
        ),
    ] {
        let message = chain(text);
        assert!(message.contains(word), "{message}");
    }
    let missing = filter(&SeccompChoice::Localhost("/nonexistent/profile.json".into()), 0).unwrap_err();
    assert!(matches!(missing, Error::Read { .. }));
    assert!(matches!(filter(&SeccompChoice::Localhost("/dev/zero".into()), 0), Err(Error::Read { .. })));
}

#[test]
fn a_pipe_in_a_profiles_place_holds_up_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("profile.json");
    let mode = rustix::fs::Mode::RUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    assert!(matches!(filter(&SeccompChoice::Localhost(path), 0), Err(Error::Read { .. })));
}
