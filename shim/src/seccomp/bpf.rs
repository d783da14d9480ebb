//! Classic BPF from a policy. Pure. The program is written from its end to its beginning, so that every
//! jump leads to what stands there already. Calls are found by binary search: a few comparisons each,
//! and calls of one constant action are cached by the kernel anyway (5.11). Called by `seccomp`.

use std::collections::HashMap;

use super::profile::{BAD_ABI, Compare, Error, Operator, Policy, SeccompRule, Section, TOO_NEW};
use super::syscalls::{Abi, X32_BIT};

const LOAD: u16 = 0x20;
const AND: u16 = 0x54;
const RETURN: u16 = 0x06;
const JUMP: u16 = 0x05;
const JUMP_EQ: u16 = 0x15;
const JUMP_GT: u16 = 0x25;
const JUMP_GE: u16 = 0x35;
const JUMP_SET: u16 = 0x45;

/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const ARGS: u32 = 16;

/// BPF_MAXINSNS.
const MAX: usize = 4096;

#[derive(Debug, Clone, Copy)]
struct Instruction {
    code: u16,
    if_true: u8,
    if_false: u8,
    operand: u32,
}

/// An instruction of the program, counted from its end.
type InstructionIndex = usize;

/// Instructions in reverse.
#[derive(Debug, Default)]
struct BpfWriter {
    code: Vec<Instruction>,
    returns: HashMap<u32, InstructionIndex>,
}

impl BpfWriter {
    fn push(&mut self, code: u16, operand: u32, if_true: u8, if_false: u8) -> InstructionIndex {
        self.code.push(Instruction { code, if_true, if_false, operand });
        self.code.len() - 1
    }

    /// How far a jump written next has to go to `target`.
    fn distance(&self, target: InstructionIndex) -> usize {
        self.code.len() - 1 - target
    }

    /// An instruction near enough for a conditional jump: `target`, or a long jump to it.
    fn near(&mut self, target: InstructionIndex) -> InstructionIndex {
        // The other branch may put one instruction in between.
        if self.distance(target) < 254 {
            return target;
        }
        let far = u32::try_from(self.distance(target)).unwrap_or(u32::MAX);
        self.push(JUMP, far, 0, 0)
    }

    fn return_action(&mut self, action: u32) -> InstructionIndex {
        match self.returns.get(&action) {
            Some(index) if self.distance(*index) < 200 => *index,
            _ => {
                let index = self.push(RETURN, action, 0, 0);
                self.returns.insert(action, index);
                index
            }
        }
    }

    fn branch(
        &mut self,
        code: u16,
        operand: u32,
        then: InstructionIndex,
        otherwise: InstructionIndex,
    ) -> InstructionIndex {
        if then == otherwise {
            return then;
        }
        let then = self.near(then);
        let otherwise = self.near(otherwise);
        let offset = |writer: &Self, index| u8::try_from(writer.distance(index)).unwrap_or(u8::MAX);
        let (then, otherwise) = (offset(self, then), offset(self, otherwise));
        self.push(code, operand, then, otherwise)
    }

    /// What runs next falls through to the instruction written last: `next` must be it, or be jumped to.
    fn load(&mut self, offset: u32, next: InstructionIndex) -> InstructionIndex {
        self.fall_to(next);
        self.push(LOAD, offset, 0, 0)
    }

    fn fall_to(&mut self, next: InstructionIndex) {
        if next + 1 != self.code.len() {
            let far = u32::try_from(self.distance(next)).unwrap_or(u32::MAX);
            self.push(JUMP, far, 0, 0);
        }
    }

    /// One condition. Arguments are 64 bits and BPF has 32: the high half first, then the low one.
    fn compare(
        &mut self,
        condition: &Compare,
        then: InstructionIndex,
        otherwise: InstructionIndex,
    ) -> InstructionIndex {
        let low_at = ARGS + condition.index * 8;
        let (high, low) = halves(condition.value);
        let (high_two, low_two) = halves(condition.value_two);
        let both = |writer: &mut Self, high: u32, low: u32, mask: Option<(u32, u32)>| {
            let half = |writer: &mut Self, at, wanted, mask: Option<u32>, then| {
                let mut next = writer.branch(JUMP_EQ, wanted, then, otherwise);
                if let Some(mask) = mask {
                    writer.fall_to(next);
                    next = writer.push(AND, mask, 0, 0);
                }
                writer.load(at, next)
            };
            let low = half(writer, low_at, low, mask.map(|mask| mask.1), then);
            half(writer, low_at + 4, high, mask.map(|mask| mask.0), low)
        };
        let ordered = |writer: &mut Self, code: u16, then: InstructionIndex, otherwise: InstructionIndex| {
            let low = writer.branch(code, low, then, otherwise);
            let low = writer.load(low_at, low);
            // Equal high halves: the low ones decide.
            let equal = writer.branch(JUMP_EQ, high, low, otherwise);
            let high = writer.branch(JUMP_GT, high, then, equal);
            writer.load(low_at + 4, high)
        };
        match condition.operator {
            Operator::Equal => both(self, high, low, None),
            Operator::MaskedEqual => both(self, high_two, low_two, Some((high, low))),
            Operator::NotEqual => {
                let equal = Compare { operator: Operator::Equal, ..*condition };
                self.compare(&equal, otherwise, then)
            }
            Operator::Greater => ordered(self, JUMP_GT, then, otherwise),
            Operator::GreaterOrEqual => ordered(self, JUMP_GE, then, otherwise),
            Operator::LessOrEqual => ordered(self, JUMP_GT, otherwise, then),
            Operator::Less => ordered(self, JUMP_GE, otherwise, then),
        }
    }

    /// Rules in order, then `default`.
    fn rules(&mut self, rules: &[SeccompRule], default: u32) -> InstructionIndex {
        // What follows an unconditional rule is never reached.
        let reached = rules.iter().position(|rule| rule.conditions.is_empty());
        let (conditional, last) = match reached {
            Some(at) => {
                (rules.get(..at).unwrap_or_default(), rules.get(at).map_or(default, |rule| rule.action))
            }
            None => (rules, default),
        };
        if conditional.is_empty() {
            return self.return_action(last);
        }
        let mut next = self.return_action(last);
        for rule in conditional.iter().rev() {
            let mut then = self.return_action(rule.action);
            for condition in rule.conditions.iter().rev() {
                then = self.compare(condition, then, next);
            }
            next = then;
        }
        next
    }

    fn section(&mut self, section: &Section, default: u32) -> InstructionIndex {
        let bit = if section.abi == Abi::X32 { X32_BIT } else { 0 };
        // Where each run of numbers with one answer begins, in order.
        let mut runs: Vec<(u32, FilterAction<'_>)> = vec![(0, FilterAction::Give(default))];
        let mut end = 0;
        for (number, rules) in &section.calls {
            let answer = match rules.first() {
                Some(rule) if rule.conditions.is_empty() => FilterAction::Give(rule.action),
                Some(_) => FilterAction::Rules(rules),
                None => FilterAction::Give(default),
            };
            start(&mut runs, end, FilterAction::Give(default));
            start(&mut runs, *number, answer);
            end = number + 1;
        }
        start(&mut runs, end, FilterAction::Give(default));
        if let Some(newest) = section.newest {
            start(&mut runs, newest + 1, FilterAction::Give(TOO_NEW));
        }
        let leaves: Vec<(u32, Leaf<'_>)> =
            runs.into_iter().map(|(number, answer)| (number | bit, Leaf { answer, default })).collect();
        let tree = self.tree(&leaves);
        self.load(NUMBER, tree)
    }

    fn tree(&mut self, leaves: &[(u32, Leaf<'_>)]) -> InstructionIndex {
        let middle = leaves.len() / 2;
        match leaves {
            [] => self.return_action(BAD_ABI),
            [(_, leaf)] => match leaf.answer {
                FilterAction::Give(action) => self.return_action(action),
                FilterAction::Rules(rules) => self.rules(rules, leaf.default),
            },
            _ => {
                let (lower, upper) = leaves.split_at(middle);
                let first = upper.first().map_or(0, |(number, _)| *number);
                let upper = self.tree(upper);
                let lower = self.tree(lower);
                self.branch(JUMP_GE, first, upper, lower)
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum FilterAction<'a> {
    Give(u32),
    Rules(&'a [SeccompRule]),
}

struct Leaf<'a> {
    answer: FilterAction<'a>,
    default: u32,
}

/// Begins a run at `number`, unless the run before gives the same answer; replaces an empty one.
fn start<'a>(runs: &mut Vec<(u32, FilterAction<'a>)>, number: u32, answer: FilterAction<'a>) {
    if runs.last().is_some_and(|(begun, _)| *begun == number) {
        runs.pop();
    }
    if runs.last().is_none_or(|(_, before)| *before != answer) {
        runs.push((number, answer));
    }
}

fn halves(value: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
    (u32::from_le_bytes([e, f, g, h]), u32::from_le_bytes([a, b, c, d]))
}

/// The program as bytes of `struct sock_filter`.
///
/// # Errors
/// When it is longer than the kernel takes.
pub(super) fn compile(policy: &Policy) -> Result<Vec<u8>, Error> {
    let mut writer = BpfWriter::default();
    let mut starts: Vec<(Abi, InstructionIndex)> = Vec::new();
    for section in &policy.sections {
        let index = writer.section(section, policy.default);
        starts.push((section.abi, index));
    }
    let index = |abi: Abi| starts.iter().find(|(known, _)| *known == abi).map(|(_, index)| *index);
    let mut next = writer.return_action(BAD_ABI);
    if let Some(target) = index(Abi::I386).or(index(Abi::Aarch64)) {
        let abi = if index(Abi::I386).is_some() { Abi::I386 } else { Abi::Aarch64 };
        next = writer.branch(JUMP_EQ, abi.audit(), target, next);
    }
    if let Some(wide) = index(Abi::X86_64) {
        let bad = writer.return_action(BAD_ABI);
        let x32 = index(Abi::X32).unwrap_or(bad);
        // Both load the number again: it costs less than sharing would.
        let split = writer.branch(JUMP_SET, X32_BIT, x32, wide);
        let split = writer.load(NUMBER, split);
        next = writer.branch(JUMP_EQ, Abi::X86_64.audit(), split, next);
    }
    writer.load(ARCH, next);
    if writer.code.len() > MAX {
        return Err(Error::TooLong(writer.code.len()));
    }
    let bytes = |i: &Instruction| -> [u8; 8] {
        let ([a, b], [e, f, g, h]) = (i.code.to_ne_bytes(), i.operand.to_ne_bytes());
        [a, b, i.if_true, i.if_false, e, f, g, h]
    };
    Ok(writer.code.iter().rev().flat_map(bytes).collect())
}
