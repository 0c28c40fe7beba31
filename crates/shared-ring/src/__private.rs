//! Items that the other crates of this workspace use. Not a part of the public interface.

use std::rc::Rc;

pub use crate::datagram::write as write_datagram;
pub use crate::panics::catch_panic;
pub use crate::table::Table;
use crate::{BufferPool, GatherList, RxBuf};

/// Returns the memory of the list and its segments, in bytes. Shared bytes count with their visible length,
/// constants with nothing. Simulations check that sends and queues stay within their bounds.
pub fn held(list: &GatherList) -> usize {
    list.held()
}

/// Returns the pool to which the buffer returns. Simulations count the buffers that a program keeps.
pub fn pool(buf: &RxBuf) -> &Rc<BufferPool> {
    buf.pool()
}
