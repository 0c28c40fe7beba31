//! Fuzzes the resolution of request targets to paths.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| evring_httpd::fuzzing::path(bytes));
