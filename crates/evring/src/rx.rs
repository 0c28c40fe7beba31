//! Received bytes, as an application sees them.

use std::fmt;
use std::mem;

use shared_ring::RxBuf;

/// Bytes that were received and not consumed yet, in one piece, to be parsed or changed in place.
pub struct Rx<'a> {
    memory: Memory<'a>,
    consumed: usize,
    eof: bool,
}

enum Memory<'a> {
    /// A whole receive buffer that can change hands.
    Buffer(RxBuf),
    /// Bytes that were put together from several.
    Borrowed(&'a mut [u8]),
}

impl<'a> Rx<'a> {
    /// Shows `bytes` that stay where they are.
    pub fn borrowed(bytes: &'a mut [u8], eof: bool) -> Self {
        Rx { memory: Memory::Borrowed(bytes), consumed: 0, eof }
    }

    /// Shows a whole buffer, which can be [taken](Rx::take) without a copy.
    pub fn buffer(buffer: RxBuf, eof: bool) -> Self {
        Rx { memory: Memory::Buffer(buffer), consumed: 0, eof }
    }

    /// What was received and not consumed yet.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match &self.memory {
            Memory::Buffer(buffer) => &buffer[self.consumed..],
            Memory::Borrowed(bytes) => &bytes[self.consumed..],
        }
    }

    /// The same, to be changed in place.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Buffer(buffer) => &mut buffer[self.consumed..],
            Memory::Borrowed(bytes) => &mut bytes[self.consumed..],
        }
    }

    /// Whether these are the last bytes: the peer has ended its side. Once told, it stays so.
    pub fn eof(&self) -> bool {
        self.eof
    }

    /// Consumes the first `n` bytes.
    ///
    /// # Panics
    /// When there are fewer.
    pub fn consume(&mut self, n: usize) {
        assert!(n <= self.bytes().len(), "{n} bytes consumed of {}", self.bytes().len());
        self.consumed += n;
    }

    /// Consumes everything and keeps it: without a copy when the bytes lie in a receive buffer and
    /// buffers are not scarce.
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
