//! A second group of receive buffers, over memory of the simulation.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use evring::buffers::{BufferGroup, BufferMemory, BufferPool};
use evring::mechanisms::EventLoop;
use evring::{Config, Listener};
use shared_ring::Kernel;

/// Adds a group like the default one, and chooses it for the listener.
pub(super) fn add<K: Kernel>(server: &mut EventLoop<K>, config: &Config) -> BufferGroup {
    let (count, size) = (config.buffers, config.buffer_size);
    let len = BufferPool::memory_len(count, size).expect("the server accepts the same sizes");
    let buffers = BufferPool::over(Box::new(Pages::new(len)), count, size);
    let group = server.add_buffers(buffers.expect("the memory has this length"));
    let group = group.expect("a simulated ring accepts a second group");
    server.set_listener_group(Listener(0), group).expect("the group was just added");
    group
}

/// Whole pages. A watching allocator detects when they are freed while a kernel holds them.
struct Pages {
    start: NonNull<u8>,
    layout: Layout,
}

impl Pages {
    fn new(len: usize) -> Self {
        let layout = Layout::from_size_align(len, 4096).expect("a length within the address space");
        assert!(len > 0, "an empty memory cannot be allocated");
        // SAFETY: the length is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) });
        Pages { start: start.unwrap_or_else(|| handle_alloc_error(layout)), layout }
    }
}

// SAFETY: the allocation lives as long as the value, and nothing else uses it.
unsafe impl BufferMemory for Pages {
    fn bytes(&self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.start, self.layout.size())
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and no longer used.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}
