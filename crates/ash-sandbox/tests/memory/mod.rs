//! The memory of a handler, as the host sees it.

use std::ops::Range;

use ash_sandbox::sandbox::Handler;

/// Returns bytes of a handler's memory.
pub(crate) fn bytes(handler: &Handler, range: Range<usize>) -> Vec<u8> {
    let start = handler.memory().host_pointer(range.start);
    // SAFETY: the range is in the memory, and no handler runs.
    unsafe { std::slice::from_raw_parts(start, range.len()) }.to_vec()
}
