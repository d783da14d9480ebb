//! Every input that is kept, through its target.

use gantry_shim_testing::corpus::replay;
use gantry_shim_testing::require_root;

#[test]
fn layer() {
    replay("layer", super::layer);
}

#[test]
fn inflate() {
    replay("inflate", super::inflate);
}

#[test]
fn messages() {
    replay("messages", super::messages);
}

/// It makes devices.
#[test]
fn unpack() {
    require_root();
    replay("unpack", super::unpack);
}
