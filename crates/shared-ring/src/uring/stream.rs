//! What a descriptor tells of itself, for good: its state, as it changes, or the bytes that it receives.
//!
//! Such a submission owns no memory, stands in no table, and its reports are all that it gives. So it can be
//! begun, and its reports be taken, in a signal handler.

use io_uring::cqueue;

use super::{Cqe, RawCompletion, Ring, UringKernel, sqe};
use crate::process::error_in_child;
use crate::{Fd, KernelError, OpKind, RxBuf, Token};

impl<R: Ring> UringKernel<R> {
    /// Has the ring report what happens at a descriptor from now on, under a token of one of two kinds:
    /// for [`OpKind::Watch`] its state in the format of poll(2), for [`OpKind::Stream`] the bytes that it
    /// receives. Each goes on until a report says otherwise. False when the queue is full, and for a token
    /// of another kind.
    ///
    /// It is [handed over](UringKernel::flush) later. It may be called in a signal handler.
    pub fn begin(&mut self, token: Token, fd: Fd) -> bool {
        if !matches!(token.kind(), OpKind::Watch | OpKind::Stream) {
            // A report under such a name would be taken for that of an operation.
            return false;
        }
        // SAFETY: the submission points to nothing; it receives into provided buffers, which are there as
        // long as `streams` is not zero.
        let pushed = unsafe { self.ring.push(&sqe::multishot(token, fd)) };
        self.streams += u32::from(pushed);
        pushed
    }

    /// Ends what was begun under a token; a report that is under way may still come, and a last one
    /// does. Whether the kernel has been told: if not it will be, at a turn.
    ///
    /// # Errors
    /// Only when the kernel can't be used any more.
    pub fn end(&mut self, token: Token) -> Result<bool, KernelError> {
        self.cancels.push_back(token);
        self.fill()?;
        self.flush().map(|all| all && self.cancels.is_empty())
    }

    /// Hands over what is queued, and fetches reports for which the queue had no room, without waiting.
    /// Whether all was taken. It may be called in a signal handler.
    ///
    /// # Errors
    /// Only when the kernel can't be used any more, or not in this process.
    pub fn flush(&mut self) -> Result<bool, KernelError> {
        if self.ring.is_parents() {
            return Err(error_in_child());
        }
        if self.ring.queued() > 0 || self.ring.has_overflowed() {
            self.enter(0, None)?;
        }
        Ok(self.ring.queued() == 0)
    }

    /// Has the kernel do what it has put off until the next entry, if it says that there is anything. It
    /// may be called in a signal handler.
    ///
    /// # Errors
    /// Only when the kernel can't be used any more.
    pub fn run_task_work(&mut self) -> Result<(), KernelError> {
        if self.ring.has_taskrun() {
            self.enter(0, None)?;
        }
        Ok(())
    }

    /// The buffer that a report brings, if it does.
    ///
    /// # Safety
    /// The report is one of this kernel's, of [`OpKind::Stream`], and nothing else is made of it.
    pub unsafe fn bytes(&mut self, raw: RawCompletion) -> Option<RxBuf> {
        let id = cqueue::buffer_select(raw.0.flags)?;
        let len = usize::try_from(raw.0.result).unwrap_or(0);
        // SAFETY: the report says so, and is used once.
        Some(unsafe { self.owned.provided.filled(id, len) })
    }

    /// Gives receive buffers that were dropped to the kernel.
    pub fn give_back(&mut self) {
        self.owned.provided.give_back();
        self.rearm_starved();
    }

    /// How many receive buffers the kernel has, and those in reports of which nothing was made yet. It
    /// may be called in a signal handler.
    pub fn buffers(&self) -> u16 {
        self.owned.provided.held()
    }

    /// Notes the last report of something that stands in no table.
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
    use crate::{Kernel, Mode, UringConfig};

    /// A kernel of two buffers, if there is io_uring, and two ends of a connection.
    fn setup() -> Option<(UringKernel, TcpStream, TcpStream)> {
        let config =
            UringConfig { mode: Mode::Cooperative, operations: 1, buffers: 2, buffer_size: 4 };
        let kernel = UringKernel::new(&config).ok()?;
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
    fn a_descriptor_tells_of_its_state_until_that_is_ended() {
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
        let Ok(mut kernel) = UringKernel::new(&config) else { return };
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
        let mut heard = Vec::new();
        for expected in [4, 4, -libc::ENOBUFS] {
            let raw = next(&mut kernel);
            assert_eq!(raw.result(), expected);
            // SAFETY: it was just reported, under a token of this kind.
            heard.extend(unsafe { kernel.bytes(raw) });
        }
        assert_eq!((&*heard[0], &*heard[1], kernel.buffers()), (&b"abcd"[..], &b"efgh"[..], 0));
        heard.clear();
        kernel.give_back();
        assert_eq!(kernel.buffers(), 2);
        far.shutdown(Shutdown::Write).unwrap();
        assert!(kernel.begin(token, fd));
        assert_eq!(next(&mut kernel).result(), 2);
        assert_eq!(next(&mut kernel).result(), 0);
        assert_eq!(kernel.streams, 0);
    }

    #[test]
    fn what_goes_on_ends_with_its_kernel() {
        let Some((mut kernel, near, mut far)) = setup() else { return };
        for kind in [OpKind::Watch, OpKind::Stream] {
            assert!(kernel.begin(Token::new(kind, 0, 0), Fd::from_raw(near.as_raw_fd())));
        }
        assert!(kernel.flush().unwrap());
        let begin = Instant::now();
        assert!(kernel.shut_down());
        assert_eq!(kernel.streams, 0, "it waits for their last reports");
        assert!(begin.elapsed() < super::super::SHUTDOWN_TIMEOUT);
        drop(kernel);
        // Nothing holds the socket any more.
        drop(near);
        assert_eq!(far.read(&mut [0]).unwrap(), 0);
    }
}
