//! A ring that the kernel refuses to enter. The only test of its process, whose only ring it replaces.

mod support;

use std::fs::{self, File};
use std::os::fd::AsRawFd;

use flexsc_rt::{Call, Config, Executor};
use support::{complete, post, register};

fn ring_descriptor() -> Option<i32> {
    let all = fs::read_dir("/proc/self/fd").unwrap().filter_map(Result::ok);
    let is_ring = |path: &std::path::Path| path.to_string_lossy().contains("io_uring");
    let mut rings = all.filter(|entry| fs::read_link(entry.path()).is_ok_and(|to| is_ring(&to)));
    rings.next()?.file_name().to_str()?.parse().ok()
}

#[test]
fn calls_in_place_were_made_again_after_a_failed_entry() {
    let mut pages = register(Config::default());
    let on_ring =
        Call::bounded(libc::SYS_close, [usize::MAX, 0, 0, 0, 0, 0]).pinned(Executor::Ring);
    let in_place = Call::bounded(libc::SYS_getpid, [0; 6]).pinned(Executor::InPlace);
    let id = post(&mut pages, &on_ring);
    complete(&mut pages, id).unwrap_err();
    let Some(ring) = ring_descriptor() else { return println!("not tested: there is no io_uring") };
    let null = File::open("/dev/null").unwrap();
    // SAFETY: both are open; only the pages use the ring.
    assert_eq!(unsafe { libc::dup2(null.as_raw_fd(), ring) }, ring);
    for made in 1..3 {
        let id = post(&mut pages, &in_place);
        post(&mut pages, &on_ring);
        let error = pages.wait(None).unwrap_err();
        assert!(error.to_string().contains("enter io_uring"), "{error}");
        let completions: Vec<_> = std::iter::from_fn(|| pages.next()).collect();
        assert_eq!(completions.iter().map(|done| done.id).collect::<Vec<_>>(), [id]);
        assert_eq!(pages.counters().in_place, made);
    }
}
