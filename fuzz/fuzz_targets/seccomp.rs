//! Seccomp profiles to programs of the kernel's.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| gantry_shim::fuzzing::seccomp(data));
