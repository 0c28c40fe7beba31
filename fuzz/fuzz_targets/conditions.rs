//! Fuzzes preconditions and content codings.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| evring_httpd::fuzzing::conditions(bytes));
