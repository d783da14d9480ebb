//! A registry's hosts.toml.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| gantry_image::fuzzing::hosts(data));
