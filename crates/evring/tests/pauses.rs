//! Pauses of sends on the simulated machine: of many connections that end at once, during a read, and of a slow client.

use crate::cold_files::By;
use crate::disk_file::contents;
use crate::downloader::{Downloader, Pace, at, config, machine};
use crate::sends_file::{SendsFile, sends_whole_file};

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::io;
use std::mem;
use std::time::{Duration, Instant};

use evring::files::{Access, File, FileOp, FileOutcome, FilePath, MAX_READ_BYTES, WriteAt};
use evring::mechanisms::{EventLoop, Mode};
use evring::send_policy::{SendPolicy, SendState, SendStep};
use evring::{Application, Chunk, Commands, Config, ConnId, Cx, FileDelivery, Root, Rx, Stats};
use evring_sim::{Net, Next, Peer, PeerConn, SimKernel};

const CLIENTS: usize = 64;
const FILE_BYTES: u64 = 500;

thread_local! {
    /// Number of connections that were continued since the driver has last looked at completions.
    static CONTINUED: Cell<usize> = const { Cell::new(0) };
}

/// Has each connection pause once.
#[derive(Default)]
struct PausesOnce {
    paused: HashSet<ConnId>,
    continued: HashSet<ConnId>,
}

impl SendPolicy for PausesOnce {
    fn next(&mut self, state: &SendState<'_>) -> SendStep {
        if self.paused.insert(state.id) {
            return SendStep::Pause(Duration::from_millis(100));
        }
        if self.continued.insert(state.id) {
            CONTINUED.set(CONTINUED.get() + 1);
        }
        SendStep::Send { max_file_bytes: 1_000 }
    }
}

#[test]
fn all_pauses_that_had_ended_came_before_what_had_arrived_meanwhile() {
    let machine = machine(FILE_BYTES, |_| {});
    let config = config(|c| c.send_policy = Some(|| Box::<PausesOnce>::default()));
    let ends = [(); CLIENTS].map(|()| Downloader::add(&machine, FILE_BYTES, None));
    let kernel = SimKernel::new(&machine, &config.uring_config(Mode::Deferred).unwrap()).unwrap();
    let server = EventLoop::new(kernel, &config).unwrap();
    let remote = server.remote();
    machine.on_end(move || remote.stop());
    let numbers = RefCell::new(Vec::new());
    let app = sends_whole_file(FILE_BYTES, |_| {});
    // It is called after each completion and each turn.
    let inspect = |_: &_| numbers.borrow_mut().push(CONTINUED.replace(0));
    server.run_inspected(app, inspect).unwrap();
    assert_eq!(machine.verdict().failure, None);
    assert!(ends.iter().all(|end| end.get().unwrap().bytes == FILE_BYTES));
    let numbers = numbers.into_inner();
    assert_eq!(numbers.iter().sum::<usize>(), CLIENTS);
    let max = *numbers.iter().max().unwrap();
    assert!((2..=8).contains(&max), "{max} pauses ended at once");
}

/// Pauses every send for longer than a test.
struct AlwaysPauses;

impl SendPolicy for AlwaysPauses {
    fn next(&mut self, _state: &SendState<'_>) -> SendStep {
        SendStep::Pause(Duration::from_secs(3600))
    }
}

/// A client that resets its connections, each some time after its request.
struct Resets {
    line: Option<PeerConn>,
    left: usize,
    next_at: Duration,
}

impl Peer for Resets {
    fn step(&mut self, net: &mut Net<'_>) -> Next {
        let early = self.next_at.saturating_sub(net.now());
        if !early.is_zero() {
            return Next::After(early);
        }
        if let Some(line) = self.line.take() {
            net.reset(line);
            self.left -= 1;
        } else if self.left == 0 {
            return Next::Done;
        } else {
            self.line = net.connect(at());
            let line = self.line.as_ref().expect("the server has room");
            net.send(line, b"x");
        }
        let step = Duration::from_millis(10);
        self.next_at = net.now() + step;
        Next::After(step)
    }

    fn waits_for(&self) -> String {
        "the time of its next reset".to_owned()
    }
}

#[test]
fn entries_of_pauses_of_closed_connections_are_removed() {
    for by in By::ALL {
        let machine = machine(FILE_BYTES, |_| {});
        let config = config(|c| c.send_policy = Some(|| Box::new(AlwaysPauses)));
        machine.add_peer(Resets { line: None, left: 20, next_at: Duration::ZERO });
        let app = SendsFile {
            send: |io: &mut dyn Commands, id, file| {
                io.send(id, Chunk::File(file, 0..FILE_BYTES));
            },
            closed: |_| {},
        };
        let (mut pauses, mut slots) = (0, 0);
        let stats = by.serve(&machine, &config, app, |usage| {
            pauses = pauses.max(usage.pauses);
            slots = slots.max(usage.slots);
        });
        assert_eq!(machine.verdict().failure, None, "{by:?}");
        assert_eq!(stats.unwrap().accepted, 20, "{by:?}");
        assert!(pauses > slots && pauses <= 2 * slots, "{by:?}: {pauses} of {slots} connections");
    }
}

thread_local! {
    /// Pauses after which the policy was asked, and for how much of their times.
    static PAUSED: RefCell<Vec<(Duration, Duration)>> = const { RefCell::new(Vec::new()) };
}

/// Sends a byte of a file, before which the driver does not look at it, and has the rest read in two parts. Pauses while the
/// second one is read: shorter than the driver does as the file is being written to. Then pauses longer, and reads that part
/// again.
#[derive(Default)]
struct PausesWhileReading {
    has_begun: bool,
    pauses: usize,
    pause: Option<(Instant, Duration)>,
}

impl SendPolicy for PausesWhileReading {
    fn next(&mut self, state: &SendState<'_>) -> SendStep {
        if let Some((start, time)) = self.pause.take() {
            PAUSED.with_borrow_mut(|paused| paused.push((time, state.now - start)));
        }
        if !mem::replace(&mut self.has_begun, true) {
            return SendStep::Send { max_file_bytes: 1 };
        }
        let times = [Duration::from_millis(10), Duration::from_secs(10)];
        match times.get(self.pauses) {
            _ if state.can_read() && self.pauses != 1 => {
                SendStep::Read { max_bytes: MAX_READ_BYTES }
            }
            Some(time) if state.file_bytes.is_none() => {
                self.pauses += 1;
                self.pause = Some((state.now, *time));
                SendStep::Pause(*time)
            }
            _ => SendStep::Send { max_file_bytes: MAX_READ_BYTES },
        }
    }
}

/// Length of a file that is written to.
const WRITTEN_BYTES: u64 = 2 * MAX_READ_BYTES as u64;

/// Opens the file for each client, writes to it without making it longer, and sends it.
#[derive(Default)]
struct WritesAndSends(Option<File>);

impl Application for WritesAndSends {
    type State = ();
    const MAX_UNCONSUMED: usize = 1;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        if !rx.take().is_empty() {
            x.io.file_op(x.id, 0, FileOp::Open((Root(0), FilePath::new("file")), Access::Read));
        }
    }

    fn file(&mut self, x: Cx<'_, impl Commands, ()>, tag: u32, done: io::Result<FileOutcome>) {
        match (tag, done.unwrap()) {
            (0, FileOutcome::Opened(opened)) => {
                self.0 = Some(opened.0);
                let path = (Root(0), FilePath::new("file"));
                x.io.file_op(x.id, 1, FileOp::Open(path, Access::Write));
            }
            (1, FileOutcome::Opened(opened)) => {
                let write = FileOp::write(opened.0, WriteAt::Offset(0), contents(1));
                x.io.file_op(x.id, 2, write);
            }
            _ => {
                let file = self.0.take().expect("it was opened");
                x.io.send(x.id, Chunk::File(file, 0..WRITTEN_BYTES));
            }
        }
    }
}

/// The driver pauses for a file that is being written to. If the connection pauses already, the next pause must not end
/// with that one.
#[test]
fn pause_in_a_pause_shortened_the_next_one() {
    let machine = machine(WRITTEN_BYTES, |_| {});
    // A read of what is cached completes at once.
    machine.evict("site/file", false);
    machine.read_nothing_ahead();
    let config = config(|c| {
        c.writable_roots = vec![Root(0)];
        c.send_policy = Some(|| Box::<PausesWhileReading>::default());
    });
    Downloader::add(&machine, WRITTEN_BYTES, None);
    let kernel = SimKernel::new(&machine, &config.uring_config(Mode::Deferred).unwrap()).unwrap();
    let server = EventLoop::new(kernel, &config).unwrap();
    let remote = server.remote();
    machine.on_end(move || remote.stop());
    let stats = server.run(WritesAndSends::default()).unwrap();
    assert_eq!(machine.verdict().failure, None);
    let paused = PAUSED.take();
    assert_eq!((stats.read_ahead, paused.len()), (3, 2), "{paused:?}");
    for (time, waited) in paused {
        assert!(waited >= time * 3 / 4, "{waited:?} instead of {time:?}");
    }
}

/// Size of the buffers of both sockets of a slow client.
const SLOW_ROOM: usize = 131_072;
const SLOW_FILE_BYTES: u64 = 1_500_000;
const SLOW_STEP: Duration = Duration::from_millis(100);

/// Returns the time of a download by a client that takes `step_bytes` each 100 ms and becomes faster after `slow_bytes`,
/// and the statistics of its server.
fn download_that_becomes_faster(
    by: By,
    policy: FileDelivery,
    (slow_bytes, step_bytes): (usize, usize),
    progress_interval: Duration,
) -> (Duration, Stats) {
    let machine = machine(SLOW_FILE_BYTES, |p| p.room = Some(SLOW_ROOM));
    let config = config(|c| {
        c.send_policy = policy.send_policy();
        c.progress_interval = progress_interval;
    });
    let pace = Pace { bytes: step_bytes, interval: SLOW_STEP, until: slow_bytes };
    let end = Downloader::add(&machine, SLOW_FILE_BYTES, Some(pace));
    let app = sends_whole_file(SLOW_FILE_BYTES, |_| {});
    let stats = by.serve(&machine, &config, app, |_| {});
    assert_eq!(machine.verdict().failure, None, "{by:?}, {policy}, {slow_bytes}");
    let end = end.get().unwrap();
    assert_eq!(end.bytes, SLOW_FILE_BYTES, "{by:?}, {policy}, {slow_bytes}");
    (end.ended_at, stats.unwrap())
}

#[test]
fn client_of_48_kb_per_second_was_sent_to_as_without_a_policy() {
    for by in By::ALL {
        let download = |policy| {
            let interval = Config::default().progress_interval;
            download_that_becomes_faster(by, policy, (1_000_000, 4_800), interval)
        };
        let (plain_time, plain) = download(FileDelivery::Plain);
        let (time, dns) = download(FileDelivery::Dns);
        assert_eq!(plain.send_pauses, 0, "{by:?}");
        assert!(dns.send_pauses > 10, "{by:?}: {} pauses", dns.send_pauses);
        let (sends, before) = (dns.file_sends, plain.file_sends);
        assert!(sends < before, "{by:?}: {sends} instead of {before} sends");
        // Once it is faster, it waits for one step of a pause at most.
        let max = plain_time + Duration::from_millis(350);
        assert!(time < max, "{by:?}: {time:?} instead of {plain_time:?}");
    }
}

#[test]
fn client_that_became_faster_in_a_pause_was_reset_as_too_slow() {
    // A client of 18,000 bytes per second, whose pauses are 3.6 s long. It becomes faster at different times of them.
    let interval = Duration::from_millis(300);
    for by in By::ALL {
        for steps in (300..336).step_by(3) {
            let slow = (steps * 1_800, 1_800);
            let (_, stats) = download_that_becomes_faster(by, FileDelivery::Dns, slow, interval);
            assert!(stats.send_pauses > 10, "{by:?}: {} pauses", stats.send_pauses);
        }
    }
}
