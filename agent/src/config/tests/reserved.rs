//! What `enforceNodeAllocatable` takes, and upstream's words for what it does not.

use super::{loaded, refusal, words};

const HEAD: &str = "failed to validate kubelet configuration, error: ";

fn invalid(flags: &str) -> String {
    let told = refusal(flags);
    told.strip_prefix(HEAD).unwrap_or(&told).replace("invalid configuration: ", "")
}

#[test]
fn a_level_of_daemons_needs_the_name_of_their_cgroup() {
    for whose in ["system", "kube"] {
        for kind in ["", "-compressible"] {
            assert_eq!(
                invalid(&format!("--enforce-node-allocatable=pods,{whose}-reserved{kind}")),
                format!(
                    "{whose}ReservedCgroup (--{whose}-reserved-cgroup) must be specified when \"{whose}-reserved\" or \
                     \"{whose}-reserved-compressible\" included in enforceNodeAllocatable (--enforce-node-allocatable)"
                )
            );
            loaded(&words(&format!(
                "--enforce-node-allocatable=pods,{whose}-reserved{kind} --{whose}-reserved-cgroup=/x"
            )));
        }
    }
}

#[test]
fn daemons_are_held_to_all_or_to_what_is_compressible() {
    for whose in ["system", "kube"] {
        assert_eq!(
            invalid(&format!(
                "--enforce-node-allocatable={whose}-reserved,{whose}-reserved-compressible \
                 --{whose}-reserved-cgroup=/x"
            )),
            format!(
                "both \"{whose}-reserved\" and \"{whose}-reserved-compressible\" cannot be specified together in \
                 enforceNodeAllocatable (--enforce-node-allocatable)"
            )
        );
    }
}
