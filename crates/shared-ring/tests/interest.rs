//! Banga, Mogul and Druschel's interface, one test for each rule, on the real kernel.

use std::error::Error as _;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use rustix::net::{SendFlags, send};
use shared_ring::interest::{
    Error, Event, Interests, Mask, ProcessWide, declare_interest, get_next_event,
};

const NOW: Option<Duration> = Some(Duration::ZERO);

/// Creates a non-blocking socket and its peer.
fn pair() -> (UnixStream, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    (ours, theirs)
}

fn pairs(n: usize) -> Vec<(UnixStream, UnixStream)> {
    (0..n).map(|_| pair()).collect()
}

/// Returns the available events, at most `room`, in one call.
fn events(interests: &mut Interests, room: usize) -> Vec<(RawFd, Mask)> {
    let mut array = vec![Event::default(); room];
    let n = interests.get_next_event(&mut array, NOW).unwrap();
    array[..n].iter().map(|event| (event.fd, event.mask)).collect()
}

fn numbers(interests: &mut Interests, room: usize) -> Vec<RawFd> {
    events(interests, room).into_iter().map(|(fd, _)| fd).collect()
}

fn declare(interests: &mut Interests, fd: impl AsFd, mask: Mask) {
    interests.declare_interest(fd, mask, None).unwrap();
}

#[test]
fn events_are_reported_in_order() {
    let mut interests = Interests::new().unwrap();
    let mut pairs = pairs(5);
    for (ours, _) in &pairs {
        declare(&mut interests, ours, Mask::READ);
    }
    let order = [3, 0, 4, 1, 2];
    for at in order {
        pairs[at].1.write_all(b"x").unwrap();
    }
    let expected = order.map(|at| pairs[at].0.as_raw_fd());
    assert_eq!(numbers(&mut interests, 2), expected[..2]);
    assert_eq!(numbers(&mut interests, 64), expected[2..], "and it does not wait for more");
    assert_eq!(numbers(&mut interests, 64), [], "an event is reported once");
}

#[test]
fn events_of_one_descriptor_are_coalesced() {
    let mut interests = Interests::new().unwrap();
    let (ours, mut theirs) = pair();
    declare(&mut interests, &ours, Mask::READ);
    for _ in 0..100 {
        theirs.write_all(b"x").unwrap();
    }
    assert_eq!(events(&mut interests, 64), [(ours.as_raw_fd(), Mask::READ)]);
    assert_eq!(events(&mut interests, 64), []);
}

#[test]
fn mask_is_the_current_state_and_stale_events_are_dropped() {
    let mut interests = Interests::new().unwrap();
    let (mut ours, mut theirs) = pair();
    let (other, mut peer) = pair();
    declare(&mut interests, &ours, Mask::READ);
    declare(&mut interests, &other, Mask::READ | Mask::WRITE);
    theirs.write_all(b"x").unwrap();
    peer.write_all(b"x").unwrap();
    ours.read_exact(&mut [0]).unwrap();
    let both = Mask::READ | Mask::WRITE;
    assert_eq!(events(&mut interests, 64), [(other.as_raw_fd(), both)]);
}

#[test]
fn declaration_returns_the_state_before_any_event() {
    let mut interests = Interests::new().unwrap();
    let (ours, mut theirs) = pair();
    let mut state = Mask::empty();
    interests.declare_interest(&ours, Mask::READ, Some(&mut state)).unwrap();
    assert_eq!(state, Mask::empty());
    theirs.write_all(b"x").unwrap();
    interests.declare_interest(&ours, Mask::READ | Mask::WRITE, Some(&mut state)).unwrap();
    assert_eq!(state, Mask::READ | Mask::WRITE);
    interests.declare_interest(&ours, Mask::READ, Some(&mut state)).unwrap();
    assert_eq!(state, Mask::READ, "limited to the declared states");
    interests.declare_interest(&ours, Mask::empty(), Some(&mut state)).unwrap();
    assert_eq!(state, Mask::READ | Mask::WRITE, "all states with an empty mask");
}

#[test]
fn revoked_interest_causes_no_events_until_declared_again() {
    let mut interests = Interests::new().unwrap();
    let (ours, mut theirs) = pair();
    declare(&mut interests, &ours, Mask::READ);
    declare(&mut interests, &ours, Mask::empty());
    theirs.write_all(b"x").unwrap();
    assert_eq!(events(&mut interests, 64), []);
    declare(&mut interests, &ours, Mask::READ);
    assert_eq!(events(&mut interests, 64), [(ours.as_raw_fd(), Mask::READ)]);
}

#[test]
fn exceptions_are_urgent_data() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let theirs = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let ours = listener.accept().unwrap().0;
    let mut interests = Interests::new().unwrap();
    declare(&mut interests, &ours, Mask::EXCEPT);
    assert_eq!(send(&theirs, b"!", SendFlags::OOB), Ok(1));
    let mut array = [Event::default(); 4];
    let n = interests.get_next_event(&mut array, None).unwrap();
    assert_eq!(array[..n], [Event { fd: ours.as_raw_fd(), mask: Mask::EXCEPT }]);
}

#[test]
fn broken_connection_reports_all_declared_states() {
    let mut interests = Interests::new().unwrap();
    let all = pairs(3);
    let masks = [Mask::READ, Mask::WRITE, Mask::READ | Mask::WRITE];
    for ((ours, _), mask) in all.iter().zip(masks) {
        declare(&mut interests, ours, mask);
    }
    events(&mut interests, 64);
    let (ours, theirs): (Vec<_>, Vec<_>) = all.into_iter().unzip();
    drop(theirs);
    let expected: Vec<_> = ours.iter().map(AsRawFd::as_raw_fd).zip(masks).collect();
    assert_eq!(events(&mut interests, 64), expected);
}

#[test]
fn closing_ends_the_interest_even_if_the_number_is_reused() {
    let mut interests = Interests::new().unwrap();
    let (ours, mut theirs) = pair();
    declare(&mut interests, &ours, Mask::READ);
    theirs.write_all(b"x").unwrap();
    // Another file, without interest, gets the number.
    let (next, mut peer) = pair();
    peer.write_all(b"x").unwrap();
    let mut number = OwnedFd::from(ours);
    rustix::io::dup2(&next, &mut number).unwrap();
    assert_eq!(events(&mut interests, 64), []);
    // It can be declared like any other.
    declare(&mut interests, &number, Mask::READ);
    assert_eq!(events(&mut interests, 64), [(number.as_raw_fd(), Mask::READ)]);
}

#[test]
fn scan_after_an_overflow_skips_closed_descriptors() {
    let mut interests = Interests::with_hints(1).unwrap();
    let mut all = pairs(3);
    for (ours, theirs) in &mut all {
        declare(&mut interests, &*ours, Mask::READ);
        theirs.write_all(b"x").unwrap();
    }
    let (first, _first_peer) = all.remove(0);
    // The number is reused for another file.
    let (next, mut peer) = pair();
    peer.write_all(b"x").unwrap();
    let mut number = OwnedFd::from(first);
    rustix::io::dup2(&next, &mut number).unwrap();
    // Scans go by number, which other tests' files may have put out of order.
    let mut expected: Vec<_> = all.iter().map(|(ours, _)| ours.as_raw_fd()).collect();
    expected.sort_unstable();
    assert_eq!(numbers(&mut interests, 64), expected);
    assert_eq!(interests.overflows(), 1);
}

#[test]
fn overflow_is_followed_by_a_scan_in_descriptor_order() {
    let mut interests = Interests::with_hints(4).unwrap();
    let mut all = pairs(10);
    for (ours, _) in &all {
        declare(&mut interests, ours, Mask::READ);
    }
    for (_, theirs) in all.iter_mut().rev() {
        theirs.write_all(b"x").unwrap();
    }
    let mut expected: Vec<_> = all.iter().map(|(ours, _)| ours.as_raw_fd()).collect();
    expected.sort_unstable();
    assert_eq!(numbers(&mut interests, 64), expected);
    assert_eq!(interests.overflows(), 1);
    // Hints work again.
    all[7].0.read_exact(&mut [0]).unwrap();
    all[7].1.write_all(b"x").unwrap();
    assert_eq!(numbers(&mut interests, 4), [all[7].0.as_raw_fd()]);
    assert_eq!(interests.overflows(), 1);
}

#[test]
fn scan_after_an_overflow_visits_all_before_any_twice() {
    // Two events per call, but room for one hint: each call that takes hints from the kernel overflows.
    let mut interests = Interests::with_hints(1).unwrap();
    let mut all = pairs(7);
    for (ours, theirs) in &mut all {
        declare(&mut interests, &*ours, Mask::READ);
        theirs.write_all(b"x").unwrap();
    }
    let mut turns = Vec::new();
    while turns.len() < 7 {
        turns.extend(numbers(&mut interests, 2));
    }
    turns.sort_unstable();
    let mut each: Vec<_> = all.iter().map(|(ours, _)| ours.as_raw_fd()).collect();
    each.sort_unstable();
    assert_eq!(turns, each);
}

#[test]
fn call_waits_for_the_first_event_or_the_timeout() {
    let mut interests = Interests::new().unwrap();
    let (ours, mut theirs) = pair();
    declare(&mut interests, &ours, Mask::READ);
    let mut array = [Event::default(); 4];
    let soon = Some(Duration::from_millis(1));
    assert_eq!(interests.get_next_event(&mut array, soon).unwrap(), 0);
    let writer = thread::spawn(move || theirs.write_all(b"x").map(|()| theirs));
    assert_eq!(interests.get_next_event(&mut array, None).unwrap(), 1);
    writer.join().unwrap().unwrap();
}

#[test]
fn each_interested_thread_is_notified() {
    let (ours, mut theirs) = pair();
    let ready = Barrier::new(3);
    thread::scope(|scope| {
        let threads = [(); 2].map(|()| {
            scope.spawn(|| {
                declare_interest(&ours, Mask::READ, None).unwrap();
                ready.wait();
                let mut array = [Event::default(); 4];
                let n = get_next_event(&mut array, None).unwrap();
                array[..n].to_vec()
            })
        });
        ready.wait();
        theirs.write_all(b"x").unwrap();
        for thread in threads {
            let expected = Event { fd: ours.as_raw_fd(), mask: Mask::READ };
            assert_eq!(thread.join().unwrap(), [expected]);
        }
    });
}

/// Two threads wait for the same descriptor; each event wakes one of them, which consumes it.
fn one_thread_is_notified(prepare: impl Fn(&UnixStream) -> Interests + Sync) {
    const EVENTS: usize = 50;
    let (ours, mut theirs) = pair();
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..2 {
            let (sender, ours, prepare) = (sender.clone(), &ours, &prepare);
            scope.spawn(move || {
                let mut interests = prepare(ours);
                let mut array = [Event::default(); 4];
                loop {
                    let n = interests.get_next_event(&mut array, None).unwrap();
                    assert_eq!(n, 1);
                    // The other thread may have read first.
                    let mut bytes = [0; 8];
                    match (&*ours).read(&mut bytes) {
                        Ok(0) => return,
                        Ok(n) => sender.send(n).unwrap(),
                        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
                    }
                }
            });
        }
        for _ in 0..EVENTS {
            theirs.write_all(b"x").unwrap();
            assert_eq!(receiver.recv(), Ok(1), "each event is consumed once");
        }
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        // Both observe the end, as it is still true for the second one.
        drop(theirs);
    });
}

#[test]
fn with_wake_one_no_event_is_lost() {
    one_thread_is_notified(|ours| {
        let mut interests = Interests::new().unwrap();
        declare(&mut interests, ours, Mask::READ | Mask::WAKE_ONE);
        interests
    });
}

#[test]
fn processwide_interest_holds_for_earlier_and_later_threads() {
    let process = Arc::new(ProcessWide::new().unwrap());
    let mut before = process.join(64).unwrap();
    let (ours, mut theirs) = pair();
    let mut state = Mask::WRITE;
    process.declare_interest(&ours, Mask::READ, Some(&mut state)).unwrap();
    assert_eq!(state, Mask::empty());
    let mut after = process.join(64).unwrap();
    theirs.write_all(b"x").unwrap();
    let event = (ours.as_raw_fd(), Mask::READ);
    assert_eq!(events(&mut before, 4), [event]);
    assert_eq!(events(&mut after, 4), [event], "it was not read yet");
    process.declare_interest(&ours, Mask::empty(), None).unwrap();
    theirs.write_all(b"x").unwrap();
    assert_eq!((events(&mut before, 4), events(&mut after, 4)), (vec![], vec![]));
    process.declare_interest(&ours, Mask::READ, None).unwrap();
    assert_eq!(events(&mut before, 4), [event]);
}

#[test]
fn thread_could_not_join_while_a_descriptor_was_closed() {
    let process = Arc::new(ProcessWide::new().unwrap());
    for _ in 0..20 {
        let declared: Vec<_> = (0..200)
            .map(|_| {
                let (ours, _) = UnixStream::pair().unwrap();
                process.declare_interest(&ours, Mask::READ, None).unwrap();
                ours
            })
            .collect();
        let closing = thread::spawn(move || drop(declared));
        while !closing.is_finished() {
            process.join(64).expect("closed descriptors are skipped");
        }
        closing.join().unwrap();
    }
}

#[test]
fn processwide_event_goes_to_one_thread() {
    let process = Arc::new(ProcessWide::new().unwrap());
    one_thread_is_notified(|ours| {
        process.declare_interest(ours, Mask::READ, None).unwrap();
        process.join(64).unwrap()
    });
}

#[test]
fn processwide_interest_ends_when_its_number_is_reused() {
    let process = Arc::new(ProcessWide::new().unwrap());
    let (ours, _theirs) = pair();
    process.declare_interest(&ours, Mask::READ, None).unwrap();
    let (next, mut peer) = pair();
    peer.write_all(b"x").unwrap();
    let mut number = OwnedFd::from(ours);
    rustix::io::dup2(&next, &mut number).unwrap();
    let mut thread = process.join(64).unwrap();
    assert_eq!(events(&mut thread, 4), []);
    // A thread's own interest in the new file does not include it.
    declare(&mut thread, &number, Mask::WRITE);
    assert_eq!(events(&mut thread, 4), [(number.as_raw_fd(), Mask::WRITE)]);
}

/// The declared file stays open under another number, and its hints name the old one.
#[test]
fn scan_ends_a_processwide_interest_of_a_reused_number() {
    let process = Arc::new(ProcessWide::new().unwrap());
    let mut thread = process.join(1).unwrap();
    let [(first, mut first_peer), (second, mut second_peer)] = [pair(), pair()];
    for ours in [&first, &second] {
        process.declare_interest(ours, Mask::READ, None).unwrap();
    }
    first_peer.write_all(b"x").unwrap();
    second_peer.write_all(b"x").unwrap();
    let _duplicate = first.try_clone().unwrap();
    let (next, mut theirs) = pair();
    theirs.write_all(b"x").unwrap();
    let mut number = OwnedFd::from(first);
    rustix::io::dup2(&next, &mut number).unwrap();
    assert_eq!(events(&mut thread, 4), [(second.as_raw_fd(), Mask::READ)]);
    assert_eq!(thread.overflows(), 1, "all were scanned");
    first_peer.write_all(b"x").unwrap();
    assert_eq!(events(&mut thread, 4), [], "the new file was not declared");
}

#[test]
fn own_interest_returned_with_a_processwide_one_in_a_reused_number() {
    let process = Arc::new(ProcessWide::new().unwrap());
    let mut thread = process.join(64).unwrap();
    let (ours, _theirs) = pair();
    declare(&mut thread, &ours, Mask::WRITE);
    assert_eq!(events(&mut thread, 4), [(ours.as_raw_fd(), Mask::WRITE)]);
    let (next, mut peer) = pair();
    let mut number = OwnedFd::from(ours);
    rustix::io::dup2(&next, &mut number).unwrap();
    process.declare_interest(&number, Mask::READ, None).unwrap();
    assert_eq!(events(&mut thread, 4), [], "it is writable, but has no such interest");
    peer.write_all(b"x").unwrap();
    assert_eq!(events(&mut thread, 4), [(number.as_raw_fd(), Mask::READ)]);
    // Its own interest in the new file stays.
    declare(&mut thread, &number, Mask::WRITE);
    process.declare_interest(&number, Mask::READ, None).unwrap();
    let both = Mask::READ | Mask::WRITE;
    assert_eq!(events(&mut thread, 4), [(number.as_raw_fd(), both)]);
}

#[test]
fn concurrent_own_and_processwide_interests_both_hold() {
    for _ in 0..20 {
        let process = Arc::new(ProcessWide::new().unwrap());
        let mut own = process.join(256).unwrap();
        let pairs = pairs(150);
        let arrived = AtomicUsize::new(0);
        let together = |step: usize| {
            arrived.fetch_add(1, Ordering::AcqRel);
            while arrived.load(Ordering::Acquire) < 2 * (step + 1) {
                thread::yield_now();
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                for (step, (ours, _)) in pairs.iter().enumerate() {
                    together(step);
                    process.declare_interest(ours, Mask::READ, None).unwrap();
                }
            });
            for (step, (ours, _)) in pairs.iter().enumerate() {
                together(step);
                declare(&mut own, ours, Mask::WRITE);
            }
        });
        let mut check = |mask: Mask| {
            let mut events = events(&mut own, 256);
            events.sort_by_key(|(fd, _)| *fd);
            let mut expected: Vec<_> =
                pairs.iter().map(|(ours, _)| (ours.as_raw_fd(), mask)).collect();
            expected.sort_by_key(|(fd, _)| *fd);
            assert_eq!(events, expected);
        };
        check(Mask::WRITE);
        pairs.iter().for_each(|(_, theirs)| (&*theirs).write_all(b"x").unwrap());
        check(Mask::READ | Mask::WRITE);
    }
}

#[test]
fn own_wake_one_interest_ended_with_a_processwide_declaration() {
    let process = Arc::new(ProcessWide::new().unwrap());
    let mut own = process.join(64).unwrap();
    let (ours, mut theirs) = pair();
    declare(&mut own, &ours, Mask::WRITE | Mask::WAKE_ONE);
    process.declare_interest(&ours, Mask::READ, None).unwrap();
    // Fill the send buffer.
    let mut sent = 0;
    while let Ok(n) = (&ours).write(&[0; 4096]) {
        sent += n;
    }
    assert_eq!(events(&mut own, 4), []);
    theirs.read_exact(&mut vec![0; sent]).unwrap();
    assert_eq!(events(&mut own, 4), [(ours.as_raw_fd(), Mask::WRITE)]);
}

#[test]
fn invalid_calls_are_rejected() {
    let mut interests = Interests::new().unwrap();
    let error = interests.get_next_event(&mut [], NOW).unwrap_err();
    assert!(matches!(error, Error::EmptyArray), "{error}");
    let (ours, _theirs) = pair();
    let error = interests.declare_interest(&ours, Mask::EXCEPT | Mask::WAKE_ONE, None).unwrap_err();
    assert!(matches!(error, Error::ExceptWithWakeOne), "{error}");
    let process = ProcessWide::new().unwrap();
    let error = process.declare_interest(&ours, Mask::EXCEPT, None).unwrap_err();
    assert!(matches!(error, Error::ExceptWithWakeOne), "{error}");
    let file = tempfile::tempfile().unwrap();
    let error = interests.declare_interest(&file, Mask::READ, None).unwrap_err();
    assert!(error.to_string().starts_with("epoll_ctl: "), "{error}");
    let reason = error.source().and_then(|error| error.downcast_ref::<io::Error>()).unwrap();
    assert_eq!(reason.raw_os_error(), Some(libc::EPERM));
    assert!(Error::EmptyArray.source().is_none(), "it has no cause");
    assert_eq!(events(&mut interests, 4), [], "and the interests stay usable");
}
