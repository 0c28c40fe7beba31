//! The memory that a server shares with a process for upcalls.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::{MAX_PLACES, Policy};

/// The version of this layout, at the beginning of the memory.
const MAGIC: u64 = u64::from_le_bytes(*b"ashupc02");

/// The first bytes of the memory, all of them atomics, as the other side may write any of them. Server and process
/// write to lines of their own.
#[repr(C)]
pub(crate) struct Header {
    magic: AtomicU64,
    places: AtomicU32,
    message_bytes: AtomicU32,
    reply_bytes: AtomicU32,
    _line: [AtomicU32; 11],
    /// The messages that were submitted, and that the process has not taken.
    pub(crate) submitted: AtomicU64,
    /// Whether the server has to wake the process before the process looks for messages.
    pub(crate) peer_sleeps: AtomicU32,
    _second_line: [AtomicU32; 13],
    /// The messages that are done, and that the server has not taken.
    pub(crate) done: AtomicU64,
    /// Whether the process has to wake the server before the server looks for answers.
    pub(crate) server_sleeps: AtomicU32,
    _third_line: [AtomicU32; 13],
}

/// A place for a message and its reply. The bytes of both follow it.
#[repr(C)]
pub(crate) struct Place {
    pub(crate) connection: AtomicU64,
    pub(crate) message_len: AtomicU32,
    pub(crate) result: AtomicU32,
    pub(crate) reply_len: AtomicU32,
    pub(crate) has_event: AtomicU32,
    pub(crate) kind: AtomicU64,
    pub(crate) value: AtomicU64,
    _rest_of_line: [AtomicU64; 3],
}

const _: () = assert!(size_of::<Header>() == 192 && size_of::<Place>() == 64);

/// The mapped memory. Each process has a mapping, and all access is through pointers and atomics, as the
/// other side may write at any time.
#[derive(Debug)]
pub(crate) struct Shared {
    start: NonNull<c_void>,
    len: usize,
    places: usize,
    message_bytes: usize,
    reply_bytes: usize,
}

// SAFETY: the mapping belongs to this value, and everything in it is accessed as atomics and by copies.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: this value has mapped the range, and lends no reference that outlives it.
        let _ = unsafe { munmap(self.start.as_ptr(), self.len) };
    }
}

impl Shared {
    /// Creates the memory, and returns it with its descriptor for the other process.
    pub(crate) fn create(policy: &Policy) -> io::Result<(Self, OwnedFd)> {
        let Policy { places, max_message_bytes, max_reply_bytes, .. } = *policy;
        let (message_bytes, reply_bytes) =
            (max_message_bytes.next_multiple_of(64), max_reply_bytes.next_multiple_of(64));
        let len = size_of::<Header>() + places * (size_of::<Place>() + message_bytes + reply_bytes);
        let fd = memfd_create("ash-upcall", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, len as u64)?;
        // The other process must not be able to cut memory that this one accesses.
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let start = map(&fd, len)?;
        let shared = Shared { start, len, places, message_bytes, reply_bytes };
        let header = shared.header();
        header.places.store(places as u32, Relaxed);
        header.message_bytes.store(message_bytes as u32, Relaxed);
        header.reply_bytes.store(reply_bytes as u32, Relaxed);
        header.server_sleeps.store(1, Relaxed);
        header.magic.store(MAGIC, Relaxed);
        Ok((shared, fd))
    }

    /// Maps the memory of a server.
    pub(crate) fn open(fd: impl AsFd) -> io::Result<Self> {
        let unsuitable = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        let len = fstat(&fd)?.st_size as usize;
        if len < size_of::<Header>() {
            return Err(unsuitable("the memory for upcalls is too small"));
        }
        let start = map(&fd, len)?;
        let mut shared = Shared { start, len, places: 0, message_bytes: 0, reply_bytes: 0 };
        let header = shared.header();
        let (magic, places) = (header.magic.load(Relaxed), header.places.load(Relaxed) as usize);
        let message_bytes = header.message_bytes.load(Relaxed) as usize;
        let reply_bytes = header.reply_bytes.load(Relaxed) as usize;
        shared.places = places;
        shared.message_bytes = message_bytes;
        shared.reply_bytes = reply_bytes;
        let is_aligned = message_bytes.is_multiple_of(64) && reply_bytes.is_multiple_of(64);
        if magic != MAGIC || !(1..=MAX_PLACES).contains(&places) || !is_aligned {
            return Err(unsuitable("the memory for upcalls is of another version of this crate"));
        }
        if shared.offset(places) > len {
            return Err(unsuitable("the memory for upcalls is too small for its places"));
        }
        Ok(shared)
    }

    pub(crate) fn places(&self) -> usize {
        self.places
    }

    pub(crate) fn message_bytes(&self) -> usize {
        self.message_bytes
    }

    pub(crate) fn reply_bytes(&self) -> usize {
        self.reply_bytes
    }

    fn offset(&self, place: usize) -> usize {
        let each = size_of::<Place>() + self.message_bytes + self.reply_bytes;
        size_of::<Header>() + place * each
    }

    #[inline]
    pub(crate) fn header(&self) -> &Header {
        // SAFETY: the memory begins with a header, whose words are atomics.
        unsafe { self.start.cast::<Header>().as_ref() }
    }

    #[inline]
    pub(crate) fn place(&self, place: usize) -> &Place {
        assert!(place < self.places, "place {place} of {}", self.places);
        // SAFETY: the place is in the memory and aligned to a line, and its words are atomics.
        unsafe { self.start.byte_add(self.offset(place)).cast::<Place>().as_ref() }
    }

    /// Returns the address of the bytes for a message; those for its reply follow.
    #[inline]
    pub(crate) fn message(&self, place: usize) -> *mut u8 {
        let place: *const Place = self.place(place);
        place.cast::<u8>().cast_mut().wrapping_add(size_of::<Place>())
    }

    #[inline]
    pub(crate) fn reply(&self, place: usize) -> *mut u8 {
        self.message(place).wrapping_add(self.message_bytes)
    }
}

fn map(fd: impl AsFd, len: usize) -> io::Result<NonNull<c_void>> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping.
    let start = unsafe { mmap(ptr::null_mut(), len, protection, MapFlags::SHARED, fd, 0) }?;
    NonNull::new(start).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}
