//! CRI requests to what the monitor is told.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| gantry_shim::fuzzing::spec(data));
