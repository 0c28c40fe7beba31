//! Receive buffers in the memory of a handler in a sandbox.

use std::ops::Range;
use std::ptr::NonNull;

use ash_sandbox::sandbox::{Area, Handler};
use shared_ring::buffers::{BufferError, BufferGroup, BufferMemory, BufferPool};

use crate::hooks::BindError;

/// The receive buffers in the memory of a handler that an application calls itself, where [`Landing`](crate::hooks::Landing) calls
/// those in front of it.
///
/// The application passes messages that landed there, which have a [slot](Self::slot_of), to [`Handler::handle`], and copies
/// others ([`Handler::handle_copy`]).
#[derive(Debug)]
pub struct LandingArea {
    group: BufferGroup,
    /// Offsets in the memory.
    range: Range<usize>,
    /// Address of the first byte in the mapping of the host.
    start: usize,
    /// Distance between two receive buffers, in bytes.
    stride: usize,
}

impl LandingArea {
    /// Makes `count` receive buffers of `size` bytes in the message area of a handler; messages that land elsewhere are
    /// copied to the rest of it. `add` adds them to the mechanism.
    ///
    /// # Errors
    /// If the handler is bound, the buffers do not fit its message area, or `add` fails. Then, unless it is bound, the handler
    /// is as before when the buffers that `add` got are dropped.
    pub fn new(
        handler: &mut Handler,
        count: u16,
        size: u32,
        add: impl FnOnce(BufferPool) -> Result<BufferGroup, BufferError>,
    ) -> Result<Self, BindError> {
        let len = BufferPool::memory_len(count, size)?;
        let (_, area) = handler.take_areas(len).ok_or(BindError::Taken)?;
        Self::of(area, (count, size), add)
    }

    pub(crate) fn of(
        area: Area,
        (count, size): (u16, u32),
        add: impl FnOnce(BufferPool) -> Result<BufferGroup, BufferError>,
    ) -> Result<Self, BindError> {
        let (range, start) = (area.range(), area.bytes().addr().get());
        let stride = BufferPool::memory_len(count, size)? / usize::from(count);
        let group = add(BufferPool::over(Box::new(AreaBuffers(area)), count, size)?)?;
        Ok(LandingArea { group, range, start, stride })
    }

    /// Returns the buffer group, for [`Multiplexer::set_listener_group`](crate::mechanisms::Multiplexer::set_listener_group).
    pub fn group(&self) -> BufferGroup {
        self.group
    }

    /// Returns the offsets of the buffers in the memory of the handler.
    pub(crate) fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Returns the slot of the buffer at an offset of the buffers.
    #[inline]
    pub(crate) fn slot(&self, offset: usize) -> u32 {
        (offset / self.stride) as u32
    }

    /// Returns the slot of the buffer that bytes lie in, if there are some and they are in one of the buffers.
    #[inline]
    pub fn slot_of(&self, bytes: &[u8]) -> Option<u32> {
        let offset =
            bytes.first().map(|first| (&raw const *first).addr())?.checked_sub(self.start)?;
        let end = offset.checked_add(bytes.len())?;
        (end <= self.range.len()).then(|| self.slot(offset))
    }
}

/// An area of a handler's memory as the memory of buffers.
pub(crate) struct AreaBuffers(pub(crate) Area);

// SAFETY: the area keeps its memory mapped, which is not a part of the value. There is one value of each
// area. Of what runs for the handler, only `Handler::handle_copy` writes to the message area, to a part that is not in
// this area. Host calls write to slots of the reply area that are free: those whose buffers no reply in flight has. The
// handler itself can store to all slots, by another mapping and while it runs: the thread that runs it then holds no
// reference to a buffer of that area, and the kernel sends the bytes that it finds, which are of this handler.
unsafe impl BufferMemory for AreaBuffers {
    fn bytes(&self) -> NonNull<[u8]> {
        self.0.bytes()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use ash_sandbox::sandbox::{Outcome, Pass, Policy, Sandboxer};

    use super::*;

    #[test]
    fn landing_area_that_failed_left_no_room_for_copies() {
        let module = r#"(module (memory (export "memory") 1 1)
            (func (export "ash_handle") (param i32 i32 i64 i32) (result i32) (i32.const 1)))"#;
        let sandboxer = Sandboxer::new(Policy::default()).unwrap();
        let ash = sandboxer.load(&wat::parse_str(module).unwrap()).unwrap();
        let mut handler = ash.instantiate(1).unwrap();
        let message = vec![0; handler.memory().message_area().len()];
        let copied = |handler: &mut Handler| handler.handle_copy(&message, 7, Instant::now());
        let added = |_| Ok(BufferGroup::DEFAULT);
        let too_many = LandingArea::new(&mut handler, 1024, 2048, added).unwrap_err();
        assert!(matches!(too_many, BindError::Buffers(BufferError::TooSmall { .. })));
        assert_eq!(copied(&mut handler), Outcome::Handled);
        let rejected = |_| Err(BufferError::TooMany);
        let rejected = LandingArea::new(&mut handler, 64, 2048, rejected).unwrap_err();
        assert_eq!(rejected, BindError::Buffers(BufferError::TooMany));
        assert_eq!(copied(&mut handler), Outcome::Handled);
        let mut buffers = None;
        let mut add = |pool| {
            buffers = Some(pool);
            Ok(BufferGroup::DEFAULT)
        };
        LandingArea::new(&mut handler, 64, 2048, &mut add).unwrap();
        let again = LandingArea::new(&mut handler, 64, 2048, added).unwrap_err();
        assert_eq!(again, BindError::Taken);
        assert_eq!(copied(&mut handler), Outcome::Passed(Pass::TooLong));
        drop(buffers);
        assert_eq!(copied(&mut handler), Outcome::Handled);
    }
}
