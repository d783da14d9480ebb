//! What the unpacker and a monitor say.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| gantry_shim::fuzzing::messages(data));
