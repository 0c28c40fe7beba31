//! The table of bounds in ARCHITECTURE.md, asserted after each step.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use evring::__private::Usage;
use evring::{Config, Stats};
use evring_sim::{Machine, MachineUsage};
use shared_ring::Host;

use super::mechanism::Mechanism;

/// The time at which a server began to stop.
pub(super) type StopTime = Rc<Cell<Option<Instant>>>;

/// A limit of connections per address that no run reaches.
pub(super) const UNREACHED_PER_ADDRESS: u32 = 1_000;

/// Maximum time of a stop beyond [`Config::drain_timeout`]: the time for file operations that hang,
/// and the driver's own.
const STOP_MARGIN: Duration = Duration::from_millis(1_100);

/// Maximum time that a kernel waits, when it is dropped, for file operations that hang: in threads, in
/// a ring, and its own.
const DROP_MARGIN: Duration = Duration::from_millis(2_000 + 5_000 + 200);

/// Maximum number of files that posted calls of FlexSC close.
const MAX_CLOSING_FILES: usize = 256;

/// Returns a function that fails the run if a server exceeds a bound.
///
/// Before a pause takes effect, a connection receives at most one buffer. With a ring, it
/// receives everything that has landed by then: at most all buffers twice, as they are returned
/// before the kernel processes the cancel. A posted receive of FlexSC holds a buffer as the program does, for a turn.
///
/// `max_open_files` is the maximum number of open files of a server that limits them itself.
pub(super) fn check(
    machine: &Machine,
    config: &Config,
    mechanism: Mechanism,
    max_open_files: Option<usize>,
    stop_time: &StopTime,
) -> impl FnMut(&Usage) + use<> {
    let (machine, config) = (machine.clone(), config.clone());
    let stop_time = Rc::clone(stop_time);
    let is_flexsc = mechanism == Mechanism::FlexSc;
    let buffers = if mechanism.is_uring() { 2 * usize::from(config.buffers) } else { 1 };
    let landed = buffers * config.buffer_size as usize;
    let reached = |max: &u32| *max < UNREACHED_PER_ADDRESS;
    let per_address = config.max_per_address.filter(reached);
    let per_network = config.max_per_network.filter(reached);
    let mut refused = (0, 0);
    move |usage| {
        let used = machine.in_use();
        if let Some(max) = per_address {
            let refuses = usage.rejected_addresses > refused.0;
            let counts = machine.connections_of_clients();
            check_sources(&machine, usage, "client", counts, max as usize, refuses);
        }
        if let Some(max) = per_network {
            let refuses = usage.rejected_networks > refused.1;
            let counts = machine.connections_of_networks();
            check_sources(&machine, usage, "network", counts, max as usize, refuses);
        }
        refused = (usage.rejected_addresses, usage.rejected_networks);
        let exceeded = usage
            .exceeded(&config, landed)
            .or_else(|| exceeded(usage, &used, &config, is_flexsc, max_open_files));
        if let Some((subject, value, max)) = exceeded {
            machine.fail(format!("bound exceeded: {subject}: {value}, at most {max}"));
        }
        if usage.stopping {
            check_stop(&machine, &config, &stop_time);
        }
        let (min, max) = (usage.sockets - usage.closing, usage.sockets + used.unreported);
        if !(min..=max).contains(&used.sockets) {
            let open = used.sockets;
            machine.fail(format!("{open} sockets are open, expected {min} to {max}"));
        }
    }
}

/// Fails the run if a client or network has too many connections, or one is refused that has fewer. The counts are those
/// of the source with most connections, and of the one whose connection was closed last.
fn check_sources(
    machine: &Machine,
    usage: &Usage,
    source: &str,
    [largest, of_last]: [usize; 2],
    max: usize,
    refuses: bool,
) {
    if largest > max {
        machine.fail(format!("a {source} has {largest} connections, at most {max}"));
    }
    // A connection counts until it is closed. A server that ends accepts all waiting connections in one step:
    // the last one it closed need not be the one that it refused.
    if refuses && !usage.ending && of_last + usage.closing < max {
        machine.fail(format!("a {source} is refused that has {of_last} of {max} connections"));
    }
}

/// Fails the run if a stop takes too long.
fn check_stop(machine: &Machine, config: &Config, stop_time: &StopTime) {
    let now = machine.clock();
    let since = stop_time.get().unwrap_or(now);
    stop_time.set(Some(since));
    let time = now - since;
    if time > config.drain_timeout + STOP_MARGIN {
        machine.fail(format!("the server has been stopping for {time:?}, and still runs"));
    }
}

/// Fails the run if a server ended late, or did not count each accepted connection once.
pub(super) fn check_end(machine: &Machine, config: &Config, stop_time: &StopTime, stats: &Stats) {
    let accepted = machine.accepted();
    let counted = stats.accepted
        + stats.rejected_addresses
        + stats.rejected_networks
        + stats.abandoned
        + stats.reset_at_stop;
    if accepted != counted {
        machine.fail(format!("of {accepted} connections, the server has counted {counted}"));
    }
    if let Some(since) = stop_time.get()
        && let time = machine.clock() - since
        && time > config.drain_timeout + STOP_MARGIN + DROP_MARGIN
    {
        machine.fail(format!("the server ended {time:?} after it began to stop"));
    }
}

/// Returns the first bound of what the server uses of its machine that is exceeded: its subject, the value and the
/// maximum.
fn exceeded(
    usage: &Usage,
    used: &MachineUsage,
    config: &Config,
    is_flexsc: bool,
    max_open_files: Option<usize>,
) -> Option<(&'static str, usize, usize)> {
    let closing = if is_flexsc { MAX_CLOSING_FILES } else { 0 };
    let files = config.roots.len()
        + closing
        + usage.file_ops
        + usage.completed_file_ops
        + usage.deferred_file_ops
        + usage.connections
        + max_open_files.unwrap_or(usage.all_queued_files);
    let all_buffers = usize::from(used.buffers);
    let buffers = if is_flexsc { all_buffers } else { all_buffers * 3 / 4 };
    let operations = 3 * usage.connections + usage.file_ops + usage.listeners;
    let bounds = [
        ("memory of a send", used.largest_send, Usage::max_queue_memory(config)),
        ("file operations in the kernel", used.file_operations, usage.file_ops),
        ("operations in flight", used.operations, operations),
        ("open files", used.files, files),
        ("receive buffers held by the program", used.lent.into(), buffers),
    ];
    bounds.into_iter().find(|(_, value, max)| value > max)
}
