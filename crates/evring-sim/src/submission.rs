//! Submissions in the kernel's layout.

use std::mem::size_of;
use std::net::{IpAddr, SocketAddr};

use io_uring::opcode;
use io_uring::squeue::Entry as Sqe;
use shared_ring::files::{Access, WriteAt};
use shared_ring::{OpKind, Token};

use crate::memory::MemoryHold;

/// A submission as io_uring_enter(2) reads it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Submission {
    pub(super) opcode: u8,
    pub(super) flags: u8,
    pub(super) ioprio: u16,
    pub(super) fd: i32,
    pub(super) offset: u64,
    pub(super) address: u64,
    pub(super) len: u32,
    pub(super) op_flags: u32,
    pub(super) user_data: u64,
    pub(super) buffer_group: u16,
    pub(super) personality: u16,
    pub(super) splice_fd: i32,
    pub(super) more: [u64; 2],
}

const _: () = assert!(size_of::<Submission>() == size_of::<Sqe>());

pub(super) const ACCEPT_MULTISHOT: u16 = 1;
pub(super) const RECV_MULTISHOT: u16 = 2;
pub(super) const POLL_MULTISHOT: u32 = 1;
/// Size of a `struct io_uring_recvmsg_out`.
pub(super) const RECVMSG_OUT_BYTES: usize = 16;
pub(super) const BUFFER_SELECT: u8 = 1 << 5;
pub(super) const SKIP_SUCCESS: u8 = 1 << 6;
pub(super) const CANCEL_ALL: u32 = 1;
pub(super) const CQE_BUFFER: u32 = 1;
pub(super) const CQE_MORE: u32 = 2;

impl Submission {
    /// Returns where a write begins.
    pub(super) fn write_at(&self) -> WriteAt {
        match self.op_flags & libc::RWF_APPEND as u32 {
            0 => WriteAt::Offset(self.offset),
            _ => WriteAt::End,
        }
    }

    pub(super) fn read(sqe: &Sqe) -> Self {
        // SAFETY: both are 64 bytes in the kernel's layout, and any bytes are a valid `Submission`.
        unsafe { std::mem::transmute_copy(sqe) }
    }

    /// Returns holds of the memory that a submission passes to the kernel.
    ///
    /// # Safety
    /// As for `Ring::push`.
    pub(super) unsafe fn holds(&self) -> Vec<MemoryHold> {
        let (address, len) = (self.address, self.len as usize);
        // SAFETY: the caller promises that the pointers of the submission are valid. Its lengths
        // are those that the kernel reads or writes.
        unsafe {
            match self.opcode {
                opcode::Send::CODE => vec![MemoryHold::to_read(address, len)],
                opcode::SendMsg::CODE => MemoryHold::of_message(address),
                opcode::RecvMsg::CODE => {
                    vec![MemoryHold::to_read(address, size_of::<libc::msghdr>())]
                }
                opcode::Connect::CODE => vec![MemoryHold::to_read(address, self.offset as usize)],
                opcode::OpenAt2::CODE => {
                    let path = std::ffi::CStr::from_ptr(address as *const _);
                    let path = MemoryHold::to_read(address, path.to_bytes_with_nul().len());
                    vec![path, MemoryHold::to_read(self.offset, len)]
                }
                opcode::Write::CODE => vec![MemoryHold::to_read(address, len)],
                // Sends that wait for the disk share the destination of their reads.
                opcode::Read::CODE if Token::from_bits(self.user_data).kind() == OpKind::Send => {
                    vec![MemoryHold::to_share(address, len)]
                }
                opcode::Read::CODE => vec![MemoryHold::to_write(address, len)],
                _ => Vec::new(),
            }
        }
    }
}

impl MemoryHold {
    /// Holds a `msghdr`, and what it refers to.
    ///
    /// # Safety
    /// All of it can be read until the holds are released.
    pub(super) unsafe fn of_message(address: u64) -> Vec<Self> {
        // SAFETY: by the caller's promise.
        unsafe {
            let header = &*(address as *const libc::msghdr);
            let slices = header.msg_iov as u64;
            let count = header.msg_iovlen;
            let mut holds = vec![
                MemoryHold::to_read(address, size_of::<libc::msghdr>()),
                MemoryHold::to_read(slices, count * size_of::<libc::iovec>()),
            ];
            if !header.msg_name.is_null() {
                let (name, len) = (header.msg_name as u64, header.msg_namelen as usize);
                holds.push(MemoryHold::to_read(name, len));
            }
            for slice in std::slice::from_raw_parts(header.msg_iov, count) {
                holds.push(MemoryHold::to_read(slice.iov_base as u64, slice.iov_len));
            }
            holds
        }
    }
}

/// Reads a `msghdr`.
pub(super) fn message(bytes: &[u8]) -> libc::msghdr {
    assert_eq!(bytes.len(), size_of::<libc::msghdr>());
    // SAFETY: there are as many bytes, and any bytes are a valid value.
    unsafe { bytes.as_ptr().cast::<libc::msghdr>().read_unaligned() }
}

/// Reads the flags of a `struct open_how`.
pub(super) fn open_access(how: &[u8]) -> Access {
    let flags = u64::from_ne_bytes(how[..8].try_into().expect("the slice has eight bytes"));
    let has = |flag: libc::c_int| flags & flag as u64 != 0;
    match (has(libc::O_RDWR), has(libc::O_CREAT), has(libc::O_TRUNC)) {
        (false, ..) => Access::Read,
        (_, false, _) => Access::Write,
        (_, _, false) => Access::Create,
        _ => Access::Replace,
    }
}

/// Reads a `sockaddr_in` or a `sockaddr_in6`.
pub(super) fn socket_address(bytes: &[u8]) -> SocketAddr {
    let port = u16::from_be_bytes([bytes[2], bytes[3]]);
    let ip: IpAddr = match i32::from(u16::from_ne_bytes([bytes[0], bytes[1]])) {
        libc::AF_INET => {
            let address: [u8; 4] = bytes[4..8].try_into().expect("the slice has four bytes");
            address.into()
        }
        _ => {
            let address: [u8; 16] = bytes[8..24].try_into().expect("the slice has sixteen bytes");
            address.into()
        }
    };
    SocketAddr::new(ip, port)
}
