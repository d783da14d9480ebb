//! A layer's archive, entry by entry.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| gantry_unpack::fuzzing::layer(data));
