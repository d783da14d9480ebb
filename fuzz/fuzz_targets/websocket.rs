//! WebSocket frames, channels and terminal sizes of a streaming client.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| gantry_shim::fuzzing::websocket(data));
