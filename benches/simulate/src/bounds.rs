//! What a server may use at most: the table of bounds in ARCHITECTURE.md, asserted after each step.

use evring::{Config, Usage};
use shared_ring::sim::{Machine, MachineUsage};

/// Most work on files in flight, and of a connection, waiting included.
const WORKS: usize = 256;
const WORKS_EACH: usize = 16;

/// Most lists of directories at a time.
const LISTS: usize = 4;

/// Memory that is kept for later use in one piece at most, and that a list has beside what it holds.
const KEPT: usize = 64 * 1024;

/// Most files that a server keeps open by itself, whoever asks for them.
const OPEN_FILES: usize = 256;

/// Looks at what a server on a machine uses; the run fails when that is too much.
///
/// What a connection receives before a pause takes effect is one buffer; where `rings` is set it is what
/// has landed by then: all buffers, and all once more, as they are given back before the kernel takes
/// the cancel.
pub(super) fn watch(machine: &Machine, config: &Config, rings: bool) -> impl FnMut(&Usage) + use<> {
    let (machine, config) = (machine.clone(), config.clone());
    let buffers = if rings { 2 * usize::from(config.buffers) } else { 1 };
    let landed = buffers * config.buffer_size as usize;
    move |usage| {
        let used = machine.in_use();
        if let Some((what, is, most)) = exceeded(usage, &used, &config, landed) {
            machine.fail(format!("a bound is exceeded: {what}: {is}, at most {most}"));
        }
        let (fewest, most) = (usage.sockets - usage.closing, usage.sockets + used.unreported);
        if !(fewest..=most).contains(&used.sockets) {
            let open = used.sockets;
            machine.fail(format!("{open} sockets are open, which should be {fewest} to {most}"));
        }
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
