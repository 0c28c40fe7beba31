//! Replies in wire format.

use std::io::Write as _;
use std::sync::atomic::Ordering;

use crate::database::Database;
pub(crate) use crate::mirror::END;
use crate::number::parse_u32;
use crate::protocol::{BAD_FORMAT, ERROR};
use crate::store::{Clock, Counted, Found, Usage};

pub(crate) const OK: &[u8] = b"OK\r\n";
pub(crate) const NOT_FOUND: &[u8] = b"NOT_FOUND\r\n";
pub(crate) const TOO_MANY_CONNECTIONS: &[u8] = b"ERROR Too many open connections\r\n";

/// The version of memcached that the server implements. Clients use it to select features.
pub const VERSION: &str = "1.6.18-kv";

/// Writes the line before a value.
#[inline]
pub(crate) fn value_header(key: &[u8], found: &Found, unique: bool, out: &mut Vec<u8>) {
    let mut digits = itoa::Buffer::new();
    out.extend_from_slice(b"VALUE ");
    out.extend_from_slice(key);
    out.push(b' ');
    out.extend_from_slice(digits.format(found.flags).as_bytes());
    out.push(b' ');
    out.extend_from_slice(digits.format(found.len).as_bytes());
    if unique {
        out.push(b' ');
        out.extend_from_slice(digits.format(found.unique).as_bytes());
    }
    out.extend_from_slice(b"\r\n");
}

/// Writes the reply to `incr` and `decr`.
pub(crate) fn counted(counted: Counted, out: &mut Vec<u8>) {
    let mut digits = itoa::Buffer::new();
    let reply: &[u8] = match counted {
        Counted::Now(value) => {
            out.extend_from_slice(digits.format(value).as_bytes());
            b"\r\n"
        }
        Counted::NotFound => NOT_FOUND,
        Counted::NonNumeric => b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n",
        Counted::NoMemory => b"SERVER_ERROR out of memory\r\n",
    };
    out.extend_from_slice(reply);
}

/// Writes the reply to `stats`, with optional arguments.
pub(crate) fn stats(
    what: &[u8],
    args: [&[u8]; 2],
    database: &mut Database,
    clock: &impl Clock,
    out: &mut Vec<u8>,
) {
    match what {
        b"" => general(database, clock, out),
        b"reset" => {
            database.reset_stats(clock);
            out.extend_from_slice(b"RESET\r\n");
            return;
        }
        b"settings" => settings(database, out),
        b"items" => items(database, clock, out),
        b"slabs" => slabs(database, clock, out),
        // Sizes are not counted.
        b"sizes" => stat(out, "sizes_status", "disabled"),
        // Keys are not listed, and prefixes of keys are not counted.
        b"cachedump" => return out.extend_from_slice(cachedump(args)),
        b"detail" => return out.extend_from_slice(detail(args[0])),
        _ => {
            out.extend_from_slice(ERROR);
            return;
        }
    }
    out.extend_from_slice(END);
}

/// Classes of sizes in memcached.
const MAX_CLASSES: u32 = 64;

/// Returns the reply to `stats cachedump CLASS LIMIT`: no class has a key.
fn cachedump([class, limit]: [&[u8]; 2]) -> &'static [u8] {
    if limit.is_empty() {
        return b"CLIENT_ERROR bad command line\r\n";
    }
    match (parse_u32(class), parse_u32(limit)) {
        (Some(0..MAX_CLASSES), Some(_)) => END,
        (Some(_), Some(_)) => b"CLIENT_ERROR Illegal slab id\r\n",
        _ => BAD_FORMAT,
    }
}

/// Returns the reply to `stats detail`.
fn detail(command: &[u8]) -> &'static [u8] {
    match command {
        b"on" | b"off" => b"OK\r\n",
        b"dump" => END,
        _ => b"CLIENT_ERROR usage: stats detail on|off|dump\r\n",
    }
}

fn stat(out: &mut Vec<u8>, name: &str, value: impl std::fmt::Display) {
    let _ = write!(out, "STAT {name} {value}\r\n");
}

fn general(database: &mut Database, clock: &impl Clock, out: &mut Vec<u8>) {
    let (counts, usage) = database.totals(clock);
    let common = &database.common;
    stat(out, "pid", std::process::id());
    stat(out, "uptime", clock.elapsed().as_secs());
    stat(out, "time", clock.unix().as_secs());
    stat(out, "version", VERSION);
    stat(out, "pointer_size", usize::BITS);
    stat(out, "max_connections", database.limits.connections);
    stat(out, "curr_connections", common.connections.load(Ordering::Relaxed));
    stat(out, "total_connections", common.accepted.load(Ordering::Relaxed));
    for (name, value) in counts.entries() {
        stat(out, name, value);
    }
    stat(out, "limit_maxbytes", database.limits.memory);
    stat(out, "accepting_conns", 1);
    stat(out, "threads", common.workers.load(Ordering::Relaxed));
    stat(out, "hash_power_level", usage.buckets.max(1).ilog2());
    stat(out, "hash_bytes", usage.buckets * size_of::<u32>() as u64);
    stat(out, "hash_is_expanding", 0);
    stat(out, "bytes", usage.bytes());
    stat(out, "curr_items", usage.items);
}

fn settings(database: &Database, out: &mut Vec<u8>) {
    stat(out, "maxbytes", database.limits.memory);
    stat(out, "maxconns", database.limits.connections);
    stat(out, "udpport", 0);
    stat(out, "evictions", "on");
    stat(out, "chunk_size", Usage::BLOCK);
    stat(out, "num_threads", database.common.workers.load(Ordering::Relaxed));
    stat(out, "cas_enabled", "yes");
    stat(out, "binding_protocol", "ascii");
    stat(out, "auth_enabled_sasl", "no");
    stat(out, "item_size_max", database.limits.max_item);
    stat(out, "flush_enabled", "yes");
}

/// There is one class of items, as there is one block size.
fn items(database: &mut Database, clock: &impl Clock, out: &mut Vec<u8>) {
    let (counts, usage) = database.totals(clock);
    if usage.items == 0 {
        return;
    }
    stat(out, "items:1:number", usage.items);
    stat(out, "items:1:mem_requested", usage.bytes());
    stat(out, "items:1:evicted", counts.evictions);
    stat(out, "items:1:outofmemory", counts.store_no_memory);
    stat(out, "items:1:reclaimed", counts.reclaimed);
    stat(out, "items:1:expired_unfetched", counts.expired_unfetched);
    stat(out, "items:1:evicted_unfetched", counts.evicted_unfetched);
    stat(out, "items:1:crawler_reclaimed", counts.crawler_reclaimed);
    stat(out, "items:1:crawler_items_checked", counts.crawler_items_checked);
}

fn slabs(database: &mut Database, clock: &impl Clock, out: &mut Vec<u8>) {
    let (counts, usage) = database.totals(clock);
    stat(out, "1:chunk_size", Usage::BLOCK);
    // All memory is one page.
    stat(out, "1:chunks_per_page", usage.max_blocks);
    stat(out, "1:total_pages", 1);
    stat(out, "1:total_chunks", usage.max_blocks);
    stat(out, "1:used_chunks", usage.blocks);
    stat(out, "1:free_chunks", usage.max_blocks - usage.blocks);
    stat(out, "1:get_hits", counts.get_hits);
    stat(out, "1:cmd_set", counts.cmd_set);
    stat(out, "1:delete_hits", counts.delete_hits);
    stat(out, "1:incr_hits", counts.incr_hits);
    stat(out, "1:decr_hits", counts.decr_hits);
    stat(out, "1:cas_hits", counts.cas_hits);
    stat(out, "1:cas_badval", counts.cas_badval);
    stat(out, "1:touch_hits", counts.touch_hits);
    stat(out, "active_slabs", 1);
    stat(out, "total_malloced", usage.max_blocks * Usage::BLOCK);
}
