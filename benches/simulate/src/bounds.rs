//! The table of bounds in ARCHITECTURE.md, asserted after each step.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use evring::__private::Usage;
use evring::{Config, HIGH_WATER, Stats};
use evring_sim::{Machine, MachineUsage};
use shared_ring::Host;

use super::mechanism::Mechanism;

/// The time at which a server began to stop.
pub(super) type StopTime = Rc<Cell<Option<Instant>>>;

/// Maximum number of file operations in flight; of a connection, including deferred ones.
const MAX_FILE_OPS: usize = 256;
const MAX_CONN_FILE_OPS: usize = 16;

/// Maximum number of directory listings at a time.
const MAX_LISTS: usize = 4;

/// Memory with which a connection does not end, whatever the others hold, in bytes.
const MIN_HELD_BYTES: usize = 1024;

/// Maximum memory of one piece kept for reuse, and overhead of a list, in bytes.
const MAX_KEPT_BYTES: usize = 64 * 1024;

/// A limit of connections per address that no run reaches.
pub(super) const UNREACHED_PER_ADDRESS: u32 = 1_000;

/// Maximum time of a stop beyond [`Config::drain_timeout`]: the time for file operations that hang,
/// and the driver's own.
const STOP_MARGIN: Duration = Duration::from_millis(1_100);

/// Maximum time that a kernel waits, when it is dropped, for file operations that hang: in threads, in
/// a ring, and its own.
const DROP_MARGIN: Duration = Duration::from_millis(2_000 + 5_000 + 200);

/// Maximum number of files that a server keeps open itself.
const MAX_OPEN_FILES: usize = 256;

/// Returns a function that fails the run if a server exceeds a bound.
///
/// Before a pause takes effect, a connection receives at most one buffer. With a ring, it
/// receives everything that has landed by then: at most all buffers twice, as they are returned
/// before the kernel processes the cancel. A posted receive of FlexSC holds a buffer as the program does, for a turn.
pub(super) fn check(
    machine: &Machine,
    config: &Config,
    mechanism: Mechanism,
    stop_time: &StopTime,
) -> impl FnMut(&Usage) + use<> {
    let (machine, config) = (machine.clone(), config.clone());
    let stop_time = Rc::clone(stop_time);
    let posts_receives = mechanism == Mechanism::FlexSc;
    let buffers = if mechanism.is_uring() { 2 * usize::from(config.buffers) } else { 1 };
    let landed = buffers * config.buffer_size as usize;
    let per_address = config.max_per_address.filter(|max| *max < UNREACHED_PER_ADDRESS);
    let mut refused = 0;
    move |usage| {
        let used = machine.in_use();
        if let Some(max) = per_address {
            let refuses = usage.rejected_addresses > refused;
            check_addresses(&machine, usage, max as usize, refuses);
        }
        refused = usage.rejected_addresses;
        if let Some((subject, value, max)) = exceeded(usage, &used, &config, landed, posts_receives)
        {
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

/// Fails the run if an address has too many connections, or one is refused that has fewer.
fn check_addresses(machine: &Machine, usage: &Usage, max: usize, refuses: bool) {
    let [largest, of_last] = machine.connections_of_clients();
    if largest > max {
        machine.fail(format!("a client has {largest} connections, at most {max}"));
    }
    // A connection counts until it is closed. A server that ends accepts all waiting connections in one step:
    // the last one it closed need not be the one that it refused.
    if refuses && !usage.ending && of_last + usage.closing < max {
        machine.fail(format!("a client is refused that has {of_last} of {max} connections"));
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

/// Returns the first exceeded bound: its subject, the value and the maximum.
fn exceeded(
    usage: &Usage,
    used: &MachineUsage,
    config: &Config,
    landed: usize,
    posts_receives: bool,
) -> Option<(&'static str, usize, usize)> {
    let connections = config.max_connections as usize;
    let tail = usage.max_unconsumed + landed;
    // A list holds its sent bytes until all of them are sent, and vectors double.
    let queue = 4 * config.max_queued_bytes + MAX_KEPT_BYTES;
    let files = config.roots.len()
        + usage.file_ops
        + usage.deferred_file_ops
        + usage.all_queued_files
        + usage.connections
        + MAX_OPEN_FILES;
    let all_buffers = usize::from(used.buffers);
    let buffers = if posts_receives { all_buffers } else { all_buffers * 3 / 4 };
    let per_address = config.max_per_address.map_or(0, |max| max as usize);
    let per_network = config.max_per_network.map_or(0, |max| max as usize);
    // A connection that holds little does not end for the others. The one that ends may have filled its queue.
    let held = config.max_buffered_bytes + connections * MIN_HELD_BYTES + queue + 2 * tail;
    let queued_files = config.max_queued_bytes / HIGH_WATER + 1;
    let operations = 3 * usage.connections + usage.file_ops + usage.listeners;
    let bounds = [
        ("connections", usage.connections, connections),
        ("unconsumed bytes", usage.tail, tail),
        ("memory of unconsumed bytes", usage.tail_memory, 2 * tail + MAX_KEPT_BYTES),
        ("queued bytes", usage.queued, config.max_queued_bytes),
        ("memory of queued bytes", usage.queue_memory, queue),
        ("memory of a send", used.largest_send, queue),
        ("memory of all connections", usage.held, held),
        ("bytes of files being read ahead", usage.read_ahead_bytes, config.max_buffered_bytes / 2),
        ("bytes of writes to files", usage.write_bytes, config.max_buffered_bytes),
        ("queued files of a connection", usage.queued_files, queued_files),
        ("kept lists and tails", usage.spare, Usage::SPARE),
        ("memory of a kept list or tail", usage.spare_memory, MAX_KEPT_BYTES + Usage::LIST),
        ("file operations", usage.file_ops, MAX_FILE_OPS.min(config.max_file_ops.max(1) as usize)),
        ("deferred file operations", usage.deferred_file_ops, connections),
        ("file operations of a connection", usage.file_ops_per_connection, MAX_CONN_FILE_OPS),
        ("directory listings", usage.lists, MAX_LISTS),
        ("file operations in the kernel", used.file_operations, usage.file_ops),
        ("operations in flight", used.operations, operations),
        ("memory counter errors", usage.miscounted, 0),
        ("connections of an address", usage.largest_share, per_address),
        ("connections of a network", usage.largest_network, per_network),
        ("counters of networks", usage.network_shares, usage.with_share),
        ("counters of addresses", usage.shares, usage.with_share),
        ("connections without a counter", usage.with_share, usage.shares),
        ("open files", used.files, files),
        ("receive buffers held by the program", used.lent.into(), buffers),
    ];
    bounds.into_iter().find(|(_, value, max)| value > max)
}
