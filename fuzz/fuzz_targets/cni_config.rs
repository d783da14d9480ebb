//! Network configurations.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| gantry_cni::fuzzing::cni_config(data));
