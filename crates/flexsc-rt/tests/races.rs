//! Cancellations, completions and full pages in random order, on each executor: no entry is lost, no
//! result comes twice, and no byte is lost by a cancelled read.

mod support;

use std::collections::HashMap;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use flexsc_rt::{Busy, Call, Config, Direction, EntryId, Executor, Pages, Waits};
use proptest::prelude::*;
use support::{Pipe, post, read_of, register};

/// The content of a buffer that no read has filled.
const EMPTY: u8 = 0xee;

#[derive(Clone, Debug)]
enum Step {
    /// A read that waits for a byte.
    Read(Option<Executor>),
    /// A write of a byte.
    Write(Option<Executor>),
    /// A cancellation of one of the calls outstanding, or of one that has ended.
    Cancel(usize),
    /// A wait of so many microseconds.
    Wait(u64),
}

/// A posted call, and its memory.
struct Posted {
    buffer: Option<Box<u8>>,
    cancelled: bool,
}

struct Race {
    pages: Pages,
    pipe: Pipe,
    posted: HashMap<EntryId, Posted>,
    ids: Vec<EntryId>,
    written: u64,
    read: u64,
}

impl Race {
    fn new() -> Self {
        let mut config = Config::with_entries(64);
        config.reserve = 8;
        config.threads = 8;
        Race {
            pages: register(config),
            pipe: Pipe::new(),
            posted: HashMap::new(),
            ids: Vec::new(),
            written: 0,
            read: 0,
        }
    }

    fn post(&mut self, call: &Call, buffer: Option<Box<u8>>) {
        // SAFETY: the byte is kept until the completion was taken.
        match unsafe { self.pages.post(call) } {
            Ok(id) => {
                let posted = Posted { buffer, cancelled: false };
                assert!(self.posted.insert(id, posted).is_none(), "{id:?} is used twice");
                self.ids.push(id);
            }
            Err(Busy) => assert!(!self.posted.is_empty(), "free pages are busy"),
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Read(executor) => {
                let mut byte = Box::new(EMPTY);
                let buffer = std::slice::from_mut(&mut *byte);
                let call = match executor {
                    Some(executor) => self.pipe.blocking_read_of(buffer).pinned(executor),
                    // Without a pin it waits until the pipe is readable; a thread reads then.
                    None => {
                        let fd = self.pipe.reads.as_raw_fd();
                        let waits = Waits::ReadyThenBlocks(fd, Direction::Read);
                        self.pipe.blocking_read_of(buffer).waits(waits)
                    }
                };
                self.post(&call, Some(byte));
            }
            Step::Write(executor) => {
                let call = self.pipe.write_of(b"x");
                self.post(&executor.map_or(call, |executor| call.pinned(executor)), None);
            }
            Step::Cancel(which) => {
                if !self.ids.is_empty() {
                    self.cancel(self.ids[which % self.ids.len()]);
                }
            }
            Step::Wait(time_us) => {
                self.pages.wait(Some(Duration::from_micros(time_us))).unwrap();
                self.take();
            }
        }
        assert_eq!(self.pages.outstanding(), self.posted.len());
    }

    fn cancel(&mut self, id: EntryId) {
        self.pages.cancel(id);
        if let Some(posted) = self.posted.get_mut(&id) {
            posted.cancelled = true;
        }
    }

    /// Takes the completions, and checks each.
    fn take(&mut self) {
        while let Some(completion) = self.pages.next() {
            let posted = self.posted.remove(&completion.id).expect("a call that is outstanding");
            match (completion.result, posted.buffer) {
                (Ok(len), Some(byte)) => {
                    assert_eq!((len, *byte), (1, b'x'));
                    self.read += 1;
                }
                (Ok(len), None) => {
                    assert_eq!(len, 1);
                    self.written += 1;
                }
                (Err(error), buffer) => {
                    assert_eq!(error.kind(), io::ErrorKind::Interrupted, "{error}");
                    assert!(posted.cancelled, "an interrupted call that was not cancelled");
                    assert!(buffer.is_none_or(|byte| *byte == EMPTY));
                }
            }
        }
    }

    /// Cancels what is outstanding. All of it ends.
    fn end(mut self) {
        for id in self.ids.clone() {
            self.cancel(id);
        }
        while !self.posted.is_empty() {
            assert!(self.pages.wait(None).unwrap());
            self.take();
        }
        assert_eq!(self.pages.outstanding(), 0);
        assert_eq!(self.written, self.read + self.pipe.available());
    }
}

fn executor() -> impl Strategy<Value = Option<Executor>> {
    prop_oneof![
        Just(None),
        Just(Some(Executor::Threads)),
        Just(Some(Executor::Ring)),
        Just(Some(Executor::Shared))
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => executor().prop_map(Step::Read),
        2 => executor().prop_map(Step::Write),
        3 => any::<usize>().prop_map(Step::Cancel),
        2 => (0..200_u64).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 1..400)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn cancelled_calls_end_once_and_lose_nothing(steps in steps()) {
        let mut race = Race::new();
        steps.iter().for_each(|step| race.step(step));
        race.end();
    }
}

#[test]
fn each_cancelled_wait_for_a_descriptor_changed_the_epoll_set() {
    const CALLS: usize = 10_000;
    let mut config = Config::with_entries(2 * CALLS as u32);
    config.threads = 0;
    let mut pages = register(config);
    let (idle, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
    let mut buffer = [0; 8];
    let ids: Vec<_> =
        (0..CALLS).map(|_| post(&mut pages, &read_of(idle.as_raw_fd(), &mut buffer))).collect();
    pages.wait(Some(Duration::ZERO)).unwrap();
    let before = pages.counters().epoll_calls;
    // The newest first.
    ids.into_iter().rev().for_each(|id| pages.cancel(id));
    assert!(pages.counters().epoll_calls - before <= 1, "{:?}", pages.counters());
    assert_eq!(std::iter::from_fn(|| pages.next()).count(), CALLS);
}
