//! What the unpacker says.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| gantry_unpack::fuzzing::messages(data));
