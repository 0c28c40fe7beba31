//! Real-time signals as a poller: what was queued and no longer holds. Nothing here makes another process,
//! in which a socket that was closed here would live on for a moment, and signal.

mod pairs;

use std::io::Write;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use pairs::{all, close, owned, pair};
use shared_ring::Fd;
use shared_ring::poller::{Poller, Readiness, RtSig};

/// Closes a socket; the other has its number then.
fn replace(poller: &mut RtSig, fd: Fd, by: UnixStream) {
    poller.forget(fd);
    let mut number = OwnedFd::from(owned(fd));
    rustix::io::dup2(&by, &mut number).unwrap();
    assert_eq!(number.into_raw_fd(), fd.raw());
}

#[test]
fn who_waits_takes_one_signal_at_a_time() {
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
fn what_was_there_before_is_told_though_no_signal_does() {
    let mut poller = RtSig::new().unwrap();
    let (fd, mut theirs) = pair();
    theirs.write_all(b"x").unwrap();
    poller.set(fd, Readiness::READ).unwrap();
    assert_eq!(all(&mut poller), [fd]);
    close(&mut poller, fd);
}

#[test]
fn a_stale_signal_does_not_reach_the_next_of_its_number() {
    let mut poller = RtSig::new().unwrap();
    let (fd, mut theirs) = pair();
    // More often than there are marks, so that they have to be used again.
    for round in 1..=10 {
        poller.set(fd, Readiness::READ).unwrap();
        theirs.write_all(b"x").unwrap();
        // Its signal waits; meanwhile the number becomes another file's.
        let (ours, its) = UnixStream::pair().unwrap();
        replace(&mut poller, fd, ours);
        theirs = its;
        poller.set(fd, Readiness::READ).unwrap();
        assert_eq!(all(&mut poller), [], "round {round}");
        assert_eq!(poller.stale(), round);
    }
    close(&mut poller, fd);
}

#[test]
fn stale_signals_of_many_lives_are_known_though_none_was_taken() {
    let mut poller = RtSig::new().unwrap();
    let (fd, mut theirs) = pair();
    for _ in 0..10 {
        poller.set(fd, Readiness::READ).unwrap();
        theirs.write_all(b"x").unwrap();
        let (ours, its) = UnixStream::pair().unwrap();
        replace(&mut poller, fd, ours);
        theirs = its;
    }
    poller.set(fd, Readiness::READ).unwrap();
    assert_eq!(all(&mut poller), []);
    assert_eq!(poller.stale(), 10);
    close(&mut poller, fd);
}

#[test]
fn who_does_not_wait_is_told_of_all_whatever_their_marks() {
    let mut poller = RtSig::new().unwrap();
    // Its number is used for the second time, and its signals come after those of all others.
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
fn a_thread_has_one_queue_and_gets_its_signals_back_when_it_goes() {
    let blocked = || {
        // SAFETY: zero bytes are a valid signal set, and the call writes one.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: as above; with no set to change, nothing changes.
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
    theirs.write_all(b"a signal that came now would end the process").unwrap();
    RtSig::probe().unwrap();
    drop(owned(fd));
}
