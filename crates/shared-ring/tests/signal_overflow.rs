//! Real-time signals as a poller: overflow of the queue. Its limit is the process's, so this test has its
//! own process.

mod pairs;

use std::io::Write;

use pairs::{all, close, pair};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use shared_ring::poller::{Poller, Readiness, RtSig};

#[test]
fn signals_continue_after_an_overflow() {
    let maximum = getrlimit(Resource::Sigpending).maximum;
    setrlimit(Resource::Sigpending, Rlimit { current: Some(0), maximum }).unwrap();
    let mut poller = RtSig::new().unwrap();
    let mut pairs: Vec<_> = (0..5).map(|_| pair()).collect();
    for (fd, theirs) in &mut pairs {
        poller.set(*fd, Readiness::READ).unwrap();
        theirs.write_all(b"x").unwrap();
    }
    let expected: Vec<_> = pairs.iter().map(|(fd, _)| *fd).collect();
    assert_eq!(all(&mut poller), expected, "reported by poll");
    assert_eq!(poller.overflows(), 1);
    // The queue has room again.
    setrlimit(Resource::Sigpending, Rlimit { current: maximum, maximum }).unwrap();
    pairs[3].1.write_all(b"x").unwrap();
    assert_eq!(all(&mut poller), [pairs[3].0]);
    assert_eq!(poller.overflows(), 1);
    pairs.into_iter().for_each(|(fd, _)| close(&mut poller, fd));
}
