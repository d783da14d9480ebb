//! Every input that is kept, through its target: a finding that was mended stays so. The corpus is what
//! `cargo xtask fuzz` found to be worth keeping, and the findings themselves.

use gantry_shim_testing::corpus::replay;

#[test]
fn spdy() {
    replay("spdy", super::spdy);
}

#[test]
fn websocket() {
    replay("websocket", super::websocket);
}

#[test]
fn spec() {
    replay("spec", super::spec);
}

#[test]
fn seccomp() {
    replay("seccomp", super::seccomp);
}
