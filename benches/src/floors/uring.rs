//! The floor for io_uring(7): multishot accept and receive, one io_uring_enter(2) per turn.

use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::io;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::{BufRingEntry, Fd};
use io_uring::{IoUring, SubmissionQueue, Submitter, cqueue, opcode, squeue};

use super::connection::{BUFFER, Task};

const BUFFERS: u16 = 256;
const GROUP: u16 = 0;

/// The kind of an operation, part of the `user_data` with the descriptor and the buffer.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Accept,
    Receive,
    Send,
    Close,
}

const KINDS: [Kind; 4] = [Kind::Accept, Kind::Receive, Kind::Send, Kind::Close];

fn pack(kind: Kind, fd: i32, buffer: u16) -> u64 {
    (kind as u64) << 48 | u64::from(buffer) << 32 | fd as u64
}

fn unpack(data: u64) -> (Kind, i32, u16) {
    (KINDS[(data >> 48) as usize & 3], data as u32 as i32, (data >> 32) as u16)
}

pub(super) fn serve(listener: TcpListener, task: Task) -> io::Result<u64> {
    // A multishot accept on a non-blocking listener ends instead of waiting.
    listener.set_nonblocking(false)?;
    let mut ring: IoUring = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_coop_taskrun()
        .setup_taskrun_flag()
        .setup_submit_all()
        .setup_cqsize(2048)
        .build(512)?;
    let (mut submitter, sq, mut cq) = ring.split();
    submitter.register_ring_fd()?;
    let buffers = Buffers::register(&submitter)?;
    let mut floor = Floor { sq, submitter, buffers, task, calls: 5 };
    floor.accept(listener.as_raw_fd());
    loop {
        floor.sq.sync();
        floor.calls += 1;
        // Waiting for one completion sets GETEVENTS, which a ring with DEFER_TASKRUN requires.
        match floor.submitter.submit_and_wait(1) {
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => continue,
            Err(error) => return Err(error),
            Ok(_) => floor.sq.sync(),
        }
        cq.sync();
        for entry in &mut cq {
            let (kind, fd, buffer) = unpack(entry.user_data());
            let (result, more) = (entry.result(), cqueue::more(entry.flags()));
            match kind {
                Kind::Accept if result == -libc::EINVAL => return Ok(floor.calls),
                Kind::Accept => floor.accepted(fd, result, more),
                Kind::Receive => floor.received(fd, result, more, entry.flags()),
                Kind::Send if matches!(task, Task::Echo) => floor.buffers.recycle(buffer),
                Kind::Send | Kind::Close => {}
            }
        }
        floor.buffers.publish();
    }
}

struct Floor<'a> {
    submitter: Submitter<'a>,
    sq: SubmissionQueue<'a>,
    buffers: Buffers,
    task: Task,
    calls: u64,
}

impl Floor<'_> {
    fn push(&mut self, entry: squeue::Entry) {
        // SAFETY: an entry refers to a descriptor, a buffer of the group, or bytes that are either
        // static or in a buffer that is returned only after its send has completed.
        while unsafe { self.sq.push(&entry) }.is_err() {
            self.sq.sync();
            self.calls += 1;
            // An error means that completions are pending; a later iteration finds space.
            let _ = self.submitter.submit();
            self.sq.sync();
        }
    }

    fn accept(&mut self, listener: i32) {
        let entry = opcode::AcceptMulti::new(Fd(listener)).build();
        self.push(entry.user_data(pack(Kind::Accept, listener, 0)));
    }

    fn accepted(&mut self, listener: i32, result: i32, more: bool) {
        if result >= 0 {
            self.receive(result);
        }
        if !more {
            self.accept(listener);
        }
    }

    fn receive(&mut self, fd: i32) {
        let entry = opcode::RecvMulti::new(Fd(fd), GROUP).build();
        self.push(entry.user_data(pack(Kind::Receive, fd, 0)));
    }

    #[inline]
    fn received(&mut self, fd: i32, result: i32, more: bool, flags: u32) {
        if let (1.., Some(buffer)) = (result, cqueue::buffer_select(flags)) {
            let bytes = match self.task {
                Task::Echo => (self.buffers.address(buffer), result as u32),
                Task::Reply(reply) => {
                    self.buffers.recycle(buffer);
                    (reply.as_ptr(), reply.len() as u32)
                }
            };
            // MSG_WAITALL makes the kernel complete a short send.
            let entry = opcode::Send::new(Fd(fd), bytes.0, bytes.1)
                .flags(libc::MSG_WAITALL | libc::MSG_NOSIGNAL)
                .build();
            self.push(entry.user_data(pack(Kind::Send, fd, buffer)));
        } else if result != -libc::ENOBUFS {
            // Closed by an operation, so that it follows the queued sends.
            let entry = opcode::Close::new(Fd(fd)).build();
            return self.push(entry.user_data(pack(Kind::Close, fd, 0)));
        }
        if !more {
            self.receive(fd);
        }
    }
}

/// The ring of provided buffers. Its memory is never freed, as the kernel may write to it until the
/// ring is destroyed, some time after its descriptor is closed.
struct Buffers {
    entries: NonNull<BufRingEntry>,
    memory: NonNull<u8>,
    tail: u16,
}

impl Buffers {
    fn register(submitter: &Submitter<'_>) -> io::Result<Self> {
        let entries = pages(size_of::<BufRingEntry>() * usize::from(BUFFERS)).cast();
        let memory = pages(BUFFER * usize::from(BUFFERS));
        let mut buffers = Buffers { entries, memory, tail: 0 };
        let address = entries.as_ptr() as u64;
        // SAFETY: the memory holds BUFFERS entries, is page-aligned, and is never freed.
        unsafe { submitter.register_buf_ring_with_flags(address, BUFFERS, GROUP, 0)? };
        for buffer in 0..BUFFERS {
            buffers.recycle(buffer);
        }
        buffers.publish();
        Ok(buffers)
    }

    fn address(&self, buffer: u16) -> *const u8 {
        // SAFETY: `buffer` is below BUFFERS, so the offset lies within the memory.
        unsafe { self.memory.as_ptr().add(usize::from(buffer) * BUFFER) }
    }

    fn recycle(&mut self, buffer: u16) {
        let index = usize::from(self.tail % BUFFERS);
        let address = self.address(buffer) as u64;
        // SAFETY: `index` is below BUFFERS. The kernel does not read the entries at or after the
        // tail, and writes none, so this thread has exclusive access to the entry.
        let entry = unsafe { &mut *self.entries.as_ptr().add(index) };
        entry.set_addr(address);
        entry.set_len(BUFFER as u32);
        entry.set_bid(buffer);
        self.tail = self.tail.wrapping_add(1);
    }

    /// Publishes the returned buffers to the kernel.
    fn publish(&self) {
        // SAFETY: the tail is in the first entry, which is initialised; only this thread writes
        // it, and an `AtomicU16` has the same layout.
        let tail = unsafe { &*BufRingEntry::tail(self.entries.as_ptr()).cast::<AtomicU16>() };
        tail.store(self.tail, Ordering::Release);
    }
}

fn pages(bytes: usize) -> NonNull<u8> {
    let layout = Layout::from_size_align(bytes, 4096).expect("the layout of a few pages is valid");
    // SAFETY: the size is not zero.
    let memory = unsafe { alloc_zeroed(layout) };
    NonNull::new(memory).unwrap_or_else(|| handle_alloc_error(layout))
}
