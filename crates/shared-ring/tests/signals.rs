//! Real-time signals as a poller: stale signals.

mod pairs;

use std::io::Write;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use pairs::{all, close, owned, pair};
use shared_ring::Fd;
use shared_ring::poller::{Poller, Readiness, RtSig};

/// Closes a socket and gives its number to another one.
fn replace(poller: &mut RtSig, fd: Fd, by: UnixStream) {
    poller.forget(fd);
    let mut number = OwnedFd::from(owned(fd));
    rustix::io::dup2(&by, &mut number).unwrap();
    assert_eq!(number.into_raw_fd(), fd.raw());
}

#[test]
fn blocking_wait_takes_one_signal() {
    let mut poller = RtSig::new().unwrap();
    let mut pairs: Vec<_> = (0..3).map(|_| pair()).collect();
    for (fd, theirs) in &mut pairs {
        poller.set(*fd, Readiness::READ).unwrap();
        theirs.write_all(b"x").unwrap();
    }
    for (fd, _) in pairs {
        let mut out = Vec::new();
        poller.wait(None, &mut out).unwrap();
        assert_eq!(out.len(), 1);
        assert_eq!(out[0].0, fd);
        close(&mut poller, fd);
    }
}

#[test]
fn readiness_before_registration_is_reported() {
    let mut poller = RtSig::new().unwrap();
    let (fd, mut theirs) = pair();
    theirs.write_all(b"x").unwrap();
    poller.set(fd, Readiness::READ).unwrap();
    assert_eq!(all(&mut poller), [fd]);
    close(&mut poller, fd);
}

#[test]
fn stale_signal_is_not_reported_for_a_reused_number() {
    let mut poller = RtSig::new().unwrap();
    let (fd, mut theirs) = pair();
    // More rounds than marks, so that marks are reused.
    for round in 1..=10 {
        poller.set(fd, Readiness::READ).unwrap();
        theirs.write_all(b"x").unwrap();
        // While its signal is queued, the number becomes that of another file.
        let (ours, peer) = UnixStream::pair().unwrap();
        replace(&mut poller, fd, ours);
        theirs = peer;
        poller.set(fd, Readiness::READ).unwrap();
        assert_eq!(all(&mut poller), [], "round {round}");
        assert_eq!(poller.stale(), round);
    }
    close(&mut poller, fd);
}

#[test]
fn queued_stale_signals_are_detected_after_many_reuses() {
    let mut poller = RtSig::new().unwrap();
    let (fd, mut theirs) = pair();
    for _ in 0..10 {
        poller.set(fd, Readiness::READ).unwrap();
        theirs.write_all(b"x").unwrap();
        let (ours, peer) = UnixStream::pair().unwrap();
        replace(&mut poller, fd, ours);
        theirs = peer;
    }
    poller.set(fd, Readiness::READ).unwrap();
    assert_eq!(all(&mut poller), []);
    assert_eq!(poller.stale(), 10);
    close(&mut poller, fd);
}

#[test]
fn nonblocking_wait_takes_signals_of_all_marks() {
    let mut poller = RtSig::new().unwrap();
    // Its number is reused, so its signals are delivered after those of the others.
    let (late, _theirs) = pair();
    poller.set(late, Readiness::READ).unwrap();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    replace(&mut poller, late, ours);
    poller.set(late, Readiness::READ).unwrap();
    theirs.write_all(b"x").unwrap();
    let mut others: Vec<_> = (0..300).map(|_| pair()).collect();
    for (fd, theirs) in &mut others {
        poller.set(*fd, Readiness::READ).unwrap();
        theirs.write_all(b"x").unwrap();
    }
    let mut out = Vec::new();
    poller.wait(Some(Duration::ZERO), &mut out).unwrap();
    assert_eq!(out.len(), 301);
    assert!(out.iter().any(|(fd, _)| *fd == late));
    others.into_iter().for_each(|(fd, _)| close(&mut poller, fd));
    close(&mut poller, late);
}

#[test]
fn thread_has_one_queue_and_drop_unblocks_its_signals() {
    let blocked = || {
        // SAFETY: zero bytes are a valid signal set, and the call writes one.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: as above; with a null set, the mask does not change.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut set) };
        // SAFETY: the set was just written.
        unsafe { libc::sigismember(&set, libc::SIGIO) == 1 }
    };
    assert!(!blocked());
    let mut poller = RtSig::new().unwrap();
    assert!(blocked());
    assert!(RtSig::new().is_err() && RtSig::probe().is_err());
    let (fd, mut theirs) = pair();
    poller.set(fd, Readiness::READ).unwrap();
    theirs.write_all(b"x").unwrap();
    drop(poller);
    assert!(!blocked());
    theirs.write_all(b"a signal would terminate the process now").unwrap();
    RtSig::probe().unwrap();
    drop(owned(fd));
}
