//! The limit of descriptors, which is usually 1,024.

use std::sync::Once;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises it, as tests have both ends of up to 1,500 connections, and run at the same time.
pub(crate) fn raise() {
    const DESCRIPTORS: u64 = 16_384;
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let limit = getrlimit(Resource::Nofile);
        let wanted = limit.maximum.map_or(DESCRIPTORS, |max| max.min(DESCRIPTORS));
        if limit.current.is_some_and(|now| now < wanted) {
            setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..limit }).unwrap();
        }
    });
}
