//! Panics of the application and failures of a kernel, on every mechanism.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Instant;

use evring::mechanisms::{self, EventLoop, Mechanism as _};
use evring::{Application, Chunk, Close, CloseReason, Commands, Config, Cx, Rx};
use shared_ring::buffers::{BufferError, BufferGroup, BufferPool};
use shared_ring::poller::Epoll;
use shared_ring::uring::{Mode, UringKernel};
use shared_ring::{
    Completion, Counters, Kernel, KernelError, Op, Outcome, PortableKernel, Submit, SubmitError,
    Submitted, Token, Waker,
};

use crate::held_bytes::Pauses;
use crate::server::{Server, TIMEOUT, is_reset, listening, next, side_by_side};

/// Panics at the first byte.
struct Panics(Sender<()>);

impl Application for Panics {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn received(&mut self, _x: Cx<'_, impl Commands, ()>, _rx: &mut Rx<'_>) {
        self.0.send(()).unwrap();
        panic!("on purpose");
    }
}

/// On `wait`, waits for the test. Panics at other bytes, and reports it.
struct PanicsAgain {
    waiting: Sender<()>,
    resumed: Receiver<()>,
    panics: Sender<()>,
}

impl Application for PanicsAgain {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn received(&mut self, _x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        if rx.take().as_ref() == b"wait" {
            self.waiting.send(()).unwrap();
            return self.resumed.recv_timeout(TIMEOUT).expect("the test continues the application");
        }
        self.panics.send(()).unwrap();
        panic!("on purpose");
    }
}

#[test]
fn application_was_called_again_after_its_panic() {
    side_by_side(|name| {
        let (waiting, is_waiting) = mpsc::channel();
        let (resume, resumed) = mpsc::channel();
        let (panics, receiver) = mpsc::channel();
        let server =
            Server::start(name, listening(1), move || PanicsAgain { waiting, resumed, panics });
        let mut clients: Vec<_> = (0..20).map(|_| server.connect()).collect();
        clients[0].write_all(b"wait").unwrap();
        next(&is_waiting);
        for client in &mut clients {
            client.write_all(b"x").unwrap();
        }
        resume.send(()).unwrap();
        server.thread.join().expect_err("`run` resumes the panic");
        assert_eq!(receiver.iter().count(), 1, "{name}");
    });
}

#[test]
fn application_panic_was_swallowed() {
    side_by_side(|name| {
        let (panics, receiver) = mpsc::channel();
        let server = Server::start(name, listening(1), move || Panics(panics));
        let (mut client, mut other) = (server.connect(), server.connect());
        client.write_all(b"x").unwrap();
        next(&receiver);
        // All connections are closed.
        for client in [&mut client, &mut other] {
            let end = client.read(&mut [0]);
            assert!(matches!(&end, Ok(0)) || end.is_err_and(is_reset), "{name}: still open");
        }
        let panic = server.thread.join().expect_err("`run` resumes the panic");
        assert_eq!(panic.downcast_ref(), Some(&"on purpose"), "{name}");
    });
}

/// Bytes whose owner panics when it is dropped.
struct Fragile(Vec<u8>, Sender<()>);

impl AsRef<[u8]> for Fragile {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Fragile {
    fn drop(&mut self) {
        self.1.send(()).unwrap();
        panic!("on purpose");
    }
}

/// For each byte, sends this many fragile chunks of the given length.
struct SendsFragile(usize, Sender<()>);

impl Application for SendsFragile {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        for count in rx.take().iter() {
            for _ in 0..*count {
                let fragile = Fragile(vec![7; self.0], self.1.clone());
                x.io.send(x.id, Chunk::Shared(bytes::Bytes::from_owner(fragile)));
            }
        }
        if rx.eof() {
            x.io.close(x.id, Close::Flush);
            // These are dropped at once.
            let fragile = Fragile(vec![7; self.0], self.1.clone());
            x.io.send(x.id, Chunk::Shared(bytes::Bytes::from_owner(fragile)));
        }
    }
}

#[test]
fn panic_while_dropping_shared_bytes_ended_the_server() {
    side_by_side(|name| {
        for len in [10, 1_000, 300_000] {
            let (dropped, drops) = mpsc::channel();
            let server = Server::start(name, listening(1), move || SendsFragile(len, dropped));
            // All chunks are sent or dropped: by a reset, and at a stop.
            let (mut complete, mut reset, mut unread) =
                (server.connect(), server.connect(), server.connect());
            complete.write_all(&[3]).unwrap();
            complete.read_exact(&mut vec![0; 3 * len]).unwrap();
            (0..3).for_each(|_| next(&drops));
            reset.write_all(&[40]).unwrap();
            reset.read_exact(&mut [0]).unwrap();
            // Closing a socket with unread bytes sends a reset.
            drop(reset);
            (0..40).for_each(|_| next(&drops));
            unread.write_all(&[40]).unwrap();
            unread.read_exact(&mut [0]).unwrap();
            complete.write_all(&[1]).unwrap();
            complete.read_exact(&mut vec![0; len]).unwrap();
            next(&drops);
            // One chunk is sent after the close that follows its end.
            complete.shutdown(Shutdown::Write).unwrap();
            assert_eq!(complete.read(&mut [0]).unwrap(), 0);
            next(&drops);
            drop((complete, unread));
            let stats = server.stop();
            assert_eq!((stats.accepted, stats.closed), (3, 3), "{name}");
            assert_eq!(drops.iter().count(), 40, "{name}");
        }
    });
}

/// A kernel that fails once it has accepted a connection and received bytes.
struct FailingKernel<K> {
    kernel: K,
    received: bool,
    finished: bool,
    discarded: Sender<bool>,
}

// SAFETY: forwards to the inner kernel.
unsafe impl<K: Kernel> Submit for FailingKernel<K> {
    type Host = K::Host;
    const MAX_PIECE_BYTES: u64 = K::MAX_PIECE_BYTES;

    fn submit(&mut self, token: Token, op: Op) -> Result<Submitted, SubmitError> {
        self.kernel.submit(token, op)
    }

    fn cancel(&mut self, token: Token) {
        self.kernel.cancel(token);
    }

    fn add_buffers(&mut self, buffers: BufferPool) -> Result<BufferGroup, BufferError> {
        self.kernel.add_buffers(buffers)
    }

    fn finish(&mut self) {
        self.finished = true;
        self.kernel.finish();
    }

    fn host(&self) -> &K::Host {
        self.kernel.host()
    }

    fn host_mut(&mut self) -> &mut K::Host {
        if self.received {
            self.discarded.send(self.finished).unwrap();
        }
        self.kernel.host_mut()
    }

    fn now(&self) -> Instant {
        self.kernel.now()
    }

    fn waker(&self) -> Waker {
        self.kernel.waker()
    }

    fn counters(&self) -> Counters {
        self.kernel.counters()
    }
}

impl<K: Kernel> Kernel for FailingKernel<K> {
    fn turn(&mut self, until: Option<Instant>) -> Result<(), KernelError> {
        if self.received {
            return Err(KernelError::new("breaking", ErrorKind::Other));
        }
        self.kernel.turn(until)
    }

    fn next(&mut self) -> Option<Completion> {
        let next = self.kernel.next();
        self.received |=
            next.as_ref().is_some_and(|next| matches!(next.outcome, Outcome::Received(_)));
        next
    }

    fn reap(&mut self) {
        self.kernel.reap();
    }
}

/// Returns the failure of a kernel, and checks that the application was notified.
fn broken(
    make: impl FnOnce(&Config) -> Result<(), KernelError>,
    receiver: &Receiver<CloseReason>,
) -> KernelError {
    let failure = make(&listening(1)).unwrap_err();
    assert!(
        matches!(receiver.try_recv(), Ok(CloseReason::Failed(_))),
        "the application was not notified of the close"
    );
    failure
}

fn after_a_fault<K: Kernel>(kernel: impl FnOnce(&Config) -> K) {
    let (ended, receiver) = mpsc::channel();
    let (discarded, order) = mpsc::channel();
    let serve = |config: &Config| {
        let kernel =
            FailingKernel { kernel: kernel(config), received: false, finished: false, discarded };
        let server = EventLoop::new(kernel, config).unwrap();
        let mut client = TcpStream::connect(server.addresses()[0]).unwrap();
        client.write_all(b"x").unwrap();
        let served = server.run(Pauses(ended)).map(drop);
        client.set_read_timeout(Some(TIMEOUT)).unwrap();
        let end = client.read(&mut [0]).map_err(|error| error.kind());
        assert!(matches!(end, Ok(0) | Err(ErrorKind::ConnectionReset)), "{end:?}");
        served
    };
    assert_eq!(broken(serve, &receiver).context, "breaking");
    let order: Vec<bool> = order.iter().collect();
    // The listener and the connection.
    assert_eq!(order, [true; 2], "a descriptor was closed before its operations had ended");
}

/// The application panics when the kernel has reported bytes.
fn after_a_panic<K: Kernel>(kernel: impl FnOnce(&Config) -> K) {
    let (panics, _receiver) = mpsc::channel();
    let (discarded, order) = mpsc::channel();
    let config = listening(1);
    let kernel =
        FailingKernel { kernel: kernel(&config), received: false, finished: false, discarded };
    let server = EventLoop::new(kernel, &config).unwrap();
    let mut client = TcpStream::connect(server.addresses()[0]).unwrap();
    client.write_all(b"x").unwrap();
    let run = AssertUnwindSafe(|| server.run(Panics(panics)).map(drop));
    let panic = catch_unwind(run).expect_err("`run` resumes the panic");
    assert_eq!(panic.downcast_ref(), Some(&"on purpose"));
    // The listener and the connection.
    let order: Vec<bool> = order.iter().collect();
    assert_eq!(order, [true; 2], "a descriptor was closed before its operations had ended");
}

/// Runs a test over a portable kernel, over those of io_uring, and over those of SEND and FlexSC.
macro_rules! on_kernels {
    ($test:ident) => {
        $test(|config| {
            PortableKernel::new(Epoll::new().unwrap(), &config.engine_config().unwrap()).unwrap()
        });
        for mode in [Mode::Deferred, Mode::Immediate] {
            if UringKernel::probe(mode).is_ok() {
                $test(|config| UringKernel::new(&config.uring_config(mode).unwrap()).unwrap());
            }
        }
        #[cfg(feature = "send")]
        if mechanisms::Send::available().is_ok() {
            $test(|config| mechanisms::Send::kernel(config).unwrap());
        }
        #[cfg(feature = "flexsc")]
        $test(|config| mechanisms::FlexSc::kernel(config).unwrap());
    };
}

#[test]
fn kernel_failure_skipped_notifications_and_closed_busy_descriptors() {
    on_kernels!(after_a_fault);
}

#[test]
fn panic_of_the_application_closed_busy_descriptors() {
    on_kernels!(after_a_panic);
}
