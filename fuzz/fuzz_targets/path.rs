//! A target and the path it means.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| evring_httpd::fuzzing::path(bytes));
