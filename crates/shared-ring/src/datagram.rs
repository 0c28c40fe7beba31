//! Datagrams: received ones with their source, and those to send with their destination.

use std::fmt;
use std::io;
use std::mem::offset_of;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::AsFd;
use std::time::{Duration, SystemTime};

use rustix::io::Errno;
use rustix::net::addr::SocketAddrArg;

use crate::descriptor::set_option;
use crate::{Fd, GatherList, RxBuf};

/// A received datagram, in its receive buffer.
///
/// The buffer begins with the header of io_uring's multishot recvmsg(2), on each kernel: a `struct
/// io_uring_recvmsg_out`, the source address, and control messages. The bytes of the datagram follow, so a datagram
/// of up to the size of a buffer less [`HEADER_BYTES`](Self::HEADER_BYTES) is whole.
pub struct Datagram {
    /// The bytes of the datagram; the header lies in front of them, and has a valid source.
    bytes: RxBuf,
}

/// `struct io_uring_recvmsg_out`: lengths before truncation, and the flags of recvmsg(2).
#[repr(C)]
#[derive(Clone, Copy)]
struct Header {
    name_len: u32,
    control_len: u32,
    payload_len: u32,
    flags: u32,
}

/// Where the source address lies in the buffer.
const NAME: usize = size_of::<Header>();
/// Bytes for the source address, enough for a `sockaddr_in6`.
pub(crate) const NAME_BYTES: usize = 32;
/// Where the control messages lie.
const CONTROL: usize = NAME + NAME_BYTES;
/// Bytes for control messages, enough for one with the time of arrival.
pub(crate) const CONTROL_BYTES: usize = 32;

/// Room for a control message with a `timespec` (cmsg(3)).
const _: () = assert!(size_of::<libc::cmsghdr>() + size_of::<libc::timespec>() <= CONTROL_BYTES);
const _: () = assert!(size_of::<libc::sockaddr_in6>() <= NAME_BYTES);

impl Datagram {
    /// Bytes in front of a datagram in its buffer.
    pub const HEADER_BYTES: usize = CONTROL + CONTROL_BYTES;

    /// Makes a socket note when datagrams [arrive](Self::arrived_at): the option `SO_TIMESTAMPNS`.
    ///
    /// # Errors
    /// Those of setsockopt(2).
    pub fn note_arrivals(socket: impl AsFd) -> io::Result<()> {
        set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)
    }

    /// Takes a buffer that recvmsg(2) has filled in this layout. `None` if it has no internet address: the receiving
    /// side of the socket is shut down.
    pub(crate) fn decode(mut bytes: RxBuf) -> Option<Self> {
        let head = bytes.get(..Self::HEADER_BYTES)?;
        source(&head[NAME..CONTROL], Header::read(head).name_len)?;
        bytes.advance(Self::HEADER_BYTES);
        Some(Datagram { bytes })
    }

    /// Returns the bytes, at most as many as there was room for.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the buffer with the bytes, which can be sent without a copy.
    pub fn into_buffer(self) -> RxBuf {
        self.bytes
    }

    /// Returns the address from which the datagram claims to come.
    pub fn source(&self) -> SocketAddr {
        let head = self.bytes.front();
        source(&head[NAME..CONTROL], Header::read(head).name_len).expect("it was decoded")
    }

    /// Returns the length of the datagram as it was sent, in bytes.
    pub fn sent_len(&self) -> usize {
        Header::read(self.bytes.front()).payload_len as usize
    }

    /// Returns whether the datagram was longer than the room for it, so that its end is missing.
    pub fn is_truncated(&self) -> bool {
        let is_cut = Header::read(self.bytes.front()).flags & libc::MSG_TRUNC as u32 != 0;
        is_cut || self.sent_len() > self.bytes.len()
    }

    /// Returns when the datagram arrived, if the socket [notes](Self::note_arrivals) that.
    pub fn arrived_at(&self) -> Option<SystemTime> {
        let head = self.bytes.front();
        let len = (Header::read(head).control_len as usize).min(CONTROL_BYTES);
        arrival(&head[CONTROL..CONTROL + len])
    }
}

impl fmt::Debug for Datagram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Datagram({} of {} bytes", self.bytes.len(), self.sent_len())?;
        write!(f, " from {})", self.source())
    }
}

impl Header {
    /// Reads the header at the start of a buffer.
    ///
    /// # Panics
    /// If the buffer is shorter.
    fn read(head: &[u8]) -> Self {
        let word = |at: usize| {
            u32::from_ne_bytes(head[at..at + 4].try_into().expect("the slice has four bytes"))
        };
        Header {
            name_len: word(offset_of!(Header, name_len)),
            control_len: word(offset_of!(Header, control_len)),
            payload_len: word(offset_of!(Header, payload_len)),
            flags: word(offset_of!(Header, flags)),
        }
    }

    fn write(self, head: &mut [u8]) {
        let words = [self.name_len, self.control_len, self.payload_len, self.flags];
        for (to, word) in head.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
    }
}

/// Reads a `sockaddr_in` or a `sockaddr_in6` of this length.
fn source(name: &[u8], len: u32) -> Option<SocketAddr> {
    let family = i32::from(u16::from_ne_bytes([name[0], name[1]]));
    let port = u16::from_be_bytes([name[2], name[3]]);
    let has = |size: usize| len as usize >= size;
    match family {
        libc::AF_INET if has(size_of::<libc::sockaddr_in>()) => {
            let ip: [u8; 4] = name[4..8].try_into().expect("the slice has four bytes");
            Some(SocketAddrV4::new(Ipv4Addr::from(ip), port).into())
        }
        libc::AF_INET6 if has(size_of::<libc::sockaddr_in6>()) => {
            let ip: [u8; 16] = name[8..24].try_into().expect("the slice has sixteen bytes");
            let scope = u32::from_ne_bytes(name[24..28].try_into().expect("it has four bytes"));
            Some(SocketAddrV6::new(Ipv6Addr::from(ip), port, 0, scope).into())
        }
        _ => None,
    }
}

/// Reads the time of arrival from the first control message.
fn arrival(control: &[u8]) -> Option<SystemTime> {
    if control.len() < size_of::<libc::cmsghdr>() + size_of::<libc::timespec>() {
        return None;
    }
    // SAFETY: there are as many bytes, and any bytes are a valid value.
    let head: libc::cmsghdr = unsafe { control.as_ptr().cast::<libc::cmsghdr>().read_unaligned() };
    if (head.cmsg_level, head.cmsg_type) != (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) {
        return None;
    }
    let time = control[size_of::<libc::cmsghdr>()..].as_ptr().cast::<libc::timespec>();
    // SAFETY: as above.
    let time = unsafe { time.read_unaligned() };
    let since = Duration::new(time.tv_sec.try_into().ok()?, time.tv_nsec.try_into().ok()?);
    SystemTime::UNIX_EPOCH.checked_add(since)
}

/// Receives a datagram by recvmsg(2), with the header in front of it. Returns the number of bytes of both.
///
/// # Errors
/// Those of recvmsg(2); `EINVAL` if there is no room for the header.
pub(crate) fn receive(fd: Fd, into: &mut [u8]) -> Result<usize, Errno> {
    let Some((head, payload)) = into.split_at_mut_checked(Datagram::HEADER_BYTES) else {
        return Err(Errno::INVAL);
    };
    let mut slice = libc::iovec { iov_base: payload.as_mut_ptr().cast(), iov_len: payload.len() };
    // SAFETY: a plain C structure for which all zero bytes are a valid value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = head[NAME..].as_mut_ptr().cast();
    message.msg_namelen = NAME_BYTES as u32;
    message.msg_control = head[CONTROL..].as_mut_ptr().cast();
    message.msg_controllen = CONTROL_BYTES;
    message.msg_iov = &raw mut slice;
    message.msg_iovlen = 1;
    let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
    // SAFETY: the pointers are to memory of the given lengths, which this function borrows.
    let len = unsafe { libc::recvmsg(fd.raw(), &raw mut message, flags) };
    if len < 0 {
        let error = io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    }
    let (len, max) = (len as usize, payload.len());
    let header = Header {
        name_len: message.msg_namelen,
        control_len: message.msg_controllen as u32,
        payload_len: len as u32,
        flags: message.msg_flags as u32,
    };
    header.write(head);
    Ok(Datagram::HEADER_BYTES + len.min(max))
}

/// Writes a datagram as a kernel does that received it. Returns the number of bytes with the header, which are cut to
/// the room for them.
pub fn write(from: SocketAddr, bytes: &[u8], into: &mut [u8]) -> usize {
    let (head, payload) = into.split_at_mut(Datagram::HEADER_BYTES);
    let kept = bytes.len().min(payload.len());
    payload[..kept].copy_from_slice(&bytes[..kept]);
    let name = Name::of(from);
    head.fill(0);
    // SAFETY: the storage is longer than the room for the address, and all of it is initialised.
    head[NAME..CONTROL].copy_from_slice(unsafe {
        std::slice::from_raw_parts((&raw const name.storage).cast::<u8>(), NAME_BYTES)
    });
    let flags = if kept < bytes.len() { libc::MSG_TRUNC as u32 } else { 0 };
    let payload_len = bytes.len() as u32;
    Header { name_len: name.len, control_len: 0, payload_len, flags }.write(head);
    Datagram::HEADER_BYTES + kept
}

/// A datagram to send, and where to. It can be used again, with the memory of its list.
pub struct Transmit {
    /// The destination.
    pub to: SocketAddr,
    /// The bytes of the datagram. At most [`GatherList::MAX_SLICES`] segments are sent.
    pub data: GatherList,
    name: Name,
}

/// An address as the kernel reads it.
pub(crate) struct Name {
    pub(crate) storage: libc::sockaddr_storage,
    pub(crate) len: u32,
}

impl Default for Name {
    fn default() -> Self {
        // SAFETY: a plain C structure for which all zero bytes are a valid value.
        Name { storage: unsafe { std::mem::zeroed() }, len: 0 }
    }
}

impl Name {
    pub(crate) fn of(to: SocketAddr) -> Self {
        let mut name = Name::default();
        name.set(to);
        name
    }

    fn set(&mut self, to: SocketAddr) {
        // SAFETY: the closure copies `len` bytes, never more than a `sockaddr_storage` holds, from the address given
        // by rustix.
        self.len = unsafe {
            to.with_sockaddr(|from, len| {
                let into = (&raw mut self.storage).cast::<u8>();
                std::ptr::copy_nonoverlapping(from.cast::<u8>(), into, len as usize);
                len
            })
        };
    }
}

impl Transmit {
    /// Creates an empty datagram to this address.
    pub fn new(to: SocketAddr) -> Box<Self> {
        Box::new(Transmit { to, data: GatherList::default(), name: Name::default() })
    }

    /// Returns the datagram in the format of sendmsg(2). Valid as long as the value neither moves nor changes.
    pub(crate) fn message(&mut self) -> *const libc::msghdr {
        self.name.set(self.to);
        self.data.fill_msghdr();
        let header = &mut self.data.msghdr.header;
        header.msg_name = (&raw mut self.name.storage).cast();
        header.msg_namelen = self.name.len;
        header
    }
}

impl fmt::Debug for Transmit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Transmit({} bytes to {})", self.data.len(), self.to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BufferPool;

    fn decoded(from: SocketAddr, bytes: &[u8], room: usize) -> Datagram {
        let pool = BufferPool::new(1, (Datagram::HEADER_BYTES + room) as u32);
        let mut buffer = pool.lend_free().unwrap();
        let len = write(from, bytes, &mut buffer);
        buffer.truncate(len);
        Datagram::decode(buffer).unwrap()
    }

    #[test]
    fn list_of_a_datagram_kept_its_destination() {
        let mut datagram = Transmit::new("127.0.0.1:7".parse().unwrap());
        datagram.data.copy(b"a");
        datagram.message();
        let mut list = std::mem::take(&mut datagram.data);
        drop(datagram);
        // SAFETY: the header is a part of the list.
        let header = unsafe { *list.message() };
        assert!(header.msg_name.is_null() && header.msg_namelen == 0);
    }

    #[test]
    fn datagrams_keep_source_bytes_and_length() {
        for from in ["127.0.0.1:7", "[::1]:65535", "[fe80::1%3]:53"] {
            let from: SocketAddr = from.parse().unwrap();
            for (len, room) in [(0, 10), (10, 10), (11, 10), (5, 0)] {
                let bytes = vec![7; len];
                let datagram = decoded(from, &bytes, room);
                assert_eq!(datagram.source(), from);
                assert_eq!(datagram.bytes(), &bytes[..len.min(room)]);
                assert_eq!(datagram.sent_len(), len);
                assert_eq!(datagram.is_truncated(), len > room);
                assert_eq!(datagram.arrived_at(), None);
            }
        }
    }

    #[test]
    fn buffers_without_a_source_are_no_datagrams() {
        let pool = BufferPool::new(1, Datagram::HEADER_BYTES as u32);
        let buffer = || {
            let mut buffer = pool.lend_free().unwrap();
            buffer.fill(0);
            buffer
        };
        assert!(Datagram::decode(buffer()).is_none());
        let mut short = buffer();
        short.truncate(Datagram::HEADER_BYTES - 1);
        assert!(Datagram::decode(short).is_none());
        // A family alone is no address.
        let mut family = buffer();
        write("[::1]:1".parse().unwrap(), &[], &mut family);
        family[..4].copy_from_slice(&2_u32.to_ne_bytes());
        assert!(Datagram::decode(family).is_none());
    }

    #[test]
    fn header_has_the_layout_of_io_uring_recvmsg_out() {
        assert_eq!((size_of::<Header>(), offset_of!(Header, flags)), (16, 12));
        assert_eq!(Datagram::HEADER_BYTES, 80);
    }
}
