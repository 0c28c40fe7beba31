//! Accepts without a free descriptor. The limit is the process's, so this test has its own process.

mod number;
mod turns;

use std::fs::File;
use std::num::NonZeroU16;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use number::number;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use shared_ring::author::System;
use shared_ring::poller::{Epoll, EpollEdge, Poll, Select};
use shared_ring::sockets::{BufferSizes, ListenOptions};
use shared_ring::uring::{Mode, UringConfig, UringKernel};
use shared_ring::{
    Completion, Engine, EngineConfig, Errno, Host, Kernel, Linux, Op, OpKind, Outcome, Token,
};
use turns::{Batch, TurnInto};

const ACCEPT: Token = Token::new(OpKind::Accept, 0, 0);

/// Returns the next completion of the accept.
fn next(name: &str, kernel: &mut impl Kernel, batch: &mut Batch) -> Completion {
    let until = Instant::now() + Duration::from_secs(10);
    while batch.is_empty() {
        assert!(Instant::now() < until, "{name}: the accept does not complete");
        kernel.turn_into(Some(until), batch).unwrap();
    }
    let completion = batch.pop_front().unwrap();
    assert_eq!(completion.token, ACCEPT, "{name}");
    completion
}

/// Fills the process's table of descriptors.
fn fill() -> Vec<File> {
    let mut files = Vec::new();
    loop {
        match File::open("/dev/null") {
            Ok(file) => files.push(file),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(Errno::MFILE.raw_os_error()));
                return files;
            }
        }
    }
}

fn accept_fails_without_a_descriptor(
    name: &str,
    mut kernel: impl Kernel,
    per_turn: Option<NonZeroU16>,
) {
    println!("{name}, {per_turn:?} in a turn");
    let options = ListenOptions::new(16);
    let (listener, to) =
        kernel.host_mut().listen("127.0.0.1:0".parse().unwrap(), &options).unwrap();
    let peer = kernel.host_mut().socket(to, None, BufferSizes::default()).unwrap();
    kernel.submit(ACCEPT, Op::Accept { listener: number(&listener), per_turn }).unwrap();
    let mut batch = Batch::new();
    kernel.turn_into(Some(Instant::now()), &mut batch).unwrap();
    let files = fill();
    if let Err(errno) = Linux::default().connect(number(&peer), to) {
        assert_eq!(errno, Errno::INPROGRESS);
    }
    let failed = next(name, &mut kernel, &mut batch);
    let full = matches!(failed.outcome, Outcome::Failed(Errno::MFILE, None));
    assert!(full && failed.is_last, "{name}: {failed:?}");
    assert!(batch.is_empty(), "{name}: completions after the last: {batch:?}");
    assert!(kernel.counters().fd_limit_hits > 0, "{name}");

    // The next accept takes the connection.
    drop(files);
    kernel.submit(ACCEPT, Op::Accept { listener: number(&listener), per_turn }).unwrap();
    let accepted = next(name, &mut kernel, &mut batch);
    let Outcome::Accepted(ours) = accepted.outcome else { panic!("{name}: {accepted:?}") };
    kernel.cancel(ACCEPT);
    let ended = next(name, &mut kernel, &mut batch);
    let cancelled = matches!(ended.outcome, Outcome::Failed(Errno::CANCELED, None));
    assert!(cancelled && ended.is_last, "{name}: {ended:?}");
    for socket in [ours, peer, listener] {
        kernel.host_mut().close_unused(socket);
    }
}

#[test]
fn accept_without_a_descriptor_ended_as_cancelled() {
    // Slightly above the number of open descriptors, so that the table is full quickly.
    let lowest = File::open("/dev/null").map(|file| file.as_raw_fd()).unwrap();
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(lowest as u64 + 64), maximum }).unwrap();

    let (operations, buffers, buffer_size) = (64, 8, 512);
    let engine = EngineConfig::new(operations, buffers, buffer_size);
    for per_turn in [NonZeroU16::new(4), None] {
        let name = "engine over epoll";
        let kernel = Engine::new(Epoll::new().unwrap(), &engine).unwrap();
        accept_fails_without_a_descriptor(name, kernel, per_turn);
        let name = "engine over edge-triggered epoll";
        let kernel = Engine::new(EpollEdge::new().unwrap(), &engine).unwrap();
        accept_fails_without_a_descriptor(name, kernel, per_turn);
        let name = "engine over poll";
        let kernel = Engine::new(Poll::default(), &engine).unwrap();
        accept_fails_without_a_descriptor(name, kernel, per_turn);
        let name = "engine over select";
        let kernel = Engine::new(Select::default(), &engine).unwrap();
        accept_fails_without_a_descriptor(name, kernel, per_turn);
        for mode in [Mode::Deferred, Mode::Cooperative, Mode::Immediate] {
            let name = format!("ring, {mode:?}");
            match UringKernel::new(&UringConfig::new(mode, operations, buffers, buffer_size)) {
                Ok(kernel) => accept_fails_without_a_descriptor(&name, kernel, per_turn),
                Err(missing) => println!("not tested: {name}: {missing}"),
            }
        }
    }
}
