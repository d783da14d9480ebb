//! WWW-Authenticate and docker's config.json.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| gantry_image::fuzzing::credentials(data));
