//! The limits of the modules that a sandboxer accepts and of their handlers.

use std::time::Duration;

/// Limits of handlers. Work is measured in operations: one for each WebAssembly instruction, eight for a load, which may miss
/// the caches, one for each value and local that an instruction may have to move, and a fixed number for each host call and for
/// the bytes that it touches.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Policy {
    /// Maximum size of a module in bytes.
    pub max_module_bytes: usize,
    /// Maximum number of functions that a module defines, and of the elements of its table.
    pub max_functions: u32,
    /// Maximum size of a module's memory in bytes.
    pub max_memory_bytes: usize,
    /// Size of the message area, behind the module's memory; a multiple of the page size. The
    /// handler can only read it.
    pub message_area_bytes: usize,
    /// Number of reply slots, behind the message area: a power of two up to 64. A
    /// reply in a slot leaves without a copy.
    pub reply_slots: u16,
    /// Size of a reply slot in bytes, a multiple of the page size. A reply has up to
    /// [`SLOT_GAP`](super::SLOT_GAP) bytes less.
    pub reply_slot_bytes: usize,
    /// Allows floating point.
    pub allows_floats: bool,
    /// Maximum number of operations in one invocation (section 4.1.2).
    pub max_operations: u64,
    /// Maximum number of operations in the body of a function, also if nothing calls it. Operations are counted when a function
    /// is called, when it has returned, and at each iteration of a loop, so a handler exceeds
    /// [`max_operations`](Self::max_operations) by one body at most, which is not charged. It is also the maximum work of the
    /// compiler with a body: one for each instruction, and more for its locals, the targets of its branches, loops, conditions
    /// and calls, with which the compiler has more work than their run takes operations.
    pub max_body_operations: u64,
    /// Maximum work of the compiler with all functions, with what the compiler does for each type, import, function, global, export
    /// and segment, which is that of 40 to 300 operations.
    pub max_module_operations: u64,
    /// Number of operations that a tenant may use in a second (section 2.4), by all its handlers on all
    /// threads. They are refilled evenly. A tenant that was idle may use those of a tenth of a second at once, or those of two
    /// invocations if these are more, and delay others for as long: by default up to 20,000,000, which take 6 to 26 ms by
    /// the time of an endless loop in `BENCHMARKS.md`, and more for loads that miss the caches. Beyond that, messages are passed to the application. A handler with loops or recursion,
    /// or with calls that are charged by their bytes, is invoked only while [`max_operations`](Self::max_operations) are left,
    /// or all of a second if these are fewer; one that is [bounded by a clock](Loops::Epoch), only while the nanoseconds of two
    /// and a half ticks are left beside them. Any other handler is invoked while its longest path is left.
    pub operations_per_second: u64,
    /// Maximum number of messages that a handler sends in one invocation.
    pub max_sends: usize,
    /// Maximum number of events that a handler posts in one invocation.
    pub max_events: usize,
    /// Number of involuntary aborts after which a handler is disabled.
    pub max_aborts: u32,
    /// How loops are bounded.
    pub loops: Loops,
}

/// The bound of handlers with loops or recursion. Other handlers need none: their longest path is
/// known when they are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loops {
    /// Count operations, at each call, return and iteration; slower by a tenth to a quarter. A handler exceeds its maximum by
    /// [one body](Policy::max_body_operations) at most. A memory access, a division or a call by a table that traps loses the
    /// count: the handler is charged for all operations that the invocation had.
    Fuel,
    /// Check a clock tick at each call, return and iteration: a handler ends at the second tick, as in section 4.1.2, or at a
    /// later one if other threads ran meanwhile: not before its own thread has run for half a tick since the first. It is
    /// charged an operation for each nanosecond until the first tick, one tick at most, and of its own thread since then. A
    /// thread ticks, every 100 us at most. It runs before real-time threads of a lower priority than the highest that the process
    /// may have: any with CAP_SYS_NICE, else the limit of real-time priority (`ulimit -r`). Behind other threads it may be late,
    /// and a handler is charged less than it uses: [`Fuel`](Loops::Fuel) is exact.
    ///
    /// The [operations of a second](Policy::operations_per_second) should be more than the nanoseconds of two and a half ticks
    /// and [`max_operations`](Policy::max_operations). If they are fewer, an invocation may use more than all of them: the
    /// handler is invoked only while they are all left.
    Epoch(Duration),
}

impl Policy {
    /// Returns the policy with changes.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            max_module_bytes: 1 << 20,
            max_functions: 1000,
            max_memory_bytes: 4 << 20,
            message_area_bytes: 256 << 10,
            reply_slots: 16,
            reply_slot_bytes: 4096,
            allows_floats: false,
            max_operations: 100_000,
            max_body_operations: 20_000,
            max_module_operations: 100_000,
            operations_per_second: 200_000_000,
            max_sends: 8,
            max_events: 8,
            max_aborts: 3,
            loops: Loops::Fuel,
        }
    }
}
