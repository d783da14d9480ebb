//! Manifests, indexes and image configs.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| gantry_image::fuzzing::manifest(data));
