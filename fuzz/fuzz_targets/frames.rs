//! What a monitor and a runtime say to each other.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| gantry_monitor::fuzzing::frames(data));
