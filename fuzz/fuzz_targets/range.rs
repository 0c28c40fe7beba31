//! Fuzzes the parser of Range headers.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| evring_httpd::fuzzing::range(bytes));
