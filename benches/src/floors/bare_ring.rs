//! A ring of io_uring(7) that makes the same operation in batches: the floor of a call that is posted to a ring.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use io_uring::types::{Fd, Fixed};
use io_uring::{IoUring, opcode, squeue};
use rustix::fs::{MemfdFlags, memfd_create};

/// The operation that the ring executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// IORING_OP_NOP, its null operation.
    Nop,
    /// posix_fadvise(2) of normal use of a file in memory.
    Advice,
    /// The same of a file that is registered with the ring.
    RegisteredAdvice,
}

/// See the module.
pub(crate) struct BareRing {
    ring: IoUring,
    file: OwnedFd,
}

impl BareRing {
    /// Creates a ring for batches of up to so many operations.
    pub(crate) fn new(operations: u32) -> io::Result<Self> {
        let ring: IoUring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_submit_all()
            .build(operations)?;
        let file = memfd_create("lab", MemfdFlags::CLOEXEC)?;
        ring.submitter().register_ring_fd()?;
        ring.submitter().register_files(&[file.as_raw_fd()])?;
        Ok(BareRing { ring, file })
    }

    /// Makes a batch by one io_uring_enter(2), and takes its completions.
    pub(crate) fn batch(&mut self, operation: Operation, operations: usize) -> io::Result<()> {
        let normal = libc::POSIX_FADV_NORMAL;
        let entry: squeue::Entry = match operation {
            Operation::Nop => opcode::Nop::new().build(),
            Operation::Advice => opcode::Fadvise::new(Fd(self.file.as_raw_fd()), 0, normal).build(),
            Operation::RegisteredAdvice => opcode::Fadvise::new(Fixed(0), 0, normal).build(),
        };
        let mut queue = self.ring.submission();
        for _ in 0..operations {
            // SAFETY: the entry has no memory, and its file is open as long as the ring.
            unsafe { queue.push(&entry) }.map_err(io::Error::other)?;
        }
        drop(queue);
        self.ring.submit_and_wait(operations)?;
        let mut ended = 0;
        for completion in self.ring.completion() {
            ended += 1;
            if completion.result() < 0 {
                return Err(io::Error::from_raw_os_error(-completion.result()));
            }
        }
        match ended == operations {
            true => Ok(()),
            false => Err(io::Error::other("the ring has not completed a batch")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_is_made_by_the_ring() {
        let mut ring = match BareRing::new(64) {
            Ok(ring) => ring,
            Err(error) => return println!("not tested: a ring: {error}"),
        };
        for operation in [Operation::Nop, Operation::Advice, Operation::RegisteredAdvice] {
            for operations in [1, 64] {
                ring.batch(operation, operations).unwrap();
            }
        }
        assert!(ring.batch(Operation::Nop, 65).is_err());
    }
}
