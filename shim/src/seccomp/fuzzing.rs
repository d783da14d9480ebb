//! What must hold for any seccomp profile: the body of the fuzz target `seccomp`. A program is what the
//! kernel would take, and answers as the profile's rules read one by one. Called by the target in
//! `fuzz/`, and by the tests of `crate::fuzzing` with the corpus that is kept.

use super::bpf;
use super::profile::{BAD_ABI, Compare, Operator, Policy, Profile, Section, TOO_NEW};
use super::syscalls::{Abi, X32_BIT};

/// A profile in JSON.
pub fn seccomp(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(profile) = Profile::parse(text) else { return };
    for held in [0, 1 << 21, u64::MAX >> 23] {
        let Ok(policy) = profile.policy(held) else { continue };
        let Ok(program) = bpf::compile(&policy) else { continue };
        let program = instructions(&program);
        taken_by_the_kernel(&program);
        policy.sections.iter().for_each(|section| answers(&program, &policy, section));
        for arch in [0, 0xc000_00b8] {
            assert_eq!(run(&program, arch, 0, [0; 6]), BAD_ABI);
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Instruction {
    code: u16,
    if_true: usize,
    if_false: usize,
    operand: u32,
}

fn instructions(bytes: &[u8]) -> Vec<Instruction> {
    let (whole, rest) = bytes.as_chunks::<8>();
    assert!(rest.is_empty());
    let one = |bytes: &[u8; 8]| {
        let [a, b, if_true, if_false, e, f, g, h] = *bytes;
        Instruction {
            code: u16::from_ne_bytes([a, b]),
            if_true: usize::from(if_true),
            if_false: usize::from(if_false),
            operand: u32::from_ne_bytes([e, f, g, h]),
        }
    };
    whole.iter().map(one).collect()
}

/// The rules of bpf_check_classic() and seccomp_check_filter(): jumps end within the program, loads are
/// words of seccomp_data, and the last instruction returns.
fn taken_by_the_kernel(program: &[Instruction]) {
    assert!((1..=4096).contains(&program.len()));
    for (at, i) in program.iter().enumerate() {
        match i.code {
            0x20 => assert!(i.operand < 64 && i.operand % 4 == 0, "{i:?}"),
            0x54 | 0x06 => {}
            0x05 => assert!(at + 1 + (i.operand as usize) < program.len(), "{at}: {i:?}"),
            0x15 | 0x25 | 0x35 | 0x45 => {
                assert!(at + 1 + i.if_true.max(i.if_false) < program.len(), "{at}: {i:?}");
            }
            other => unreachable!("instruction {other:#x}"),
        }
    }
    assert!(program.last().is_some_and(|last| last.code == 0x06));
}

fn run(program: &[Instruction], arch: u32, number: u32, args: [u64; 6]) -> u32 {
    let half = |value: u64, high: bool| {
        let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
        u32::from_le_bytes(if high { [e, f, g, h] } else { [a, b, c, d] })
    };
    let word = |at: u32| match at {
        0 => number,
        4 => arch,
        8 | 12 => 0,
        _ => half(args[(at as usize - 16) / 8], at % 8 == 4),
    };
    let (mut at, mut held) = (0, 0u32);
    loop {
        let i = program[at];
        let jump = |taken: bool| if taken { i.if_true } else { i.if_false };
        at += 1;
        match i.code {
            0x20 => held = word(i.operand),
            0x54 => held &= i.operand,
            0x05 => at += i.operand as usize,
            0x15 => at += jump(held == i.operand),
            0x25 => at += jump(held > i.operand),
            0x35 => at += jump(held >= i.operand),
            0x45 => at += jump(held & i.operand != 0),
            _ => return i.operand,
        }
    }
}

/// The program beside the rules, for every call that has some, its neighbours, and arguments at the
/// edges of what is compared.
fn answers(program: &[Instruction], policy: &Policy, section: &Section) {
    let bit = if section.abi == Abi::X32 { X32_BIT } else { 0 };
    let ends = [0, section.newest.unwrap_or(0), section.newest.unwrap_or(0) + 1, 9999];
    let known = section.calls.keys().flat_map(|number| [number.saturating_sub(1), *number, number + 1]);
    for number in known.chain(ends) {
        let rules = section.calls.get(&number).map(Vec::as_slice).unwrap_or_default();
        let mut calls = vec![[0u64; 6], [u64::MAX; 6]];
        for condition in rules.iter().flat_map(|rule| &rule.conditions).take(16) {
            for value in [condition.value, condition.value_two] {
                for near in [value, value.wrapping_add(1), value.wrapping_sub(1), value ^ (1 << 32)] {
                    let mut args = calls[calls.len() % 2];
                    args[condition.index as usize] = near;
                    calls.push(args);
                }
            }
        }
        for args in calls {
            let meant = meant(policy, section, number, &args);
            let given = run(program, section.abi.audit(), number | bit, args);
            assert_eq!(given, meant, "call {number} of {:?} with {args:x?}", section.abi);
        }
    }
}

fn meant(policy: &Policy, section: &Section, number: u32, args: &[u64; 6]) -> u32 {
    let rules = section.calls.get(&number).map(Vec::as_slice).unwrap_or_default();
    let found = rules.iter().find(|rule| rule.conditions.iter().all(|condition| holds(condition, args)));
    match found {
        Some(rule) => rule.action,
        None if section.newest.is_some_and(|newest| number > newest) => TOO_NEW,
        None => policy.default,
    }
}

fn holds(condition: &Compare, args: &[u64; 6]) -> bool {
    let (argument, value) = (args[condition.index as usize], condition.value);
    match condition.operator {
        Operator::NotEqual => argument != value,
        Operator::Less => argument < value,
        Operator::LessOrEqual => argument <= value,
        Operator::Equal => argument == value,
        Operator::GreaterOrEqual => argument >= value,
        Operator::Greater => argument > value,
        Operator::MaskedEqual => argument & value == condition.value_two,
    }
}
