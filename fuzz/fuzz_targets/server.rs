//! Fuzzes the web server on a simulated machine, with clients scripted by the bytes: every reply
//! matches its request, and no bound is exceeded.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some(failure) = simulate::run_script(bytes, false).verdict.failure {
        panic!("{failure}");
    }
});
