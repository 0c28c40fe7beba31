//! Received bytes, as passed to an application.

use std::fmt;
use std::mem;

use shared_ring::buffers::{Place, RxBuf};

/// Received and unconsumed bytes in one piece, to parse or modify in place.
pub struct Rx<'a> {
    memory: Memory<'a>,
    consumed: usize,
    eof: bool,
    is_partial: bool,
}

enum Memory<'a> {
    /// A whole receive buffer, which the application can take.
    Buffer(RxBuf),
    /// Bytes assembled from several buffers.
    Borrowed(&'a mut [u8]),
}

impl<'a> Rx<'a> {
    /// Wraps `bytes` that stay in place.
    pub fn borrowed(bytes: &'a mut [u8], eof: bool) -> Self {
        Rx { memory: Memory::Borrowed(bytes), consumed: 0, eof, is_partial: false }
    }

    /// Wraps a whole buffer, which can be [taken](Rx::take) without a copy.
    pub fn buffer(buffer: RxBuf, eof: bool) -> Self {
        Rx { memory: Memory::Buffer(buffer), consumed: 0, eof, is_partial: false }
    }

    /// Says whether a layer has a part of further bytes, such as an incomplete record of TLS.
    pub fn partial(mut self, is_partial: bool) -> Self {
        self.is_partial = is_partial;
        self
    }

    /// Returns the unconsumed bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match &self.memory {
            Memory::Buffer(buffer) => &buffer[self.consumed..],
            Memory::Borrowed(bytes) => &bytes[self.consumed..],
        }
    }

    /// Returns the unconsumed bytes for modification in place.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Buffer(buffer) => &mut buffer[self.consumed..],
            Memory::Borrowed(bytes) => &mut bytes[self.consumed..],
        }
    }

    /// Returns whether these are the last bytes: the peer has shut down its sending side. Stays true for
    /// later calls.
    pub fn eof(&self) -> bool {
        self.eof
    }

    /// Returns whether the peer has sent a part of further bytes, which a layer below the application cannot decode yet. The
    /// application is called when that becomes true, without bytes if there are none: a connection on which a message has
    /// begun to arrive is not idle.
    pub fn is_partial(&self) -> bool {
        self.is_partial
    }

    /// Returns where the unconsumed bytes lie: the buffer group, and the offset in its memory. `None` if
    /// they are not in a receive buffer: the driver keeps bytes that were left unconsumed elsewhere.
    pub fn place(&self) -> Option<Place> {
        let Memory::Buffer(buffer) = &self.memory else { return None };
        let Place { group, offset } = buffer.place()?;
        Some(Place { group, offset: offset + self.consumed })
    }

    /// Returns whether the bytes lie in a buffer of which there are few left.
    #[cfg(feature = "sandbox")]
    pub(crate) fn is_scarce(&self) -> bool {
        matches!(&self.memory, Memory::Buffer(buffer) if buffer.is_scarce())
    }

    /// Consumes the first `n` bytes.
    ///
    /// # Panics
    /// Panics if there are fewer.
    #[inline]
    pub fn consume(&mut self, n: usize) {
        assert!(n <= self.bytes().len(), "{n} bytes consumed of {}", self.bytes().len());
        self.consumed += n;
    }

    /// Returns the buffer without the consumed bytes, as it is; `None` if it was taken.
    #[inline]
    pub(crate) fn into_buffer(self) -> Option<RxBuf> {
        match self.memory {
            Memory::Buffer(mut buffer) => {
                buffer.advance(self.consumed);
                Some(buffer)
            }
            Memory::Borrowed(_) => None,
        }
    }

    /// Consumes and returns all bytes where they lie, also if buffers are scarce; `None` if they are in no receive buffer.
    #[cfg(feature = "sandbox")]
    pub(crate) fn take_in_place(&mut self) -> Option<RxBuf> {
        mem::replace(self, Rx::borrowed(&mut [], self.eof)).into_buffer()
    }

    /// Consumes and returns all bytes. Does not copy if they are in a receive buffer and buffers are not
    /// scarce.
    #[inline]
    pub fn take(&mut self) -> RxBuf {
        let consumed = mem::take(&mut self.consumed);
        match mem::replace(&mut self.memory, Memory::Borrowed(&mut [])) {
            Memory::Buffer(mut buffer) => {
                buffer.advance(consumed);
                buffer.copy_if_scarce()
            }
            Memory::Borrowed(bytes) => RxBuf::from(bytes[consumed..].to_vec()),
        }
    }
}

impl fmt::Debug for Rx<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rx({} bytes, eof {})", self.bytes().len(), self.eof)
    }
}
