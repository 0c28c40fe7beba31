//! Fuzzes the decoder of chunked bodies.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| evring_httpd::fuzzing::body(bytes));
