//! Fuzzes the parser of request heads.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| evring_httpd::fuzzing::head(bytes));
