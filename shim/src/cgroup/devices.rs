//! Which devices a container may use: v1 rule lines, and the same rules as an eBPF program for v2.
//! Pure but for the look at a device of the node. The list is the OCI runtime specification's default devices, as containerd allows them.

use std::fmt;
use std::path::Path;

use gantry_proto::monitor::Device;
use rustix::fs::FileType;

use gantry_sys::bpf::Instruction;

/// One permission. None is a wildcard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DeviceRule {
    /// True for a block device.
    pub(super) block: bool,
    /// Major number.
    pub(super) major: Option<u32>,
    /// Minor number.
    pub(super) minor: Option<u32>,
    /// Bits of `MKNOD`, `READ`, `WRITE`.
    pub(super) access: u8,
}

const MKNOD: u8 = 1;
const READ: u8 = 2;
const WRITE: u8 = 4;
const ALL: u8 = MKNOD | READ | WRITE;

/// mknod of anything (a node alone gives nothing), use of the standard ones.
pub(super) fn defaults() -> Vec<DeviceRule> {
    let mknod = |block| DeviceRule { block, major: None, minor: None, access: MKNOD };
    let character = |major, minor| DeviceRule { block: false, major: Some(major), minor, access: ALL };
    let mut rules = vec![mknod(false), mknod(true)];
    rules.extend([3, 5, 7, 8, 9].map(|minor| character(1, Some(minor))));
    rules.extend([0, 1, 2].map(|minor| character(5, Some(minor))));
    rules.push(character(136, None));
    rules
}

/// Access to a device of a container: as a CDI file numbers it, or as the node has it.
pub(super) fn of(device: &Device) -> Option<DeviceRule> {
    let Some(node) = &device.node else {
        return of_node((Path::new(&device.host_path), &device.permissions));
    };
    let (major, minor) = (Some(node.major), Some(node.minor));
    let access = access(&device.permissions);
    // A pipe is no device.
    (node.kind != "p").then(|| DeviceRule { block: node.kind == "b", major, minor, access })
}

/// Access to one device of the node, all of it when no letter is given; None when the path is no device.
fn of_node((path, permissions): (&Path, &str)) -> Option<DeviceRule> {
    let found = rustix::fs::stat(path).ok()?;
    let block = match FileType::from_raw_mode(found.st_mode) {
        FileType::BlockDevice => true,
        FileType::CharacterDevice => false,
        _ => return None,
    };
    let (major, minor) = (rustix::fs::major(found.st_rdev), rustix::fs::minor(found.st_rdev));
    Some(DeviceRule { block, major: Some(major), minor: Some(minor), access: access(permissions) })
}

fn access(permissions: &str) -> u8 {
    if permissions.is_empty() {
        return ALL;
    }
    let bit = |letter| match letter {
        'r' => READ,
        'w' => WRITE,
        'm' => MKNOD,
        _ => 0,
    };
    permissions.chars().fold(0, |set, letter| set | bit(letter))
}

impl fmt::Display for DeviceRule {
    /// As devices.allow takes it: `c 1:3 rwm`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |n: Option<u32>| n.map_or_else(|| "*".to_owned(), |n| n.to_string());
        write!(f, "{} {}:{} ", if self.block { 'b' } else { 'c' }, number(self.major), number(self.minor))?;
        for (bit, letter) in [(READ, 'r'), (WRITE, 'w'), (MKNOD, 'm')] {
            if self.access & bit != 0 {
                write!(f, "{letter}")?;
            }
        }
        Ok(())
    }
}

const LOAD_WORD: u8 = 0x61;
const AND_IMM: u8 = 0x54;
const SHIFT_RIGHT_IMM: u8 = 0x74;
const MOVE_REG: u8 = 0xbc;
const MOVE_IMM: u8 = 0xb7;
const JUMP_NE_IMM: u8 = 0x55;
const JUMP_NE_REG: u8 = 0x5d;
const EXIT: u8 = 0x95;

const fn op(code: u8, destination: u8, source: u8, offset: i16, immediate: i32) -> Instruction {
    Instruction { code, registers: source << 4 | destination, offset, immediate }
}

/// The program: r2 device type, r3 wanted access, r4 major, r5 minor; the first rule that covers the
/// request allows it, none denies (`struct bpf_cgroup_dev_ctx`, linux/bpf.h).
pub(super) fn program(rules: &[DeviceRule]) -> Vec<Instruction> {
    let mut code = vec![
        op(LOAD_WORD, 2, 1, 0, 0),
        op(MOVE_REG, 3, 2, 0, 0),
        op(AND_IMM, 2, 0, 0, 0xffff),
        op(SHIFT_RIGHT_IMM, 3, 0, 0, 16),
        op(LOAD_WORD, 4, 1, 4, 0),
        op(LOAD_WORD, 5, 1, 8, 0),
    ];
    for rule in rules {
        code.extend(block(rule));
    }
    code.extend([op(MOVE_IMM, 0, 0, 0, 0), op(EXIT, 0, 0, 0, 0)]);
    code
}

fn block(rule: &DeviceRule) -> Vec<Instruction> {
    let mut code = vec![op(JUMP_NE_IMM, 2, 0, 0, if rule.block { 1 } else { 2 })];
    if rule.access != ALL {
        code.push(op(MOVE_REG, 1, 3, 0, 0));
        code.push(op(AND_IMM, 1, 0, 0, i32::from(rule.access)));
        code.push(op(JUMP_NE_REG, 1, 3, 0, 0));
    }
    for (register, number) in [(4, rule.major), (5, rule.minor)] {
        if let Some(number) = number.and_then(|number| i32::try_from(number).ok()) {
            code.push(op(JUMP_NE_IMM, register, 0, 0, number));
        }
    }
    code.extend([op(MOVE_IMM, 0, 0, 0, 1), op(EXIT, 0, 0, 0, 0)]);
    // Every jump of this block leads behind it.
    let length = code.len();
    for (index, instruction) in code.iter_mut().enumerate() {
        if matches!(instruction.code, JUMP_NE_IMM | JUMP_NE_REG) {
            instruction.offset = i16::try_from(length - index - 1).unwrap_or(0);
        }
    }
    code
}

#[cfg(test)]
mod tests {
    use gantry_proto::monitor::DeviceNode;

    use super::*;

    /// What the kernel would answer: a tiny interpreter of the instructions used.
    fn allows(program: &[Instruction], block: bool, access: u8, major: i64, minor: i64) -> bool {
        let mut registers = [0i64; 11];
        let context = [i64::from(u32::from(access) << 16 | if block { 1 } else { 2 }), major, minor];
        let mut at = 0usize;
        loop {
            let i = program[at];
            let (d, s) = (usize::from(i.registers & 15), usize::from(i.registers >> 4));
            at += 1;
            match i.code {
                LOAD_WORD => registers[d] = context[usize::try_from(i.offset).unwrap() / 4],
                AND_IMM => registers[d] &= i64::from(i.immediate),
                SHIFT_RIGHT_IMM => registers[d] >>= i.immediate,
                MOVE_REG => registers[d] = registers[s],
                MOVE_IMM => registers[d] = i64::from(i.immediate),
                JUMP_NE_IMM if registers[d] != i64::from(i.immediate) => {
                    at += usize::try_from(i.offset).unwrap();
                }
                JUMP_NE_REG if registers[d] != registers[s] => at += usize::try_from(i.offset).unwrap(),
                JUMP_NE_IMM | JUMP_NE_REG => {}
                EXIT => return registers[0] == 1,
                other => unreachable!("{other:#x}"),
            }
        }
    }

    #[test]
    fn the_program_allows_the_standard_devices_and_no_disk() {
        let program = program(&defaults());
        assert!(allows(&program, false, READ | WRITE, 1, 3), "null");
        assert!(allows(&program, false, READ | WRITE, 136, 7), "a pty");
        assert!(allows(&program, true, MKNOD, 254, 0), "making a node");
        assert!(!allows(&program, true, READ, 254, 0), "reading a disk");
        assert!(!allows(&program, true, MKNOD | READ, 254, 0), "making and reading at once");
        assert!(!allows(&program, false, READ, 1, 1), "/dev/mem");
    }

    #[test]
    fn letters_limit_a_device_of_the_node() {
        let rule = of_node((Path::new("/dev/null"), "r")).unwrap();
        assert_eq!(rule.to_string(), "c 1:3 r");
        let program = program(&[DeviceRule { major: Some(254), minor: Some(1), ..rule }]);
        assert!(allows(&program, false, READ, 254, 1));
        assert!(!allows(&program, false, WRITE, 254, 1));
        assert!(!allows(&program, false, READ | WRITE, 254, 1));
        assert_eq!(of_node((Path::new("/dev/null"), "")).unwrap().access, ALL);
        assert!(of_node((Path::new("/etc"), "rwm")).is_none());
        let numbered = |kind: &str| Device {
            host_path: "/etc".into(),
            permissions: "rw".into(),
            node: Some(DeviceNode { kind: kind.into(), major: 254, minor: 7, ..DeviceNode::default() }),
            ..Device::default()
        };
        assert_eq!(of(&numbered("b")).unwrap().to_string(), "b 254:7 rw");
        assert!(of(&numbered("p")).is_none());
    }

    #[test]
    fn rules_read_as_v1_takes_them() {
        let lines: Vec<String> = defaults().iter().map(ToString::to_string).collect();
        assert_eq!(lines[..3], ["c *:* m", "b *:* m", "c 1:3 rwm"]);
        assert_eq!(lines.last().unwrap(), "c 136:* rwm");
    }
}
