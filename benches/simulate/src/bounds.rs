//! What a server may use at most: the table of bounds in ARCHITECTURE.md, asserted after each step.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use evring::{Config, Stats, Usage};
use shared_ring::Host;
use shared_ring::sim::{Machine, MachineUsage};

/// When a server was first seen to stop.
pub(super) type Stopped = Rc<Cell<Option<Instant>>>;

/// Most work on files in flight, and of a connection, waiting included.
const WORKS: usize = 256;
const WORKS_EACH: usize = 16;

/// Most lists of directories at a time.
const LISTS: usize = 4;

/// Memory that is kept for later use in one piece at most, and that a list has beside what it holds.
const KEPT: usize = 64 * 1024;

/// Fewer connections of an address than this may be too few for all clients.
pub(super) const MANY: u32 = 1_000;

/// How long a stop takes at most beyond [`Config::drain_timeout`]: what it gives to file work that hangs, and some for
/// what the driver does meanwhile.
const STOP: Duration = Duration::from_millis(1_100);

/// How long a kernel waits at its end for threads and for a ring with file work that hangs, and some.
const END: Duration = Duration::from_millis(2_000 + 5_000 + 200);

/// Most files that a server keeps open by itself, whoever asks for them.
const OPEN_FILES: usize = 256;

/// Looks at what a server on a machine uses; the run fails when that is too much.
///
/// What a connection receives before a pause takes effect is one buffer; where `rings` is set it is what
/// has landed by then: all buffers, and all once more, as they are given back before the kernel takes
/// the cancel.
pub(super) fn watch(
    machine: &Machine,
    config: &Config,
    rings: bool,
    stopped: &Stopped,
) -> impl FnMut(&Usage) + use<> {
    let stopped = Rc::clone(stopped);
    let (machine, config) = (machine.clone(), config.clone());
    let buffers = if rings { 2 * usize::from(config.buffers) } else { 1 };
    let landed = buffers * config.buffer_size as usize;
    let few = config.max_per_address.filter(|most| *most < MANY).map(|most| most as usize);
    let mut refused = 0;
    move |usage| {
        let used = machine.in_use();
        if let Some(most) = few {
            let [largest, of_last] = machine.connections_of_clients();
            if largest > most {
                machine.fail(format!("a client has {largest} connections, at most {most}"));
            }
            // One that is being closed has its place until it is. At a stop many are refused and others end in
            // one step.
            let one = usage.refused_addresses > refused && !usage.stopping;
            if one && of_last + usage.closing < most {
                machine
                    .fail(format!("a client is refused that has {of_last} of {most} connections"));
            }
        }
        refused = usage.refused_addresses;
        if let Some((what, is, most)) = exceeded(usage, &used, &config, landed) {
            machine.fail(format!("a bound is exceeded: {what}: {is}, at most {most}"));
        }
        if usage.stopping {
            let now = machine.clock();
            let since = stopped.get().unwrap_or(now);
            stopped.set(Some(since));
            if now - since > config.drain_timeout + STOP {
                let time = now - since;
                machine
                    .fail(format!("the server has been stopping for {time:?}, and serves still"));
            }
        }
        let (fewest, most) = (usage.sockets - usage.closing, usage.sockets + used.unreported);
        if !(fewest..=most).contains(&used.sockets) {
            let open = used.sockets;
            machine.fail(format!("{open} sockets are open, which should be {fewest} to {most}"));
        }
    }
}

/// Sees that the end of a server was not late, once it is gone, and that it knows what became of each
/// connection.
pub(super) fn watch_end(machine: &Machine, config: &Config, stopped: &Stopped, stats: &Stats) {
    let all = machine.accepted();
    let known = stats.accepted + stats.refused_addresses + stats.abandoned + stats.reset_at_stop;
    if all != known {
        machine.fail(format!("of {all} connections, the server has counted {known}"));
    }
    if let Some(since) = stopped.get()
        && let time = machine.clock() - since
        && time > config.drain_timeout + STOP + END
    {
        machine.fail(format!("the server has ended {time:?} after it began to stop"));
    }
}

/// The first bound that is exceeded: what it is of, how much there is, and may be.
fn exceeded(
    usage: &Usage,
    used: &MachineUsage,
    config: &Config,
    landed: usize,
) -> Option<(&'static str, usize, usize)> {
    let connections = config.max_connections as usize;
    let tail = usage.max_unconsumed + landed;
    // What was sent of a list is held until all of it is, and vectors double.
    let queue = 4 * config.max_queued_bytes + KEPT;
    let files = config.roots.len()
        + usage.file_ops
        + usage.deferred_file_ops
        + usage.all_queued_files
        + usage.connections
        + OPEN_FILES;
    let buffers = usize::from(used.buffers) * 3 / 4;
    let of_an_address = config.max_per_address.map_or(0, |most| most as usize);
    let operations = 3 * usage.connections + usage.file_ops + usage.listeners;
    let bounds = [
        ("connections", usage.connections, connections),
        ("unconsumed bytes", usage.tail, tail),
        ("memory of unconsumed bytes", usage.tail_memory, 2 * tail + KEPT),
        ("bytes queued", usage.queued, config.max_queued_bytes),
        ("memory of what is queued", usage.queue_memory, queue),
        ("memory of a send", used.largest_send, queue),
        ("lists and tails kept for later", usage.spare, Usage::SPARE),
        ("memory of a list or tail kept for later", usage.spare_memory, KEPT + Usage::LIST),
        ("work on files", usage.file_ops, WORKS.min(config.max_file_ops.max(1) as usize)),
        ("work on files that waits", usage.deferred_file_ops, connections),
        ("work on files of a connection", usage.file_ops_per_connection, WORKS_EACH),
        ("lists of directories", usage.lists, LISTS),
        ("work on files in the kernel", used.file_operations, usage.file_ops),
        ("operations in flight", used.operations, operations),
        ("memory counted wrongly", usage.miscounted, 0),
        ("connections of one address", usage.largest_share, of_an_address),
        ("places of addresses", usage.shares, usage.with_share),
        ("connections without their place", usage.with_share, usage.shares),
        ("files open", used.files, files),
        ("receive buffers lent", used.lent.into(), buffers),
    ];
    bounds.into_iter().find(|(_, is, most)| is > most)
}
