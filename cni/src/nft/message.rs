//! Tables, chains and rules as messages of a batch, and rules as they are read back.
//!
//! Owns the attributes of these objects; pure. Never sends. Called by `table`.

use super::attr::{self, Attrs};
use super::{INET, NLM_F_APPEND, NLM_F_CREATE, Rule};

/// `NFNL_SUBSYS_NFTABLES`, in the upper byte of a message's type.
pub(super) const SUBSYSTEM: u16 = 10 << 8;
pub(super) const NEW_TABLE: u16 = SUBSYSTEM;
pub(super) const GET_TABLE: u16 = SUBSYSTEM | 1;
const DEL_TABLE: u16 = SUBSYSTEM | 2;
pub(super) const NEW_CHAIN: u16 = SUBSYSTEM | 3;
pub(super) const GET_CHAIN: u16 = SUBSYSTEM | 4;
const DEL_CHAIN: u16 = SUBSYSTEM | 5;
pub(super) const NEW_RULE: u16 = SUBSYSTEM | 6;
pub(super) const GET_RULE: u16 = SUBSYSTEM | 7;
const DEL_RULE: u16 = SUBSYSTEM | 8;
pub(super) const NEW_GENERATION: u16 = SUBSYSTEM | 15;
pub(super) const GET_GENERATION: u16 = SUBSYSTEM | 16;
/// `NFNL_MSG_BATCH_*`; a batch names its subsystem in the family header's last field.
pub(super) const BATCH_BEGIN: u16 = 0x10;
pub(super) const BATCH_END: u16 = 0x11;
pub(super) const BATCH_OF: u16 = 10;
const BATCH_GENERATION: u16 = 1;
const GENERATION_ID: u16 = 1;

const TABLE_NAME: u16 = 1;
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_TYPE: u16 = 7;
const RULE_TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;
const RULE_HANDLE: u16 = 3;
const RULE_EXPRESSIONS: u16 = 4;
const RULE_USERDATA: u16 = 7;
/// `NFTNL_UDATA_RULE_COMMENT` of libnftnl, and the longest comment that `nft` reads back in, zero byte included.
const COMMENT: u8 = 0;
const COMMENT_LIMIT: usize = 128;

/// Where a chain is called, and before or behind what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hook {
    /// `type nat hook prerouting priority dstnat`
    DstnatPrerouting,
    /// `type nat hook output priority -100`
    DstnatOutput,
    /// `type nat hook postrouting priority srcnat`
    SrcnatPostrouting,
    /// `type filter hook prerouting priority raw`
    RawPrerouting,
}

impl Hook {
    /// Number of the hook, priority, type.
    fn parts(self) -> (u32, i32, &'static str) {
        match self {
            Hook::DstnatPrerouting => (0, -100, "nat"),
            Hook::DstnatOutput => (3, -100, "nat"),
            Hook::SrcnatPostrouting => (4, 100, "nat"),
            Hook::RawPrerouting => (0, -300, "filter"),
        }
    }
}

/// A message of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BatchMessage {
    pub(super) kind: u16,
    pub(super) flags: u16,
    pub(super) attributes: Attrs,
}

pub(super) fn message(kind: u16, flags: u16, attributes: Attrs) -> BatchMessage {
    BatchMessage { kind, flags, attributes }
}

/// Makes the table unless it is there.
pub(super) fn new_table(table: &str) -> BatchMessage {
    message(NEW_TABLE, NLM_F_CREATE, Attrs::new().text(TABLE_NAME, table))
}

/// Removes the table with all that is in it.
pub(super) fn delete_table(table: &str) -> BatchMessage {
    message(DEL_TABLE, 0, Attrs::new().text(TABLE_NAME, table))
}

/// Makes the chain unless it is there.
pub(super) fn new_chain(table: &str, chain: &str, hook: Option<Hook>) -> BatchMessage {
    let attributes = Attrs::new().text(CHAIN_TABLE, table).text(CHAIN_NAME, chain);
    let attributes = match hook.map(Hook::parts) {
        None => attributes,
        Some((number, priority, kind)) => {
            attributes.text(CHAIN_TYPE, kind).nest(CHAIN_HOOK, &Attrs::new().u32(1, number).i32(2, priority))
        }
    };
    message(NEW_CHAIN, NLM_F_CREATE, attributes)
}

/// Removes the chain, which is empty and jumped to by nobody.
pub(super) fn delete_chain(table: &str, chain: &str) -> BatchMessage {
    message(DEL_CHAIN, 0, Attrs::new().text(CHAIN_TABLE, table).text(CHAIN_NAME, chain))
}

/// Table and name of a chain.
pub(super) fn read_chain(body: &[u8]) -> Option<(String, String)> {
    Some((attr::text(attr::find(body, CHAIN_TABLE)?), attr::text(attr::find(body, CHAIN_NAME)?)))
}

/// Removes every rule of the chain.
pub(super) fn flush_chain(table: &str, chain: &str) -> BatchMessage {
    message(DEL_RULE, 0, Attrs::new().text(RULE_TABLE, table).text(RULE_CHAIN, chain))
}

/// Appends a rule.
pub(super) fn new_rule(table: &str, chain: &str, rule: &Rule, comment: Option<&str>) -> BatchMessage {
    let attributes = Attrs::new()
        .text(RULE_TABLE, table)
        .text(RULE_CHAIN, chain)
        .nest(RULE_EXPRESSIONS, &rule.expressions());
    let attributes = match comment {
        None => attributes,
        Some(comment) => attributes.bytes(RULE_USERDATA, &userdata(comment)),
    };
    message(NEW_RULE, NLM_F_CREATE | NLM_F_APPEND, attributes)
}

pub(super) fn delete_rule(table: &str, chain: &str, handle: u64) -> BatchMessage {
    let attributes = Attrs::new().text(RULE_TABLE, table).text(RULE_CHAIN, chain).u64(RULE_HANDLE, handle);
    message(DEL_RULE, 0, attributes)
}

/// The attributes of a batch's begin: it is void if the rules have changed since this generation.
pub(super) fn generation(generation: u32) -> Attrs {
    Attrs::new().u32(BATCH_GENERATION, generation)
}

pub(super) fn read_generation(body: &[u8]) -> Option<u32> {
    attr::find(body, GENERATION_ID).and_then(attr::u32)
}

/// The attributes that ask for the rules of one table.
pub(super) fn rules_of(table: &str) -> Attrs {
    Attrs::new().text(RULE_TABLE, table)
}

/// The attributes that ask for a table.
pub(super) fn table_of(table: &str) -> Attrs {
    Attrs::new().text(TABLE_NAME, table)
}

pub(super) fn read_table(body: &[u8]) -> Option<String> {
    attr::find(body, TABLE_NAME).map(attr::text)
}

/// A rule as it stands in the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KernelRule {
    pub(super) table: String,
    pub(super) chain: String,
    pub(super) handle: u64,
    pub(super) comment: Option<String>,
    /// What it says, as [`Rule::matches_kernel`] reads it.
    pub(super) expressions: Vec<u8>,
}

pub(super) fn read_rule(body: &[u8]) -> Option<KernelRule> {
    Some(KernelRule {
        table: attr::text(attr::find(body, RULE_TABLE)?),
        chain: attr::text(attr::find(body, RULE_CHAIN)?),
        handle: attr::find(body, RULE_HANDLE).and_then(attr::u64)?,
        comment: attr::find(body, RULE_USERDATA).and_then(read_userdata),
        expressions: attr::find(body, RULE_EXPRESSIONS).unwrap_or_default().to_vec(),
    })
}

/// The family of all messages here.
pub(super) const FAMILY: u8 = INET;

/// A comment as libnftnl stores it: type, length, text, zero byte. What is too long is cut.
pub(super) fn userdata(comment: &str) -> Vec<u8> {
    let mut end = comment.len().min(COMMENT_LIMIT - 1);
    while !comment.is_char_boundary(end) {
        end -= 1;
    }
    let text = &comment.as_bytes()[..end];
    let mut bytes = vec![COMMENT, u8::try_from(text.len() + 1).unwrap_or(u8::MAX)];
    bytes.extend_from_slice(text);
    bytes.push(0);
    bytes
}

pub(super) fn read_userdata(mut bytes: &[u8]) -> Option<String> {
    while let [kind, length, rest @ ..] = bytes {
        let value = rest.get(..usize::from(*length))?;
        if *kind == COMMENT {
            return Some(attr::text(value));
        }
        bytes = rest.get(usize::from(*length)..).unwrap_or_default();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_go_out_and_come_back_cut_at_a_letter() {
        assert_eq!(userdata("ab"), [0, 3, b'a', b'b', 0]);
        let long = format!("{}é", "x".repeat(126));
        assert_eq!(read_userdata(&userdata(&long)), Some("x".repeat(126)));
        assert_eq!(read_userdata(&[7, 1, 9, 0, 2, b'a', 0]), Some("a".into()), "behind another kind");
        assert_eq!(read_userdata(&[0, 200, 1]), None);
    }

    #[test]
    fn a_rule_is_read_back() {
        let body = delete_rule("t", "c", 7).attributes.bytes(RULE_USERDATA, &userdata("mine"));
        let read = KernelRule {
            table: "t".into(),
            chain: "c".into(),
            handle: 7,
            comment: Some("mine".into()),
            expressions: Vec::new(),
        };
        assert_eq!(read_rule(body.as_slice()), Some(read));
    }
}
