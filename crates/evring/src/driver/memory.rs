//! The memory that a server holds at most.

use shared_ring::author::ReadBuffers;
use shared_ring::buffers::GatherList;
use shared_ring::files::{FileVersion, Listing};

use super::connection::Connection;
use super::deferred_reads::MAX_DEFERRED_READS;
use super::io::file_requests::MAX_LISTS;
use super::io::{MIN_HELD, spare_memory};
use crate::{Application, Config, MAX_READ_BYTES};

/// Fixed memory of a mechanism: the event queue, its rings and batches, and the like.
const FIXED_BYTES: usize = 4 << 20;

/// Memory per connection besides [`Connection`] and its state: a timer, entries in the tables of
/// operations, sockets and addresses, and a task under `tokio`.
const CONNECTION_BYTES: usize = 3 * 1024;

/// Memory of a timer, while its table grows.
const TIMER_BYTES: usize = 64;

/// Lists per connection: one in flight, one queued, and one behind a file. An application that queues more
/// files at a time uses more.
const LISTS_PER_CONNECTION: usize = 3;

impl Config {
    /// Returns the maximum number of bytes that a mechanism holds for application `A` when all limits are
    /// reached at once.
    ///
    /// Not included are the kernel's socket buffers, allocator overhead, and memory of the application
    /// besides its connection states, such as shared bytes in send queues and in writes to files.
    pub fn memory_at_full_load<A: Application>(&self) -> usize {
        // While a table or a byte vector grows, the old and the new memory exist together.
        let state = size_of::<A::State>() + 2 * size_of::<Option<FileVersion>>();
        let connection = 2 * (size_of::<Connection>() + state);
        // A list keeps capacity from earlier use.
        let each = connection
            + CONNECTION_BYTES
            + MIN_HELD
            + LISTS_PER_CONNECTION * (size_of::<GatherList>() + GatherList::MAX_KEPT_BYTES);
        let connections = (self.max_connections as usize).saturating_mul(each);
        let buffers = usize::from(self.buffers).saturating_mul(self.buffer_size as usize + 128);
        // The last connection may queue its maximum before it is closed for that.
        let held = self
            .max_buffered_bytes
            .saturating_add(self.max_queued_bytes.min(self.max_buffered_bytes));
        let files = self.max_file_ops as usize * MAX_READ_BYTES as usize;
        let lists = MAX_LISTS * Listing::MAX_BYTES;
        let deferred = match self.send_policy {
            Some(_) => MAX_DEFERRED_READS * MAX_READ_BYTES as usize,
            None => 0,
        };
        [
            connections,
            buffers,
            held.saturating_mul(2),
            files,
            lists,
            deferred,
            (self.max_timers as usize).saturating_mul(TIMER_BYTES),
            spare_memory(self),
            FIXED_BYTES,
            ReadBuffers::MAX_BYTES,
        ]
        .into_iter()
        .fold(0, usize::saturating_add)
    }
}
