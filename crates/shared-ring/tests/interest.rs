//! Banga, Mogul and Druschel's interface, rule by rule, on the real kernel.

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

/// A socket of ours, and the other end.
fn pair() -> (UnixStream, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    (ours, theirs)
}

fn pairs(n: usize) -> Vec<(UnixStream, UnixStream)> {
    (0..n).map(|_| pair()).collect()
}

/// The events that are there, at most `room` in one call.
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
fn events_come_in_the_order_in_which_they_happened() {
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
    assert_eq!(numbers(&mut interests, 64), [], "an event is told once");
}

#[test]
fn many_happenings_of_one_descriptor_are_one_event() {
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
fn a_mask_is_the_state_at_the_call_and_what_is_no_longer_true_is_not_reported() {
    let mut interests = Interests::new().unwrap();
    let (mut ours, mut theirs) = pair();
    let (other, mut its) = pair();
    declare(&mut interests, &ours, Mask::READ);
    declare(&mut interests, &other, Mask::READ | Mask::WRITE);
    theirs.write_all(b"x").unwrap();
    its.write_all(b"x").unwrap();
    ours.read_exact(&mut [0]).unwrap();
    let both = Mask::READ | Mask::WRITE;
    assert_eq!(events(&mut interests, 64), [(other.as_raw_fd(), both)]);
}

#[test]
fn the_state_at_declaration_is_that_before_any_event() {
    let mut interests = Interests::new().unwrap();
    let (ours, mut theirs) = pair();
    let mut state = Mask::empty();
    interests.declare_interest(&ours, Mask::READ, Some(&mut state)).unwrap();
    assert_eq!(state, Mask::empty());
    theirs.write_all(b"x").unwrap();
    interests.declare_interest(&ours, Mask::READ | Mask::WRITE, Some(&mut state)).unwrap();
    assert_eq!(state, Mask::READ | Mask::WRITE);
    interests.declare_interest(&ours, Mask::READ, Some(&mut state)).unwrap();
    assert_eq!(state, Mask::READ, "it tells of what is declared");
    interests.declare_interest(&ours, Mask::empty(), Some(&mut state)).unwrap();
    assert_eq!(state, Mask::READ | Mask::WRITE, "and of everything when nothing is");
}

#[test]
fn revoked_interest_is_silent_until_it_is_declared_again() {
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
fn of_what_is_broken_everything_declared_is_true() {
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
fn closing_ends_the_interest_also_when_the_number_is_used_again() {
    let mut interests = Interests::new().unwrap();
    let (ours, mut theirs) = pair();
    declare(&mut interests, &ours, Mask::READ);
    theirs.write_all(b"x").unwrap();
    // Another file takes the place, and nobody is interested in it.
    let (next, mut its) = pair();
    its.write_all(b"x").unwrap();
    let mut number = OwnedFd::from(ours);
    rustix::io::dup2(&next, &mut number).unwrap();
    assert_eq!(events(&mut interests, 64), []);
    // It is declared as any other.
    declare(&mut interests, &number, Mask::READ);
    assert_eq!(events(&mut interests, 64), [(number.as_raw_fd(), Mask::READ)]);
}

#[test]
fn a_scan_after_an_overflow_leaves_out_what_was_closed() {
    let mut interests = Interests::with_hints(1).unwrap();
    let mut all = pairs(3);
    for (ours, theirs) in &mut all {
        declare(&mut interests, &*ours, Mask::READ);
        theirs.write_all(b"x").unwrap();
    }
    let (first, _its_other_end) = all.remove(0);
    // The number stands for another file now.
    let (next, mut its) = pair();
    its.write_all(b"x").unwrap();
    let mut number = OwnedFd::from(first);
    rustix::io::dup2(&next, &mut number).unwrap();
    // Scanned by number, which other tests' files may have put out of order.
    let mut expected: Vec<_> = all.iter().map(|(ours, _)| ours.as_raw_fd()).collect();
    expected.sort_unstable();
    assert_eq!(numbers(&mut interests, 64), expected);
    assert_eq!(interests.overflows(), 1);
}

#[test]
fn an_overflow_is_followed_by_all_that_is_true_in_the_order_of_descriptors() {
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
    // And hints serve again.
    all[7].0.read_exact(&mut [0]).unwrap();
    all[7].1.write_all(b"x").unwrap();
    assert_eq!(numbers(&mut interests, 4), [all[7].0.as_raw_fd()]);
    assert_eq!(interests.overflows(), 1);
}

#[test]
fn after_an_overflow_none_has_a_second_turn_before_all_had_their_first() {
    // Two at a time, of which one hint is kept: each call that asks the kernel overflows.
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
fn a_call_waits_for_the_first_event_or_until_its_time_is_over() {
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
fn each_interested_thread_is_told() {
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

/// Two threads wait for the same descriptor; each event wakes one of them, who uses it up.
fn one_is_told(prepare: impl Fn(&UnixStream) -> Interests + Sync) {
    const EVENTS: usize = 50;
    let (ours, mut theirs) = pair();
    let (told, hears) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..2 {
            let (told, ours, prepare) = (told.clone(), &ours, &prepare);
            scope.spawn(move || {
                let mut interests = prepare(ours);
                let mut array = [Event::default(); 4];
                loop {
                    let n = interests.get_next_event(&mut array, None).unwrap();
                    assert_eq!(n, 1);
                    // The other may have been quicker.
                    let mut bytes = [0; 8];
                    match (&*ours).read(&mut bytes) {
                        Ok(0) => return,
                        Ok(n) => told.send(n).unwrap(),
                        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
                    }
                }
            });
        }
        for _ in 0..EVENTS {
            theirs.write_all(b"x").unwrap();
            assert_eq!(hears.recv(), Ok(1), "no event is lost, and none is used twice");
        }
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        // Both come to know of the end: what one was woken for is still true for the other.
        drop(theirs);
    });
}

#[test]
fn with_wake_one_no_event_is_lost() {
    one_is_told(|ours| {
        let mut interests = Interests::new().unwrap();
        declare(&mut interests, ours, Mask::READ | Mask::WAKE_ONE);
        interests
    });
}

#[test]
fn a_processwide_interest_is_that_of_threads_before_and_after() {
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
    assert_eq!(events(&mut after, 4), [event], "nobody has read it yet");
    process.declare_interest(&ours, Mask::empty(), None).unwrap();
    theirs.write_all(b"x").unwrap();
    assert_eq!((events(&mut before, 4), events(&mut after, 4)), (vec![], vec![]));
    process.declare_interest(&ours, Mask::READ, None).unwrap();
    assert_eq!(events(&mut before, 4), [event]);
}

#[test]
fn a_thread_could_not_join_while_a_descriptor_was_closed() {
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
            process.join(64).expect("what is closed is no hindrance");
        }
        closing.join().unwrap();
    }
}

#[test]
fn a_processwide_event_is_for_one_thread() {
    let process = Arc::new(ProcessWide::new().unwrap());
    one_is_told(|ours| {
        process.declare_interest(ours, Mask::READ, None).unwrap();
        process.join(64).unwrap()
    });
}

#[test]
fn a_processwide_interest_ends_when_its_number_is_used_again() {
    let process = Arc::new(ProcessWide::new().unwrap());
    let (ours, _theirs) = pair();
    process.declare_interest(&ours, Mask::READ, None).unwrap();
    let (next, mut its) = pair();
    its.write_all(b"x").unwrap();
    let mut number = OwnedFd::from(ours);
    rustix::io::dup2(&next, &mut number).unwrap();
    let mut thread = process.join(64).unwrap();
    assert_eq!(events(&mut thread, 4), []);
    // A thread's own interest in the new file is its own.
    declare(&mut thread, &number, Mask::WRITE);
    assert_eq!(events(&mut thread, 4), [(number.as_raw_fd(), Mask::WRITE)]);
}

/// The file that was declared lives on under another number, and its hints name the old one.
#[test]
fn a_scan_ends_a_processwide_interest_whose_number_is_used_again() {
    let process = Arc::new(ProcessWide::new().unwrap());
    let mut thread = process.join(1).unwrap();
    let [(first, mut its), (second, mut others)] = [pair(), pair()];
    for ours in [&first, &second] {
        process.declare_interest(ours, Mask::READ, None).unwrap();
    }
    its.write_all(b"x").unwrap();
    others.write_all(b"x").unwrap();
    let _lives_on = first.try_clone().unwrap();
    let (next, mut theirs) = pair();
    theirs.write_all(b"x").unwrap();
    let mut number = OwnedFd::from(first);
    rustix::io::dup2(&next, &mut number).unwrap();
    assert_eq!(events(&mut thread, 4), [(second.as_raw_fd(), Mask::READ)]);
    assert_eq!(thread.overflows(), 1, "all were looked at");
    its.write_all(b"x").unwrap();
    assert_eq!(events(&mut thread, 4), [], "nobody has declared the next");
}

#[test]
fn a_threads_own_interest_came_back_with_a_processwide_one_in_the_next_file_of_its_number() {
    let process = Arc::new(ProcessWide::new().unwrap());
    let mut thread = process.join(64).unwrap();
    let (ours, _theirs) = pair();
    declare(&mut thread, &ours, Mask::WRITE);
    assert_eq!(events(&mut thread, 4), [(ours.as_raw_fd(), Mask::WRITE)]);
    let (next, mut its) = pair();
    let mut number = OwnedFd::from(ours);
    rustix::io::dup2(&next, &mut number).unwrap();
    process.declare_interest(&number, Mask::READ, None).unwrap();
    assert_eq!(events(&mut thread, 4), [], "it can be written to, which nobody wants to know");
    its.write_all(b"x").unwrap();
    assert_eq!(events(&mut thread, 4), [(number.as_raw_fd(), Mask::READ)]);
    // What it declares of the new file goes on.
    declare(&mut thread, &number, Mask::WRITE);
    process.declare_interest(&number, Mask::READ, None).unwrap();
    let both = Mask::READ | Mask::WRITE;
    assert_eq!(events(&mut thread, 4), [(number.as_raw_fd(), both)]);
}

#[test]
fn an_interest_of_its_own_and_a_processwide_one_that_are_declared_at_once_both_hold() {
    for _ in 0..100 {
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
        let mut told = |mask: Mask| {
            let mut told = events(&mut own, 256);
            told.sort_by_key(|(fd, _)| *fd);
            let mut expected: Vec<_> =
                pairs.iter().map(|(ours, _)| (ours.as_raw_fd(), mask)).collect();
            expected.sort_by_key(|(fd, _)| *fd);
            assert_eq!(told, expected);
        };
        told(Mask::WRITE);
        pairs.iter().for_each(|(_, theirs)| (&*theirs).write_all(b"x").unwrap());
        told(Mask::READ | Mask::WRITE);
    }
}

#[test]
fn an_interest_of_its_own_with_wake_one_ended_when_all_declared_another() {
    let process = Arc::new(ProcessWide::new().unwrap());
    let mut own = process.join(64).unwrap();
    let (ours, mut theirs) = pair();
    declare(&mut own, &ours, Mask::WRITE | Mask::WAKE_ONE);
    process.declare_interest(&ours, Mask::READ, None).unwrap();
    // Full, and no more.
    let mut sent = 0;
    while let Ok(n) = (&ours).write(&[0; 4096]) {
        sent += n;
    }
    assert_eq!(events(&mut own, 4), []);
    theirs.read_exact(&mut vec![0; sent]).unwrap();
    assert_eq!(events(&mut own, 4), [(ours.as_raw_fd(), Mask::WRITE)]);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let mut interests = Interests::new().unwrap();
    let refused = interests.get_next_event(&mut [], NOW).unwrap_err();
    assert!(matches!(refused, Error::EmptyArray), "{refused}");
    let (ours, _theirs) = pair();
    let refused =
        interests.declare_interest(&ours, Mask::EXCEPT | Mask::WAKE_ONE, None).unwrap_err();
    assert!(matches!(refused, Error::ExceptWithWakeOne), "{refused}");
    let process = ProcessWide::new().unwrap();
    let refused = process.declare_interest(&ours, Mask::EXCEPT, None).unwrap_err();
    assert!(matches!(refused, Error::ExceptWithWakeOne), "{refused}");
    let file = tempfile::tempfile().unwrap();
    let refused = interests.declare_interest(&file, Mask::READ, None).unwrap_err();
    assert!(refused.to_string().starts_with("epoll_ctl: "), "{refused}");
    let reason = refused.source().and_then(|error| error.downcast_ref::<io::Error>()).unwrap();
    assert_eq!(reason.raw_os_error(), Some(libc::EPERM));
    assert!(Error::EmptyArray.source().is_none(), "it has no other reason");
    assert_eq!(events(&mut interests, 4), [], "and the process goes on");
}
