//! Image names and digests.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| gantry_image::fuzzing::reference(data));
