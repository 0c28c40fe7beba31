//! A client that takes one byte of a file each second, on the simulated machine: its connection ends for want of progress,
//! what it used is free, and others are not delayed.

use crate::downloader::{Download, Downloader, Pace, config, machine};
use crate::sends_file::sends_whole_file;

use std::cell::{Cell, RefCell};
use std::time::Duration;

use evring::__private::Usage;
use evring::mechanisms::{EventLoop, Mode};
use evring::{Application, CloseReason, FileDelivery};
use evring_sim::{Machine, SimEngine, SimKernel};
use shared_ring::{Errno, Kernel};

const FILE_BYTES: u64 = 600_000;
const SECOND: Duration = Duration::from_secs(1);

fn serve<K: Kernel, A: Application>(
    machine: &Machine,
    server: EventLoop<K>,
    app: A,
    inspect: impl FnMut(&Usage),
) {
    let remote = server.remote();
    machine.on_end(move || remote.stop());
    server.run_inspected(app, inspect).unwrap();
}

/// Serves a file to a client that takes a byte a second, and to three others.
fn run(policy: FileDelivery, by_ring: bool, evicted: bool) {
    let what = format!("{policy}, {}", if by_ring { "ring" } else { "engine" });
    let machine = machine(FILE_BYTES, |p| p.room = Some(50_000));
    if evicted {
        machine.evict("site/file", false);
    }
    let config = config(|c| c.send_policy = policy.send_policy());
    let pace = Pace { bytes: 1, interval: SECOND, until: FILE_BYTES as usize };
    let slow = Downloader::add(&machine, FILE_BYTES, Some(pace));
    let others = [(); 3].map(|()| Downloader::add(&machine, FILE_BYTES, None));
    let reasons = RefCell::new(Vec::new());
    let app = sends_whole_file(FILE_BYTES, |reason| {
        reasons.borrow_mut().push(match reason {
            CloseReason::Failed(error) => error.raw_os_error(),
            _ => None,
        });
    });
    let at_end = Cell::new(None);
    let inspect = |usage: &Usage| {
        if reasons.borrow().len() == 4 && at_end.get().is_none() {
            at_end.set(Some((*usage, machine.in_use())));
        }
    };
    if by_ring {
        let kernel = SimKernel::new(&machine, &config.uring_config(Mode::Deferred).unwrap());
        serve(&machine, EventLoop::new(kernel.unwrap(), &config).unwrap(), app, inspect);
    } else {
        let kernel = SimEngine::<false>::new(&machine, &config.engine_config().unwrap());
        serve(&machine, EventLoop::new(kernel.unwrap(), &config).unwrap(), app, inspect);
    }
    assert_eq!(machine.verdict().failure, None, "{what}");

    for other in others {
        let Download { ended_at, bytes } = other.get().unwrap();
        assert_eq!(bytes, FILE_BYTES, "{what}");
        assert!(ended_at < SECOND, "{what}: another client had to wait for {ended_at:?}");
    }
    let timed_out = Some(Errno::TIMEDOUT.raw_os_error());
    assert_eq!(reasons.into_inner(), [None, None, None, timed_out], "{what}");
    let Download { ended_at, bytes } = slow.get().unwrap();
    // The first look at the progress is after 0.1 s, the second one 30 s later.
    assert!((30 * SECOND..33 * SECOND).contains(&ended_at), "{what}: {ended_at:?}");
    assert!((29..34).contains(&bytes), "{what}: {bytes} bytes");
    let (usage, machine) = at_end.get().unwrap();
    assert!(!usage.stopping, "{what}");
    assert_eq!((usage.connections, usage.all_queued_files, usage.miscounted), (0, 0, 0), "{what}");
    // The listener and the root are open.
    assert_eq!((machine.sockets, machine.files, machine.lent), (1, 1, 0), "{what}");
}

#[test]
fn client_that_reads_one_byte_a_second_times_out_and_delays_no_other() {
    for policy in FileDelivery::ALL {
        for by_ring in [true, false] {
            for evicted in [true, false] {
                run(policy, by_ring, evicted);
            }
        }
    }
}
