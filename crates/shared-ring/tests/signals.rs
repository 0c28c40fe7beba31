//! Real-time signals as a poller: what was queued and no longer holds, and queues that overflow.

use std::io::Write;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use shared_ring::Fd;
use shared_ring::poller::{Poller, Readiness, RtSig};

/// A socket of ours, and the other end.
fn pair() -> (Fd, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    (Fd::from_owned(OwnedFd::from(ours)), theirs)
}

/// Takes a socket back.
fn owned(fd: Fd) -> UnixStream {
    // SAFETY: the number was given up by a pair of these tests, and is given up once.
    unsafe { UnixStream::from_raw_fd(fd.raw()) }
}

/// Closes a socket. The next descriptor that is made by this process may have its number.
fn close(poller: &mut RtSig, fd: Fd) {
    poller.forget(fd);
    drop(owned(fd));
}

/// Closes a socket; the other has its number then.
fn replace(poller: &mut RtSig, fd: Fd, by: UnixStream) {
    poller.forget(fd);
    let mut number = OwnedFd::from(owned(fd));
    rustix::io::dup2(&by, &mut number).unwrap();
    assert_eq!(Fd::from_owned(number).raw(), fd.raw());
}

/// All that the poller says, until no signal is left.
fn all(poller: &mut RtSig) -> Vec<Fd> {
    let mut all = Vec::new();
    loop {
        let (mut out, stale) = (Vec::new(), poller.stale());
        poller.wait(Some(Duration::ZERO), &mut out).unwrap();
        if out.is_empty() && poller.stale() == stale {
            return all;
        }
        all.extend(out.iter().map(|(fd, _)| *fd));
    }
}

#[test]
fn one_signal_is_taken_at_a_time() {
    let mut poller = RtSig::new().unwrap();
    let mut pairs: Vec<_> = (0..3).map(|_| pair()).collect();
    for (fd, theirs) in &mut pairs {
        poller.set(*fd, Readiness::READ).unwrap();
        theirs.write_all(b"x").unwrap();
    }
    for (fd, _) in pairs {
        let mut out = Vec::new();
        poller.wait(Some(Duration::ZERO), &mut out).unwrap();
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

/// The queue's bound is the process's, so it is lowered in one of its own.
#[test]
fn an_overflow_is_made_up_for_and_signals_go_on() {
    const CHILD: &str = "SIGNALS_TEST_CHILD";
    if std::env::var_os(CHILD).is_none() {
        let name = "an_overflow_is_made_up_for_and_signals_go_on";
        let child = Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact", "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
        return;
    }
    let maximum = getrlimit(Resource::Sigpending).maximum;
    setrlimit(Resource::Sigpending, Rlimit { current: Some(0), maximum }).unwrap();
    let mut poller = RtSig::new().unwrap();
    let mut pairs: Vec<_> = (0..5).map(|_| pair()).collect();
    for (fd, theirs) in &mut pairs {
        poller.set(*fd, Readiness::READ).unwrap();
        theirs.write_all(b"x").unwrap();
    }
    let expected: Vec<_> = pairs.iter().map(|(fd, _)| *fd).collect();
    assert_eq!(all(&mut poller), expected, "as poll tells");
    assert_eq!(poller.overflows(), 1);
    // There is room again.
    setrlimit(Resource::Sigpending, Rlimit { current: maximum, maximum }).unwrap();
    pairs[3].1.write_all(b"x").unwrap();
    assert_eq!(all(&mut poller), [pairs[3].0]);
    assert_eq!(poller.overflows(), 1);
    pairs.into_iter().for_each(|(fd, _)| close(&mut poller, fd));
}
