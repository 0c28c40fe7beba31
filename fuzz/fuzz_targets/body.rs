//! A body in chunks.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| evring_httpd::fuzzing::body(bytes));
