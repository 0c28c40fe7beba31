//! A body in chunks.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| httpd::fuzzing::body(bytes));
