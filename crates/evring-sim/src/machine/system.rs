//! The system calls of [`System`].

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use shared_ring::author::{CallJob, EventCounter, FileJob, System, WakeSignal};
use shared_ring::files::{File, FileOp, FileOutcome, Metadata};
use shared_ring::nonblocking::FileRange;
use shared_ring::poller::Readiness;
use shared_ring::{Fd, Socket, Waker};

use crate::fault::Fault;
use crate::machine::Machine;
use crate::number;
use crate::state::{DescriptorKind, readiness};
use crate::work::SimOffload;

/// Linux fills a pipe of this size from the file before it looks at the socket.
const PIPE_BYTES: u32 = 64 * 1024;

/// The counter of a waker.
#[derive(Debug)]
struct SimCounter(Fd, Arc<AtomicU64>);

impl EventCounter for SimCounter {
    fn fd(&self) -> Fd {
        self.0
    }

    fn add_one(&self) {
        self.1.fetch_add(1, Ordering::AcqRel);
    }

    fn reset(&self) {
        self.1.store(0, Ordering::Release);
    }
}

/// The owner of an open file.
struct FileOwner(Machine, Fd);

impl Drop for FileOwner {
    fn drop(&mut self) {
        self.0.state().close(self.1);
    }
}

impl System for Machine {
    type Offload = SimOffload;

    fn waker(&mut self, _flag: WakeSignal) -> io::Result<Waker> {
        let mut state = self.state();
        let counter = Arc::new(AtomicU64::new(0));
        let fd = state.open(DescriptorKind::Event(Arc::clone(&counter)))?;
        state.add_waker(fd, Arc::clone(&counter));
        Ok(Waker::of(SimCounter(fd, counter)))
    }

    fn offload(&self, waker: Waker) -> SimOffload {
        self.state().set_worker(waker);
        SimOffload::new(self.clone())
    }

    fn recv(&mut self, fd: Fd, into: &mut [u8]) -> Result<usize, Errno> {
        self.may_be_signalled(true);
        self.interrupted()?;
        self.receive(fd, into)
    }

    fn send(&mut self, fd: Fd, bytes: &[u8]) -> Result<usize, Errno> {
        self.may_be_signalled(true);
        self.interrupted()?;
        self.send_all(fd, &[IoSlice::new(bytes)])
    }

    fn sendmsg(&mut self, fd: Fd, slices: &[IoSlice<'_>]) -> Result<usize, Errno> {
        self.may_be_signalled(true);
        self.interrupted()?;
        self.send_all(fd, slices)
    }

    fn receive_from(&mut self, fd: Fd, into: &mut [u8]) -> Result<usize, Errno> {
        self.may_be_signalled(true);
        self.interrupted()?;
        self.receive_datagram(fd, into)
    }

    fn send_to(&mut self, fd: Fd, slices: &[IoSlice<'_>], to: SocketAddr) -> Result<(), Errno> {
        self.may_be_signalled(true);
        self.interrupted()?;
        self.send_datagram(fd, slices, to)
    }

    fn is_writable(&mut self, fd: Fd) -> Result<bool, Errno> {
        self.may_be_signalled(true);
        self.interrupted()?;
        Ok(readiness(&mut self.state(), fd).contains(Readiness::WRITE))
    }

    fn sendfile(&mut self, fd: Fd, part: FileRange) -> Result<usize, Errno> {
        self.may_be_signalled(true);
        self.interrupted()?;
        let mut sent = 0;
        // No server can notice that a file changes during a call. Clients accept it within a block.
        let first = part.offset % File::BLOCK_BYTES;
        let may_change = first + u64::from(part.len) <= File::BLOCK_BYTES;
        loop {
            let (offset, remaining) = (part.offset + u64::from(sent), part.len - sent);
            let len = remaining.min(PIPE_BYTES);
            let n = match self.send_piece(fd, FileRange { offset, len, ..part }, may_change) {
                Ok(n) => n as u32,
                Err(_) if sent > 0 => 0,
                Err(errno) => return Err(errno),
            };
            sent += n;
            if n < len || sent == part.len {
                return Ok(sent as usize);
            }
        }
    }

    fn is_cold(&mut self, part: FileRange) -> bool {
        self.may_be_signalled(true);
        self.is_cold_now(Some(part))
    }

    fn set_read_ahead(&mut self, file: Fd, on: bool) {
        self.may_be_signalled(true);
        let mut state = self.state();
        if state.file(file, "fadvise").is_ok() {
            state.page_cache.set_read_ahead(file, on);
        }
    }

    fn connect(&mut self, fd: Fd, to: SocketAddr) -> Result<(), Errno> {
        self.may_be_signalled(true);
        self.state().start_connect(fd, to)?;
        Err(Errno::INPROGRESS)
    }

    fn connected(&mut self, fd: Fd) -> Result<(), Errno> {
        self.may_be_signalled(true);
        match self.state().kind(fd, "getsockopt")? {
            DescriptorKind::Connected(_) => Ok(()),
            DescriptorKind::Refused(errno) => Err(*errno),
            _ => Err(Errno::INPROGRESS),
        }
    }

    fn file_work(&mut self, work: &FileJob) -> Result<FileOutcome, Errno> {
        self.may_be_signalled(true);
        let part = match work {
            FileOp::Read(file, range) => {
                let len = u32::try_from(range.end - range.start).unwrap_or(u32::MAX);
                Some(FileRange { file: *file, offset: range.start, len })
            }
            _ => None,
        };
        if work.may_always_block() || self.is_cold_now(part) {
            return Err(Errno::AGAIN);
        }
        self.do_work(work)
    }

    fn read_cached(&mut self, part: FileRange, into: &mut [u8]) -> Result<usize, Errno> {
        self.may_be_signalled(true);
        if self.is_cold_now(Some(part)) {
            return Err(Errno::AGAIN);
        }
        let bytes = self.read_all(part)?;
        into[..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }

    fn call(&mut self, job: &CallJob) -> Result<usize, Errno> {
        self.may_be_signalled(true);
        self.do_call(job)
    }

    fn enable_sigio(&mut self, _: Fd) -> Result<(), Errno> {
        self.interrupts();
        Ok(())
    }

    fn disable_sigio(&mut self, _: Fd) -> Result<(), Errno> {
        Ok(())
    }

    /// Peers may run first.
    fn signalled(&self) -> bool {
        let mut state = self.state();
        let signalled = state.rng.fault(Fault::Signal);
        if signalled {
            state.enter();
        }
        signalled
    }

    fn meta(&self, fd: Fd) -> Result<Metadata, Errno> {
        self.may_be_signalled(true);
        self.metadata(fd)
    }

    fn file(&self, opened: Socket) -> File {
        let owner = FileOwner(self.clone(), number::of(&opened));
        File::of(opened, owner)
    }
}
