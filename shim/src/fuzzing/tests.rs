//! Every input that is kept, through its target: a finding that was mended stays so. The corpus is what
//! `cargo xtask fuzz` found to be worth keeping, and the findings themselves.

use std::path::Path;

use crate::image::tests::require_root;

fn replay(name: &str, target: fn(&[u8])) {
    // Not env!: checkouts that share a target folder share this binary.
    let folder = std::env::var_os("CARGO_MANIFEST_DIR").unwrap();
    let folder = Path::new(&folder).join("../fuzz/corpus").join(name);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let mut inputs = 0;
    for entry in entries {
        target(&std::fs::read(entry.unwrap().path()).unwrap());
        inputs += 1;
    }
    assert!(inputs > 10, "{inputs} inputs in {folder:?}");
}

macro_rules! replays {
    ($($target:ident)*) => {
        $(#[test]
        fn $target() {
            replay(stringify!($target), super::$target);
        })*
    };
}

replays!(layer inflate messages manifest reference hosts credentials spdy websocket spec seccomp);

/// It makes devices.
#[test]
fn unpack() {
    require_root();
    replay("unpack", super::unpack);
}
