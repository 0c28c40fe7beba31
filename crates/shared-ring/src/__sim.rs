//! What simulations read to check that memory stays within its bounds. Not a part of the public interface.

use std::rc::Rc;

use crate::{BufferPool, GatherList, RxBuf};

/// Returns the memory of the list and its segments, in bytes. Shared bytes count with their visible length,
/// constants with nothing. Counts the memory of sends, which no operation reports.
pub fn held(list: &GatherList) -> usize {
    list.held()
}

/// Returns the pool to which the buffer returns. Counts the buffers that a program keeps.
pub fn pool(buf: &RxBuf) -> &Rc<BufferPool> {
    buf.pool()
}
