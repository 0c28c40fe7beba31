//! System calls by number.

use std::ffi::CStr;
use std::io::IoSlice;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::ResolveFlags;
use rustix::io::Errno;
use shared_ring::author::{CallJob, System};
use shared_ring::nonblocking::FileRange;
use shared_ring::{Host, Socket};

use crate::fault::Fault;
use crate::machine::Machine;
use crate::number;
use crate::state::DescriptorKind;
use crate::submission::{message, open_access, socket_address};

/// Size of a page of a file, at whose end a read of the page cache may stop.
const PAGE_BYTES: u64 = 4096;

impl Machine {
    /// Creates a counter, as eventfd(2) does, and a function that adds to it. A read in the event loop
    /// does not wait for it, others do.
    ///
    /// # Errors
    /// `EMFILE` at the maximum number of descriptors.
    pub fn event(&self) -> Result<(Socket, impl Fn(u64) + use<>), Errno> {
        let mut state = self.state();
        let counter = Arc::new(AtomicU64::new(0));
        let fd = state.open(DescriptorKind::Event(Arc::clone(&counter)))?;
        state.add_waker(fd, Arc::clone(&counter));
        let add = move |n| {
            counter.fetch_add(n, Ordering::AcqRel);
        };
        Ok((number::socket(fd), add))
    }

    /// Makes one of the system calls that the machine has by number: getrandom, read, pread64, and those of
    /// [`Machine::do_server_call`].
    pub(crate) fn do_call(&self, job: &CallJob) -> Result<usize, Errno> {
        let [a, b, c, d, ..] = job.args;
        // SAFETY: by the promises of `Call::new` and `Call::job`, the memory at `start` has `len` bytes,
        // which are not accessed otherwise.
        let memory =
            |start: usize, len| unsafe { std::slice::from_raw_parts_mut(start as *mut u8, len) };
        let fd = number::fd(a as i32);
        match i64::from(job.number) {
            libc::SYS_getrandom => {
                let mut state = self.state();
                memory(a, b).fill_with(|| state.rng.number() as u8);
                Ok(b)
            }
            libc::SYS_read => {
                let mut state = self.state();
                match state.kind(fd, "read")? {
                    DescriptorKind::Event(counter) => match counter.swap(0, Ordering::AcqRel) {
                        _ if c < 8 => Err(Errno::INVAL),
                        0 => Err(Errno::AGAIN),
                        count => {
                            memory(b, 8).copy_from_slice(&count.to_ne_bytes());
                            Ok(8)
                        }
                    },
                    DescriptorKind::Connected(_) => {
                        drop(state);
                        self.receive(fd, memory(b, c))
                    }
                    _ => Err(Errno::INVAL),
                }
            }
            libc::SYS_pread64 => {
                let part = FileRange { file: fd, offset: d as u64, len: c as u32 };
                let bytes = self.read(part)?;
                memory(b, bytes.len()).copy_from_slice(&bytes);
                Ok(bytes.len())
            }
            // SAFETY: as above.
            _ => unsafe { self.do_server_call(job) },
        }
    }

    /// Makes one of the system calls of a server, without waiting.
    ///
    /// # Safety
    /// The memory of the arguments is valid.
    unsafe fn do_server_call(&self, job: &CallJob) -> Result<usize, Errno> {
        let [a, b, c, d, _, f] = job.args;
        let (fd, mut machine) = (number::fd(a as RawFd), self.clone());
        // SAFETY: by the caller's promise, as that of a call with these arguments; the call writes to it.
        let memory =
            |start: usize, len| unsafe { std::slice::from_raw_parts_mut(start as *mut u8, len) };
        // SAFETY: as above; the call only reads it.
        let bytes =
            |start: usize, len| unsafe { std::slice::from_raw_parts(start as *const u8, len) };
        let number_of = |fd: RawFd| fd as usize;
        match i64::from(job.number) {
            libc::SYS_accept4 => {
                let accepted = machine.accept(&number::socket(fd))?;
                Ok(number_of(accepted.as_raw_fd()))
            }
            libc::SYS_recvfrom => machine.recv(fd, memory(b, c)),
            libc::SYS_sendto | libc::SYS_write => machine.send(fd, bytes(b, c)),
            libc::SYS_sendmsg => {
                let header = message(bytes(b, size_of::<libc::msghdr>()));
                let pieces =
                    bytes(header.msg_iov as usize, header.msg_iovlen * size_of::<libc::iovec>());
                let slices: Vec<_> = pieces
                    .chunks_exact(size_of::<libc::iovec>())
                    // SAFETY: any bytes are an `iovec`.
                    .map(|piece| unsafe { piece.as_ptr().cast::<libc::iovec>().read_unaligned() })
                    .map(|piece| IoSlice::new(bytes(piece.iov_base as usize, piece.iov_len)))
                    .collect();
                machine.sendmsg(fd, &slices)
            }
            libc::SYS_sendfile => {
                let place = memory(c, 8);
                let offset = u64::from_ne_bytes(place.try_into().expect("eight bytes"));
                let file = number::fd(b as RawFd);
                let sent = machine.sendfile(fd, FileRange { file, offset, len: d as u32 })?;
                place.copy_from_slice(&(offset + sent as u64).to_ne_bytes());
                Ok(sent)
            }
            libc::SYS_connect => {
                let state = match *self.state().kind(fd, "connect")? {
                    DescriptorKind::Connecting(..) => return Err(Errno::ALREADY),
                    DescriptorKind::Connected(_) => return Err(Errno::ISCONN),
                    DescriptorKind::Refused(errno) => return Err(errno),
                    _ => socket_address(bytes(b, c)),
                };
                machine.connect(fd, state).map(|()| 0)
            }
            libc::SYS_close => {
                self.state().close(fd);
                Ok(0)
            }
            libc::SYS_openat2 => {
                let how = bytes(c, d);
                let resolve = u64::from_ne_bytes(how[16..24].try_into().expect("eight bytes"));
                if resolve & ResolveFlags::CACHED.bits() != 0 && self.is_cold_now(None) {
                    return Err(Errno::AGAIN);
                }
                // SAFETY: by the caller's promise.
                let path = unsafe { CStr::from_ptr(b as *const _) };
                let opened = self.open(fd, path.to_bytes(), open_access(how))?;
                Ok(number_of(opened.raw()))
            }
            libc::SYS_preadv2 => {
                // SAFETY: as above.
                let piece = unsafe { &*(b as *const libc::iovec) };
                let part = FileRange { file: fd, offset: d as u64, len: piece.iov_len as u32 };
                let read = if f & libc::RWF_NOWAIT as usize == 0 {
                    self.read(part)?
                } else if self.is_cold_now(Some(part)) {
                    return Err(Errno::AGAIN);
                } else {
                    self.read_nowait(part)?
                };
                memory(piece.iov_base as usize, read.len()).copy_from_slice(&read);
                Ok(read.len())
            }
            _ => Err(Errno::NOSYS),
        }
    }

    /// Reads from the page cache: up to the end of the file, or of a page.
    fn read_nowait(&self, part: FileRange) -> Result<Vec<u8>, Errno> {
        let mut bytes = self.read_part(part)?;
        let end = part.offset + bytes.len() as u64;
        let whole_pages = (end / PAGE_BYTES * PAGE_BYTES).saturating_sub(part.offset) as usize;
        if (1..bytes.len()).contains(&whole_pages) && self.state().rng.fault(Fault::ShortRead) {
            bytes.truncate(whole_pages);
        }
        Ok(bytes)
    }
}
