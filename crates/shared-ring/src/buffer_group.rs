//! Groups of receive buffers: a kernel's own, and others over memory of the caller.

use std::fmt;
use std::ptr::NonNull;

use rustix::io::Errno;

/// Names a group of receive buffers of one kernel.
///
/// A [receive](crate::Op::Receive) uses the buffers of its group only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BufferGroup(pub(crate) u16);

impl BufferGroup {
    /// The kernel's own buffers, of which its configuration gives number and size.
    pub const DEFAULT: BufferGroup = BufferGroup(0);

    /// Maximum number of groups of a kernel, with its own.
    pub const MAX: usize = 64;

    /// Returns the number of the group: groups are numbered in the order of their addition.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Returns the group that a kernel with `count` groups adds next.
    pub(crate) fn after(count: usize) -> Result<Self, BufferError> {
        if count < Self::MAX { Ok(BufferGroup(count as u16)) } else { Err(BufferError::TooMany) }
    }
}

/// Memory for receive buffers that the caller provides, such as a mapped file.
///
/// A [`BufferPool`](crate::buffers::BufferPool) owns the value. It drops the value when no operation can write
/// to the memory and no [`RxBuf`](crate::buffers::RxBuf) over it is left; if the kernel may still write, never.
///
/// # Safety
/// - `bytes` always returns the same memory. It stays mapped, readable and writable, until the value
///   is dropped, and it is not part of the value itself.
/// - Until then no reference to the memory exists elsewhere, and nothing else writes to it: a message
///   is lent as a mutable slice. Other mappings of the same pages may be read.
pub unsafe trait BufferMemory {
    /// Returns the memory. Its start is aligned to a page of 4,096 bytes.
    fn bytes(&self) -> NonNull<[u8]>;
}

/// The place of received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The group of the buffer.
    pub group: BufferGroup,
    /// Offset of the first byte in the memory of the group, in bytes.
    pub offset: usize,
}

/// The reason why a group of buffers cannot be created, added or chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BufferError {
    /// The number of buffers is not a power of two up to 32,768.
    Count(u16),
    /// A buffer is empty, or the buffers do not fit the address space.
    Size(u32),
    /// The memory does not start at a page.
    Unaligned,
    /// The memory is too small.
    TooSmall {
        /// Length that the buffers need, in bytes.
        needed: usize,
        /// Length of the memory, in bytes.
        len: usize,
    },
    /// The kernel has [`BufferGroup::MAX`] groups.
    TooMany,
    /// The kernel has no such group.
    Unknown(BufferGroup),
    /// There is no such connection or listener.
    Absent,
    /// The connection has begun to receive.
    TooLate,
    /// The operating system rejected the group.
    Rejected(Errno),
}

impl fmt::Display for BufferError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BufferError::Count(count) => {
                write!(f, "{count} receive buffers: choose a power of two up to 32768")
            }
            BufferError::Size(size) => {
                write!(f, "receive buffers of {size} bytes: choose a size from 1 byte to 16 MiB")
            }
            BufferError::Unaligned => {
                f.write_str("the memory for receive buffers must start at a multiple of 4096 bytes")
            }
            BufferError::TooSmall { needed, len } => write!(
                f,
                "the receive buffers need {needed} bytes, but the memory has {len}: map more, or \
                 choose fewer or smaller buffers"
            ),
            BufferError::TooMany => {
                write!(f, "a kernel has at most {} groups of receive buffers", BufferGroup::MAX)
            }
            BufferError::Unknown(group) => {
                write!(f, "there is no buffer group {}: add its buffers first", group.0)
            }
            BufferError::Absent => f.write_str(
                "there is no such connection or listener: choose the group while it is open",
            ),
            BufferError::TooLate => f.write_str(
                "the connection has begun to receive: choose its buffer group when it is accepted",
            ),
            BufferError::Rejected(errno) => {
                write!(f, "the kernel rejected the group of receive buffers: {errno}")
            }
        }
    }
}

impl std::error::Error for BufferError {}
