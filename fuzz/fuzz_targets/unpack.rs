//! A layer's archive into a folder; wants TMPDIR in memory, and to write nowhere else.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| gantry_unpack::fuzzing::unpack(data));
