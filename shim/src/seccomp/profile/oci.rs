//! A profile resolved for one container in the OCI runtime specification's own format, for a program that
//! compiles it: conditions are decided, nothing else changes. Pure but for the release of the running kernel.
//! Called by `seccomp`.

use serde_json::{Map, Value, json};

use super::{Arg, Error, Profile, SyscallRule};
use crate::seccomp::syscalls::{Abi, NATIVE};

impl Profile {
    /// For a container whose bounding set is `held`. What `policy` refuses is refused here: a filter must not mean
    /// more or less under another handler.
    ///
    /// # Errors
    /// As `policy`.
    pub(in crate::seccomp) fn oci(&self, held: u64) -> Result<Value, Error> {
        self.policy(held)?;
        let mut profile = Map::new();
        let mut add = |name: &str, value: Value| drop(profile.insert(name.to_owned(), value));
        add("defaultAction", json!(self.default_action));
        if let Some(errno) = self.default_errno_ret {
            add("defaultErrnoRet", json!(errno));
        }
        add("architectures", json!(self.architecture_names()));
        if let Some(flags) = &self.flags {
            add("flags", json!(flags));
        }
        let calls = self.syscalls.iter().filter(|call| call.is_meant(held));
        add("syscalls", json!(calls.map(SyscallRule::oci).collect::<Vec<_>>()));
        Ok(Value::Object(profile))
    }

    /// Those listed, and of a map those of this machine, as Docker and containers/common have it.
    fn architecture_names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.architectures.iter().map(String::as_str).collect();
        for map in self.arch_map.iter().filter(|map| Abi::from_name(&map.architecture) == Some(NATIVE)) {
            names.push(&map.architecture);
            names.extend(map.sub_architectures.iter().flatten().map(String::as_str));
        }
        names
    }
}

impl SyscallRule {
    pub(super) fn is_meant(&self, held: u64) -> bool {
        self.includes.as_ref().is_none_or(|condition| condition.holds(held))
            && !self.excludes.as_ref().is_some_and(|condition| condition.touches(held))
    }

    fn oci(&self) -> Value {
        let names: Vec<&String> = self.names.iter().chain(&self.name).collect();
        let mut call = json!({ "names": names, "action": self.action });
        if let Some(fields) = call.as_object_mut() {
            if let Some(errno) = self.errno_ret {
                fields.insert("errnoRet".to_owned(), json!(errno));
            }
            let args: Vec<Value> = self.args.iter().flatten().map(Arg::oci).collect();
            if !args.is_empty() {
                fields.insert("args".to_owned(), json!(args));
            }
        }
        call
    }
}

impl Arg {
    fn oci(&self) -> Value {
        json!({ "index": self.index, "value": self.value, "valueTwo": self.value_two, "op": self.op })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn oci(text: &str, held: u64) -> Value {
        Profile::parse(text).unwrap().oci(held).unwrap()
    }

    #[test]
    fn conditions_are_decided_and_the_rest_stays() {
        let text = r#"{"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 1,
            "archMap": [{"architecture": "SCMP_ARCH_X86_64", "subArchitectures": ["SCMP_ARCH_X86"]},
                        {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": ["SCMP_ARCH_ARM"]}],
            "syscalls": [
                {"names": ["read", "write"], "action": "SCMP_ACT_ALLOW"},
                {"names": ["mount"], "action": "SCMP_ACT_ALLOW", "includes": {"caps": ["CAP_SYS_ADMIN"]}},
                {"names": ["clone"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38, "excludes": {"caps": ["CAP_SYS_ADMIN"]},
                 "args": [{"index": 0, "value": 2114060288, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}]}
            ]}"#;
        let poor = oci(text, 0);
        assert_eq!(poor["defaultErrnoRet"], 1);
        assert_eq!(poor["architectures"].as_array().unwrap().len(), 2);
        assert_eq!(poor["syscalls"].as_array().unwrap().len(), 2);
        assert_eq!(poor["syscalls"][0], json!({"names": ["read", "write"], "action": "SCMP_ACT_ALLOW"}));
        assert_eq!(poor["syscalls"][1]["errnoRet"], 38);
        assert_eq!(poor["syscalls"][1]["args"][0]["value"], 2_114_060_288_u64);
        let rich = oci(text, 1 << 21);
        assert_eq!(rich["syscalls"][1]["names"], json!(["mount"]));
        assert!(!rich.to_string().contains("includes"));
    }

    #[test]
    fn what_our_own_filter_refuses_is_refused() {
        let text = r#"{"defaultAction": "SCMP_ACT_NOTIFY", "syscalls": []}"#;
        assert!(matches!(Profile::parse(text).unwrap().oci(0), Err(Error::Action(_))));
    }
}
