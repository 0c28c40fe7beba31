//! The whole web server on a simulated machine, with clients that do what the bytes say: every reply is
//! the one that was asked for, and no bound is exceeded.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some(failure) = simulate::run_script(bytes, false).verdict.failure {
        panic!("{failure}");
    }
});
