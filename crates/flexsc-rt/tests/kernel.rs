//! Syscall pages as a kernel of servers: operations, their stages, bounds, cancellation. The servers of
//! `evring` and `evring-httpd` test the rest, as on every mechanism.

#[path = "../../shared-ring/tests/page_cache/mod.rs"]
mod page_cache;
#[path = "../../shared-ring/tests/renames/mod.rs"]
mod renames;
#[path = "support/kernel.rs"]
mod support;

use std::collections::HashSet;
use std::ffi::CString;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use flexsc_rt::kernel::FlexScKernel;
use shared_ring::buffers::{BufferGroup, GatherList};
use shared_ring::calls::{Arg, Call, Executor};
use shared_ring::files::{Access, File, FileOp, FileOutcome, PathAt, SymlinkPolicy};
use shared_ring::{
    EngineConfig, Errno, Fd, Host, Kernel, Op, OpKind, Outcome, Submit, Submitted, Token, WhenCold,
};

use renames::{LINK, resolve_beside_renames};
use support::{accept, connect, fd, kernel, listen, next, submit, turn, wait_for_connections};

const CALL: Token = Token::new(OpKind::Call, 0, 0);

#[test]
fn several_accepts_are_outstanding() {
    let mut kernel = kernel();
    let (listener, address) = listen(&mut kernel);
    let token = Token::new(OpKind::Accept, 0, 0);
    for (per_turn, expected) in [(None, 10), (Some(4), 4)] {
        submit(&mut kernel, token, accept(&listener, per_turn));
        // The entries wait.
        assert_eq!(turn(&mut kernel), 0);
        let _clients: Vec<_> = (0..10).map(|_| TcpStream::connect(address).unwrap()).collect();
        wait_for_connections(address, 10);
        kernel.turn(None).unwrap();
        let mut accepted = Vec::new();
        while let Some(completion) = kernel.next() {
            let Outcome::Accepted(socket) = completion.outcome else { panic!("{completion:?}") };
            accepted.push(socket);
        }
        assert_eq!(accepted.len(), expected);
        while accepted.len() < 10 {
            let Outcome::Accepted(socket) = next(&mut kernel).outcome else { panic!() };
            accepted.push(socket);
        }
        accepted.into_iter().for_each(|socket| kernel.host_mut().close_unused(socket));
        kernel.cancel(token);
        let ended = next(&mut kernel);
        assert!(ended.is_last && matches!(ended.outcome, Outcome::Failed(Errno::CANCELED, None)));
        assert_eq!(turn(&mut kernel), 0);
    }
    kernel.host_mut().close_unused(listener);
}

#[test]
fn accept_of_an_ended_operation_was_posted_for_the_next_one() {
    let mut kernel = kernel();
    let (listener, address) = listen(&mut kernel);
    let token = Token::new(OpKind::Accept, 0, 0);
    submit(&mut kernel, token, accept(&listener, Some(1)));
    let mut clients = vec![TcpStream::connect(address).unwrap()];
    let Outcome::Accepted(first) = next(&mut kernel).outcome else { panic!() };
    // It ends before the turn that would have posted its accept again.
    kernel.cancel(token);
    assert!(matches!(next(&mut kernel).outcome, Outcome::Failed(Errno::CANCELED, None)));
    submit(&mut kernel, token, accept(&listener, Some(1)));
    clients.extend((0..4).map(|_| TcpStream::connect(address).unwrap()));
    wait_for_connections(address, 5);
    let mut accepted = vec![first];
    while accepted.len() < 5 {
        kernel.turn(None).unwrap();
        let before = accepted.len();
        while let Some(completion) = kernel.next() {
            let Outcome::Accepted(socket) = completion.outcome else { panic!("{completion:?}") };
            accepted.push(socket);
        }
        assert!(accepted.len() <= before + 1, "a listener accepts one connection in a turn");
    }
    kernel.finish();
    accepted.into_iter().for_each(|socket| kernel.host_mut().close_unused(socket));
    kernel.host_mut().close_unused(listener);
}

#[test]
fn connection_accepted_for_a_cancelled_operation_is_closed() {
    for is_taken in [false, true] {
        let mut kernel = kernel();
        let (listener, address) = listen(&mut kernel);
        let mut client = TcpStream::connect(address).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        wait_for_connections(address, 1);
        // A turn with a completion at once submits the accept to the ring, and does not enter the kernel.
        let (reads, mut writes) = std::io::pipe().unwrap();
        rustix::io::ioctl_fionbio(&reads, true).unwrap();
        writes.write_all(b"ready").unwrap();
        // SAFETY: the pipe outlives the kernel's calls.
        let fd = unsafe { Fd::lent(reads.as_fd()) };
        submit(&mut kernel, CALL, Op::Call(Box::new(Call::read(fd, 8)), Executor::WhenReadable));
        let token = Token::new(OpKind::Accept, 0, 0);
        submit(&mut kernel, token, accept(&listener, Some(1)));
        assert_eq!(turn(&mut kernel), 1);
        // The accept completes before its cancellation begins.
        kernel.cancel(token);
        if is_taken {
            kernel.turn(None).unwrap();
        }
        kernel.finish();
        assert!(kernel.next().is_none());
        kernel.host_mut().close_unused(listener);
        let end = client.read_to_end(&mut Vec::new());
        let is_reset = |error: &std::io::Error| error.kind() == ErrorKind::ConnectionReset;
        assert!(matches!(&end, Ok(0)) || end.as_ref().is_err_and(is_reset), "{end:?}");
    }
}

#[test]
fn more_listeners_than_entries_accept() {
    let mut kernel = kernel();
    let listeners: Vec<_> = (0..100).map(|_| listen(&mut kernel)).collect();
    for (slot, (listener, _)) in listeners.iter().enumerate() {
        let token = Token::new(OpKind::Accept, slot as u32, 0);
        submit(&mut kernel, token, accept(listener, None));
    }
    for (slot, (_, address)) in listeners.iter().enumerate() {
        let _client = TcpStream::connect(address).unwrap();
        let completion = next(&mut kernel);
        assert_eq!(completion.token.slot() as usize, slot);
        let Outcome::Accepted(socket) = completion.outcome else { panic!() };
        kernel.host_mut().close_unused(socket);
    }
    kernel.finish();
    listeners.into_iter().for_each(|(listener, _)| kernel.host_mut().close_unused(listener));
}

#[test]
fn receives_wait_without_a_buffer_and_then_in_order() {
    let mut kernel = kernel();
    let mut pairs: Vec<_> = (0..4).map(|_| connect(&mut kernel)).collect();
    let token = |slot| Token::new(OpKind::Receive, slot, 0);
    for (slot, (ours, _)) in pairs.iter().enumerate() {
        let receive = Op::Receive { fd: fd(ours), group: BufferGroup::DEFAULT };
        submit(&mut kernel, token(slot as u32), receive);
    }
    turn(&mut kernel);
    for (_, theirs) in &mut pairs {
        theirs.write_all(b"bytes").unwrap();
    }
    // There are two buffers.
    let mut held: Vec<_> = (0..2).map(|_| next(&mut kernel)).collect();
    while kernel.counters().buffer_shortages < 2 {
        assert_eq!(turn(&mut kernel), 0);
    }
    let mut seen = HashSet::new();
    while let Some(completion) = held.pop() {
        assert!(matches!(&completion.outcome, Outcome::Received(bytes) if **bytes == *b"bytes"));
        assert!(!completion.is_last && seen.insert(completion.token));
        drop(completion);
        if seen.len() + held.len() < 4 {
            held.push(next(&mut kernel));
        }
    }
    // The end of a stream is the last completion, and a cancellation also.
    pairs[0].1.shutdown(std::net::Shutdown::Write).unwrap();
    let ended = next(&mut kernel);
    assert!(ended.is_last && ended.token == token(0) && matches!(ended.outcome, Outcome::Eof));
    kernel.cancel(token(1));
    kernel.cancel(token(1));
    let ended = next(&mut kernel);
    assert!(ended.is_last && ended.token == token(1));
    assert!(matches!(ended.outcome, Outcome::Failed(Errno::CANCELED, None)));
    kernel.finish();
    pairs.into_iter().for_each(|(ours, _)| kernel.host_mut().close_unused(ours));
}

#[test]
fn cancelled_receive_that_waits_for_a_buffer_ends() {
    let mut kernel = kernel();
    let mut pairs: Vec<_> = (0..3).map(|_| connect(&mut kernel)).collect();
    let token = |slot| Token::new(OpKind::Receive, slot, 0);
    for (slot, (ours, theirs)) in pairs.iter_mut().enumerate() {
        theirs.write_all(b"bytes").unwrap();
        let receive = Op::Receive { fd: fd(ours), group: BufferGroup::DEFAULT };
        submit(&mut kernel, token(slot as u32), receive);
    }
    // There are two buffers.
    let held: Vec<_> = (0..2).map(|_| next(&mut kernel)).collect();
    while kernel.counters().buffer_shortages < 1 {
        assert_eq!(turn(&mut kernel), 0);
    }
    let waits = (0..3).map(token).find(|token| held.iter().all(|held| held.token != *token));
    kernel.cancel(waits.unwrap());
    let ended = kernel.next().unwrap();
    assert!(ended.is_last && Some(ended.token) == waits);
    assert!(matches!(ended.outcome, Outcome::Failed(Errno::CANCELED, None)));
    kernel.finish();
    pairs.into_iter().for_each(|(ours, _)| kernel.host_mut().close_unused(ours));
}

#[test]
fn batch_of_sends_and_receives_is_made_by_one_entry_into_the_ring() {
    let mut kernel = FlexScKernel::new(&EngineConfig::new(256, 64, 4096)).unwrap();
    let mut pairs: Vec<_> = (0..64).map(|_| connect(&mut kernel)).collect();
    let token = |kind, slot: usize| Token::new(kind, slot as u32, 0);
    for (slot, (ours, _)) in pairs.iter().enumerate() {
        let receive = Op::Receive { fd: fd(ours), group: BufferGroup::DEFAULT };
        submit(&mut kernel, token(OpKind::Receive, slot), receive);
    }
    turn(&mut kernel);
    for round in 0..4 {
        let before = kernel.page_counters();
        for (_, theirs) in &mut pairs {
            theirs.write_all(b"request").unwrap();
        }
        // Loopback may deliver later.
        for (ours, _) in &pairs {
            while kernel.host().unread(ours) < 7 {
                std::thread::yield_now();
            }
        }
        let mut received = HashSet::new();
        while received.len() < 64 {
            let completion = next(&mut kernel);
            assert!(
                matches!(&completion.outcome, Outcome::Received(bytes) if **bytes == *b"request")
            );
            assert!(received.insert(completion.token));
        }
        for (slot, (ours, _)) in pairs.iter().enumerate() {
            let mut data = Box::new(GatherList::default());
            data.shared(b"reply".to_vec().into());
            submit(&mut kernel, token(OpKind::Send, slot), Op::Send { fd: fd(ours), data });
        }
        for _ in 0..64 {
            assert!(matches!(next(&mut kernel).outcome, Outcome::Sent(_, 5)));
        }
        for (_, theirs) in &mut pairs {
            theirs.read_exact(&mut [0; 5]).unwrap();
        }
        let after = kernel.page_counters();
        if before.ring_entries == 0 && round == 0 {
            println!("not tested: there is no io_uring");
            break;
        }
        assert!(after.on_ring - before.on_ring > 100, "{after:?}");
        let entries = after.ring_entries - before.ring_entries;
        let calls =
            entries + after.in_place - before.in_place + after.epoll_calls - before.epoll_calls;
        assert!(calls < 20, "{entries} entries, {calls} system calls");
    }
    kernel.finish();
    pairs.into_iter().for_each(|(ours, _)| kernel.host_mut().close_unused(ours));
}

#[test]
fn dropped_files_are_closed_by_posted_calls() {
    let mut kernel = kernel();
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("dropped"), b"content").unwrap();
    let root = kernel.host_mut().open_directory(directory.path()).unwrap();
    let at = PathAt { root, path: c"dropped".into(), symlinks: SymlinkPolicy::Beneath };
    let open = |kernel: &mut FlexScKernel| {
        let file = Op::File(FileOp::Open(at.clone(), Access::Read));
        submit(kernel, Token::new(OpKind::File, 0, 0), file);
        match next(kernel).outcome {
            Outcome::File(FileOutcome::Opened(opened)) => opened.0,
            outcome => panic!("{outcome:?}"),
        }
    };
    let number = |file: &shared_ring::files::File| std::os::fd::AsRawFd::as_raw_fd(file);
    let is_open = |fd: i32| {
        std::fs::read_link(format!("/proc/self/fd/{fd}")).is_ok_and(|to| to.ends_with("dropped"))
    };
    let (file, made) = (open(&mut kernel), kernel.page_counters().posted);
    let fd = number(&file);
    drop(file);
    assert!(is_open(fd));
    turn(&mut kernel);
    assert!(!is_open(fd) && kernel.page_counters().posted > made);
    // Without turns, files are closed where they are dropped, at the end at the latest.
    let (waits, later) = (open(&mut kernel), open(&mut kernel));
    let numbers = [number(&waits), number(&later)];
    drop(waits);
    kernel.finish();
    drop((kernel, later));
    assert_eq!(numbers.map(is_open), [false; 2]);
}

#[test]
fn cancelled_send_returns_what_was_not_sent() {
    let mut kernel = kernel();
    let (ours, mut theirs) = connect(&mut kernel);
    let token = Token::new(OpKind::Send, 0, 0);
    let mut sent = 0;
    let rest = loop {
        let mut data = Box::new(GatherList::default());
        (0..8).for_each(|_| data.shared(vec![7; 8192].into()));
        submit(&mut kernel, token, Op::Send { fd: fd(&ours), data });
        if turn_for_send(&mut kernel, &mut sent) {
            continue;
        }
        // The socket is full.
        kernel.cancel(token);
        match next(&mut kernel).outcome {
            Outcome::Failed(Errno::CANCELED, Some(data)) => break data,
            outcome => panic!("{outcome:?}"),
        }
    };
    assert_eq!(rest.len(), 8 * 8192);
    submit(&mut kernel, Token::new(OpKind::Close, 0, 0), Op::Close { socket: ours });
    assert!(matches!(next(&mut kernel).outcome, Outcome::Closed));
    let mut received = Vec::new();
    theirs.read_to_end(&mut received).unwrap();
    assert_eq!(received.len(), sent);
}

#[test]
fn long_part_of_a_file_was_copied_to_find_out_whether_it_is_cached() {
    const LEN: u32 = 4 << 20;
    let mut kernel = kernel();
    let (ours, theirs) = connect(&mut kernel);
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&vec![7; LEN as usize]).unwrap();
    let file = File::from(OwnedFd::from(file));
    let reader = std::thread::spawn(move || {
        let mut received = Vec::new();
        (&theirs).read_to_end(&mut received).unwrap();
        received.len()
    });
    let token = Token::new(OpKind::Send, 0, 0);
    let mut sent = 0;
    while sent < LEN {
        let (offset, len) = (sent.into(), LEN - sent);
        let when_cold = WhenCold::Read;
        let op = Op::SendFile {
            fd: fd(&ours),
            file: file.clone(),
            offset,
            len,
            is_last: true,
            when_cold,
        };
        submit(&mut kernel, token, op);
        let Outcome::SentFile { bytes: len, .. } = next(&mut kernel).outcome else {
            panic!("not sent")
        };
        assert!(
            u64::from(len) <= File::BLOCK_BYTES,
            "{len} bytes were sent, and looked for before"
        );
        sent += len;
    }
    submit(&mut kernel, Token::new(OpKind::Close, 0, 0), Op::Close { socket: ours });
    assert!(matches!(next(&mut kernel).outcome, Outcome::Closed));
    assert_eq!(reader.join().unwrap(), LEN as usize);
}

/// Runs a turn. Returns whether the send has ended.
fn turn_for_send(kernel: &mut FlexScKernel, sent: &mut usize) -> bool {
    kernel.turn(Some(Instant::now())).unwrap();
    match kernel.next().map(|completion| completion.outcome) {
        Some(Outcome::Sent(_, len)) => {
            *sent += len;
            true
        }
        None => false,
        Some(outcome) => panic!("{outcome:?}"),
    }
}

#[test]
fn files_are_opened_and_read_by_posted_calls() {
    let mut kernel = kernel();
    let directory = tempfile::tempdir().unwrap();
    let content: Vec<u8> = (0..100_000_u32).map(|byte| byte as u8).collect();
    std::fs::write(directory.path().join("file"), &content).unwrap();
    let root = kernel.host_mut().open_directory(directory.path()).unwrap();
    let at = |path: &std::ffi::CStr| PathAt {
        root: root.clone(),
        path: path.into(),
        symlinks: SymlinkPolicy::Beneath,
    };
    let token = Token::new(OpKind::File, 0, 0);
    let done = |kernel: &mut FlexScKernel, op| {
        let made = kernel.page_counters().in_place;
        submit(kernel, token, Op::File(op));
        let completion = next(kernel);
        assert!(completion.is_last && completion.token == token);
        assert!(kernel.page_counters().in_place > made, "the first call is posted");
        match completion.outcome {
            Outcome::File(outcome) => Ok(outcome),
            Outcome::Failed(errno, None) => Err(errno),
            outcome => panic!("{outcome:?}"),
        }
    };
    let opened = done(&mut kernel, FileOp::Open(at(c"file"), Access::Read));
    let Ok(FileOutcome::Opened(opened)) = opened else { panic!("{opened:?}") };
    let (file, meta) = *opened;
    assert_eq!(meta.len, 100_000);
    let queried = done(&mut kernel, FileOp::Stat(at(c"file")));
    assert!(matches!(queried, Ok(FileOutcome::Stat(queried)) if queried == meta));
    for (range, expected) in [(0..10, 0..10), (99_990..200_000, 99_990..100_000), (7..7, 7..7)] {
        let read = done(&mut kernel, FileOp::Read(file.clone(), range));
        let Ok(FileOutcome::Read(bytes)) = read else { panic!("{read:?}") };
        assert_eq!(*bytes, content[expected]);
    }
    let created = done(&mut kernel, FileOp::Open(at(c"new"), Access::Create));
    assert!(matches!(created, Ok(FileOutcome::Opened(_))));
    let missing = done(&mut kernel, FileOp::Open(at(c"none"), Access::Read));
    assert!(matches!(missing, Err(Errno::NOENT)));
    let outside = done(&mut kernel, FileOp::Stat(at(c"../file")));
    assert!(matches!(outside, Err(Errno::XDEV)));
    // A cancelled operation ends once.
    submit(&mut kernel, token, Op::File(FileOp::Open(at(c"file"), Access::Read)));
    kernel.cancel(token);
    assert!(matches!(next(&mut kernel).outcome, Outcome::Failed(Errno::CANCELED, None)));
    assert_eq!(turn(&mut kernel), 0);
    // Writes and lists are made by threads.
    submit(&mut kernel, token, Op::File(FileOp::List(at(c"."))));
    let Outcome::File(FileOutcome::Listed(listing)) = next(&mut kernel).outcome else { panic!() };
    assert_eq!(listing.entries.len(), 2);
}

/// The kernel refuses to resolve the `..` of a link while files of any directory are renamed.
#[test]
fn path_of_a_link_was_not_resolved_beside_renames() {
    let mut kernel = kernel();
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("inner")).unwrap();
    std::fs::write(directory.path().join("file"), "").unwrap();
    let root = kernel.host_mut().open_directory(directory.path()).unwrap();
    resolve_beside_renames(directory.path(), || {
        let at = PathAt {
            root: root.clone(),
            path: CString::new(LINK).unwrap().into(),
            symlinks: SymlinkPolicy::Beneath,
        };
        for op in [FileOp::Open(at.clone(), Access::Read), FileOp::Stat(at)] {
            submit(&mut kernel, Token::new(OpKind::File, 0, 0), Op::File(op));
            let completion = next(&mut kernel);
            assert!(matches!(completion.outcome, Outcome::File(_)), "{completion:?}");
        }
    });
}

#[test]
fn a_read_that_ended_within_a_page_was_followed_by_one_of_nothing() {
    let mut kernel = kernel();
    let directory = tempfile::tempdir().unwrap();
    let content: Vec<u8> = (0..20_000_u32).map(|byte| byte as u8).collect();
    let root = kernel.host_mut().open_directory(directory.path()).unwrap();
    let token = Token::new(OpKind::File, 0, 0);
    let mut done = |op| {
        let posted = kernel.page_counters().posted;
        let threads = kernel.counters().offloaded_file_ops;
        submit(&mut kernel, token, Op::File(op));
        let completion = next(&mut kernel);
        let Outcome::File(outcome) = completion.outcome else { panic!() };
        let made = kernel.page_counters().posted - posted;
        let by_thread = kernel.counters().offloaded_file_ops > threads;
        assert_eq!(completion.was_cold, by_thread && matches!(outcome, FileOutcome::Read(_)));
        (outcome, made, by_thread)
    };
    // A read that ends between pages may have stopped before one that is not cached.
    for (name, len, expected) in [(c"one", 1_024, 1), (c"two", 4_096, 2), (c"five", 20_000, 1)] {
        let path = directory.path().join(name.to_str().unwrap());
        std::fs::write(&path, &content[..len]).unwrap();
        if !page_cache::tells(&std::fs::File::open(&path).unwrap()) {
            return;
        }
        let at = PathAt { root: root.clone(), path: name.into(), symlinks: SymlinkPolicy::Beneath };
        let (FileOutcome::Opened(opened), ..) = done(FileOp::Open(at, Access::Read)) else {
            panic!()
        };
        for start in [0, 1, 512] {
            let read = FileOp::Read(opened.0.clone(), start..len as u64 + 1);
            let (FileOutcome::Read(bytes), made, by_thread) = done(read) else { panic!() };
            assert_eq!(*bytes, content[start as usize..len]);
            assert_eq!((made, by_thread), (expected, false), "{len} bytes from {start}");
        }
    }
    // The first pages are cached, the next ones are not.
    let path = directory.path().join("five");
    let file = std::fs::File::open(&path).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 8_192, None, rustix::fs::Advice::DontNeed).unwrap();
    let at = PathAt { root, path: c"five".into(), symlinks: SymlinkPolicy::Beneath };
    let (FileOutcome::Opened(opened), ..) = done(FileOp::Open(at, Access::Read)) else { panic!() };
    let (FileOutcome::Read(bytes), ..) = done(FileOp::Read(opened.0, 0..20_001)) else { panic!() };
    assert_eq!(*bytes, content);
}

#[test]
fn read_counted_as_cold_where_that_is_unknown() {
    let mut kernel = kernel();
    // procfs does not support RWF_NOWAIT.
    let file = File::from(OwnedFd::from(std::fs::File::open("/proc/version").unwrap()));
    submit(&mut kernel, Token::new(OpKind::File, 0, 0), Op::File(FileOp::Read(file, 0..10)));
    let done = next(&mut kernel);
    let Outcome::File(FileOutcome::Read(bytes)) = done.outcome else { panic!("{done:?}") };
    assert_eq!((&*bytes, done.was_cold), (&b"Linux vers"[..], false));
}

#[test]
fn calls_are_made_by_the_executor_that_was_chosen() {
    let mut kernel = kernel();
    let (reads, mut writes) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&reads, true).unwrap();
    // SAFETY: the pipe outlives the kernel's calls.
    let fd = unsafe { Fd::lent(reads.as_fd()) };
    let called = |kernel: &mut FlexScKernel| match next(kernel).outcome {
        Outcome::Called(call, result) => (call, result),
        outcome => panic!("{outcome:?}"),
    };
    submit(&mut kernel, CALL, Op::Call(Box::new(Call::read(fd, 8)), Executor::WhenReadable));
    assert_eq!(turn(&mut kernel), 0);
    writes.write_all(b"posted").unwrap();
    let (call, result) = called(&mut kernel);
    assert_eq!((result, &call.memory(1)[..6]), (Ok(6), &b"posted"[..]));
    for executor in [Executor::Ring, Executor::Thread] {
        submit(&mut kernel, CALL, Op::Call(Box::new(Call::random(16)), executor));
        assert_eq!(called(&mut kernel).1, Ok(16));
    }
    let in_place = kernel.submit(CALL, Op::Call(Box::new(Call::random(16)), Executor::InPlace));
    assert!(matches!(in_place, Ok(Submitted::Done(Outcome::Called(_, Ok(16))))));
    // A cancelled call returns its memory.
    submit(&mut kernel, CALL, Op::Call(Box::new(Call::read(fd, 8)), Executor::WhenReadable));
    assert_eq!(turn(&mut kernel), 0);
    kernel.cancel(CALL);
    assert_eq!(called(&mut kernel).1, Err(Errno::CANCELED));
    let counters = kernel.counters();
    assert_eq!((counters.offloaded_calls, counters.cancels), (2, 1));
    // Neither can be cancelled.
    kernel.cancel(CALL);
    assert_eq!(kernel.counters().cancels, 1);
    let of_pages = kernel.page_counters();
    let of_pages =
        of_pages.in_place + of_pages.on_threads + of_pages.ring_entries + of_pages.epoll_calls;
    // That in place, and those that drain the waker.
    assert!(counters.system_calls >= of_pages && of_pages > 0, "{counters:?}");
}

#[test]
fn calls_beyond_the_syscall_threads_wait_for_others() {
    let mut kernel = kernel();
    let sleep = || {
        let time = [0_i64, 1_000_000].map(i64::to_ne_bytes).concat().into_boxed_slice();
        // SAFETY: the kernel reads the time only.
        unsafe { Call::new(libc::SYS_nanosleep as u32, [Arg::Memory(time)]) }
    };
    for slot in 0..200 {
        let op = Op::Call(Box::new(sleep()), Executor::Thread);
        submit(&mut kernel, Token::new(OpKind::Call, slot, 0), op);
    }
    let mut ended = HashSet::new();
    while ended.len() < 200 {
        let completion = next(&mut kernel);
        assert!(matches!(completion.outcome, Outcome::Called(_, Ok(0))), "{completion:?}");
        assert!(ended.insert(completion.token));
    }
}

#[test]
fn kernel_ends_with_operations_in_flight() {
    let mut kernel = kernel();
    let (listener, address) = listen(&mut kernel);
    submit(&mut kernel, Token::new(OpKind::Accept, 0, 0), accept(&listener, None));
    let (ours, theirs) = connect(&mut kernel);
    let receive = Op::Receive { fd: fd(&ours), group: BufferGroup::DEFAULT };
    submit(&mut kernel, Token::new(OpKind::Receive, 0, 0), receive);
    turn(&mut kernel);
    let _client = TcpStream::connect(address).unwrap();
    kernel.finish();
    assert!(kernel.next().is_none());
    kernel.host_mut().close_unused(ours);
    kernel.host_mut().close_unused(listener);
    drop(theirs);
}
