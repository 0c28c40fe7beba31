//! Multishot submissions outside the table of operations: changes of a descriptor's state, or the
//! bytes that it receives.
//!
//! Such a submission owns no memory, and its only results are raw completions. So a signal handler can
//! begin it and take its completions.

use io_uring::cqueue;

use super::{Cqe, RawCompletion, Ring, UringKernel, sqe};
use crate::{Fd, KernelError, OpKind, RxBuf, Token};

impl<R: Ring> UringKernel<R> {
    /// Queues a multishot submission for a descriptor. A token of kind [`OpKind::Watch`] reports its
    /// state in the format of poll(2), one of kind [`OpKind::Stream`] the bytes that it receives, until
    /// a completion without [`has_more`](RawCompletion::has_more). Returns false if the queue is full or
    /// the token is of another kind.
    ///
    /// Submit it with [`flush`](UringKernel::flush). Safe to call in a signal handler.
    pub fn begin(&mut self, token: Token, fd: Fd) -> bool {
        if !matches!(token.kind(), OpKind::Watch | OpKind::Stream) {
            // Its completions would be taken for those of an operation.
            return false;
        }
        // SAFETY: the submission points to no memory; it receives into provided buffers, which exist as
        // long as `streams` is not zero.
        let pushed = unsafe { self.ring.push(&sqe::multishot(token, fd)) };
        self.streams += u32::from(pushed);
        pushed
    }

    /// Cancels the submission of a token. A pending completion may still follow, and a last one does.
    /// Returns whether the cancellation was submitted; if not, a later turn submits it.
    ///
    /// # Errors
    /// Only if the kernel is unusable from now on.
    pub fn end(&mut self, token: Token) -> Result<bool, KernelError> {
        self.cancels.push_back(token);
        self.fill()?;
        self.flush().map(|all| all && self.cancels.is_empty())
    }

    /// Submits the queue, and fetches completions that have overflowed, without waiting. Returns whether
    /// all submissions were taken. Safe to call in a signal handler.
    ///
    /// # Errors
    /// Only if the kernel is unusable from now on, or in this process.
    pub fn flush(&mut self) -> Result<bool, KernelError> {
        if self.ring.is_parents() {
            return Err(KernelError::in_child());
        }
        if self.ring.queued() > 0 || self.ring.has_overflowed() {
            self.enter(0, None)?;
        }
        Ok(self.ring.queued() == 0)
    }

    /// Runs the kernel's deferred work, if there is any. Safe to call in a signal handler.
    ///
    /// # Errors
    /// Only if the kernel is unusable from now on.
    pub fn run_task_work(&mut self) -> Result<(), KernelError> {
        if self.ring.has_taskrun() {
            self.enter(0, None)?;
        }
        Ok(())
    }

    /// Returns the receive buffer of a completion, if it carries one.
    ///
    /// # Safety
    /// The completion is one of this kernel's, of kind [`OpKind::Stream`], and is used only once.
    pub unsafe fn bytes(&mut self, raw: RawCompletion) -> Option<RxBuf> {
        let id = cqueue::buffer_select(raw.0.flags)?;
        let len = usize::try_from(raw.0.result).unwrap_or(0);
        // SAFETY: the completion reports the buffer, and is used once.
        Some(unsafe { self.owned.groups[0].filled(id, len) })
    }

    /// Returns dropped receive buffers to the kernel.
    pub fn give_back(&mut self) {
        self.give_back_buffers();
    }

    /// Returns the number of receive buffers of the default group that the kernel holds, including those in completions that
    /// were not used yet. Safe to call in a signal handler.
    pub fn buffers(&self) -> u16 {
        self.owned.groups[0].held()
    }

    /// Counts the last completion of a submission outside the table.
    #[inline]
    pub(super) fn note_stream(&mut self, cqe: &Cqe) {
        let kind = Token::from_bits(cqe.user_data).kind();
        if matches!(kind, OpKind::Watch | OpKind::Stream) && !cqueue::more(cqe.flags) {
            self.streams -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;
    use std::time::Instant;

    use super::*;
    use crate::Kernel;
    use crate::uring::{Mode, UringConfig};

    /// A kernel with two buffers, if io_uring is available, and both ends of a connection.
    fn setup() -> Option<(UringKernel, TcpStream, TcpStream)> {
        let config =
            UringConfig { mode: Mode::Cooperative, operations: 1, buffers: 2, buffer_size: 4 };
        let kernel = UringKernel::new(&config);
        let kernel = kernel.inspect_err(|missing| println!("not tested: {missing}")).ok()?;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        Some((kernel, listener.accept().unwrap().0, far))
    }

    fn next(kernel: &mut UringKernel) -> RawCompletion {
        loop {
            if let Some(raw) = kernel.next_raw() {
                return raw;
            }
            kernel.turn(None).unwrap();
        }
    }

    fn state(kernel: &mut UringKernel) -> libc::c_short {
        next(kernel).result() as libc::c_short
    }

    #[test]
    fn watch_reports_state_until_it_is_ended() {
        let Some((mut kernel, near, mut far)) = setup() else { return };
        let token = Token::new(OpKind::Watch, 3, 1);
        assert!(kernel.begin(token, Fd::from_raw(near.as_raw_fd())));
        assert!(kernel.flush().unwrap());
        assert_eq!(state(&mut kernel), libc::POLLOUT);
        far.write_all(b"x").unwrap();
        assert_ne!(state(&mut kernel) & libc::POLLIN, 0);
        assert!(kernel.end(token).unwrap());
        let last = next(&mut kernel);
        assert_eq!((last.token(), last.result()), (token, -libc::ECANCELED));
        assert!(!last.has_more());
        far.write_all(b"x").unwrap();
        kernel.turn(Some(Instant::now())).unwrap();
        assert!(kernel.next_raw().is_none());
    }

    #[test]
    fn reports_are_counted_in_the_ring_and_taken_out_of_it() {
        let Some((mut kernel, near, _far)) = setup() else { return };
        assert_eq!(kernel.raw_pending(), 0);
        for slot in [0, 1] {
            let token = Token::new(OpKind::Watch, slot, 0);
            assert!(kernel.begin(token, Fd::from_raw(near.as_raw_fd())));
        }
        assert!(kernel.flush().unwrap());
        kernel.run_task_work().unwrap();
        assert_eq!(kernel.raw_pending(), 2, "it can be written to");
        assert!(kernel.next_raw().is_some());
        assert_eq!((kernel.ring.landed(), kernel.raw_pending()), (0, 1));
        assert!(kernel.next_raw().is_some());
        assert_eq!(kernel.raw_pending(), 0);
    }

    #[test]
    fn what_the_kernel_has_put_off_is_reported_once_it_has_caught_up() {
        let config =
            UringConfig { mode: Mode::Deferred, operations: 1, buffers: 1, buffer_size: 4 };
        let mut kernel = match UringKernel::new(&config) {
            Ok(kernel) => kernel,
            Err(missing) => return println!("not tested: {missing}"),
        };
        let (near, mut far) = UnixStream::pair().unwrap();
        let token = Token::new(OpKind::Stream, 0, 0);
        assert!(kernel.begin(token, Fd::from_raw(near.as_raw_fd())));
        assert!(kernel.flush().unwrap());
        far.write_all(b"x").unwrap();
        assert!(kernel.next_raw().is_none(), "it is done at an entry only");
        kernel.run_task_work().unwrap();
        assert_eq!(kernel.next_raw().map(|raw| raw.result()), Some(1));
        let before = kernel.counters.system_calls;
        kernel.run_task_work().unwrap();
        assert_eq!(kernel.counters.system_calls, before, "nothing was put off");
    }

    #[test]
    fn bytes_are_received_as_long_as_there_are_buffers() {
        let Some((mut kernel, near, mut far)) = setup() else { return };
        let (token, fd) = (Token::new(OpKind::Stream, 0, 0), Fd::from_raw(near.as_raw_fd()));
        far.write_all(b"abcdefghij").unwrap();
        assert!(kernel.begin(token, fd));
        let mut received = Vec::new();
        for expected in [4, 4, -libc::ENOBUFS] {
            let raw = next(&mut kernel);
            assert_eq!(raw.result(), expected);
            // SAFETY: it was just reported, with a token of this kind.
            received.extend(unsafe { kernel.bytes(raw) });
        }
        assert_eq!(
            (&*received[0], &*received[1], kernel.buffers()),
            (&b"abcd"[..], &b"efgh"[..], 0)
        );
        received.clear();
        kernel.give_back();
        assert_eq!(kernel.buffers(), 2);
        far.shutdown(Shutdown::Write).unwrap();
        assert!(kernel.begin(token, fd));
        assert_eq!(next(&mut kernel).result(), 2);
        assert_eq!(next(&mut kernel).result(), 0);
        assert_eq!(kernel.streams, 0);
    }

    #[test]
    fn shutdown_ends_streams() {
        let Some((mut kernel, near, mut far)) = setup() else { return };
        for kind in [OpKind::Watch, OpKind::Stream] {
            assert!(kernel.begin(Token::new(kind, 0, 0), Fd::from_raw(near.as_raw_fd())));
        }
        assert!(kernel.flush().unwrap());
        let begin = Instant::now();
        assert!(kernel.shut_down());
        assert_eq!(kernel.streams, 0, "it waits for their last completions");
        assert!(begin.elapsed() < super::super::SHUTDOWN_TIMEOUT);
        drop(kernel);
        // The kernel no longer holds the socket.
        drop(near);
        assert_eq!(far.read(&mut [0]).unwrap(), 0);
    }
}
