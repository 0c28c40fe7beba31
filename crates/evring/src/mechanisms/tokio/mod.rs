//! tokio: a task for each socket on a current-thread runtime.
//!
//! The task of a socket waits for readiness, executes the operations posted for the socket and calls the
//! application in place, like a hand-written tokio server. `submit.rs` has the operations, `tasks.rs` the tasks, `jobs.rs` the
//! jobs for other threads.

mod jobs;
mod submit;
mod tasks;

use std::cell::RefCell;
use std::net::SocketAddr;
use std::panic::resume_unwind;
use std::time::Duration;

use shared_ring::__private::catch_panic;
use shared_ring::buffers::{BufferError, BufferGroup, BufferPool};
use shared_ring::{Errno, Submit};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::LocalSet;

use crate::driver::{Driver, Io, Usage, open_listeners, open_roots};
use crate::{
    Application, Commands, Config, Family, KernelError, Listener, Multiplexer, RemoteHandle,
    StartError, Stats, Unavailable,
};
use submit::{TokioSubmit, system_error};
use tasks::TokioServer;

/// A task per connection on tokio's current-thread runtime.
pub struct Tokio {
    runtime: Joined,
    io: Io<TokioSubmit>,
    addresses: Vec<SocketAddr>,
    remote: RemoteHandle,
}

impl std::fmt::Debug for Tokio {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokio").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

/// A runtime that waits at most [`JOIN_TIMEOUT`] for its threads on drop: they may hang in the file system.
struct Joined(Option<Runtime>);

impl Drop for Joined {
    fn drop(&mut self) {
        let Some(runtime) = self.0.take() else { return };
        if Handle::try_current().is_ok() {
            // tokio panics if a thread that runs another runtime waits.
            runtime.shutdown_background();
        } else {
            // Threads that have no job end at once. Until then they keep the descriptors of the runtime open.
            runtime.shutdown_timeout(JOIN_TIMEOUT);
        }
    }
}

/// Maximum time that a stopped server waits for a thread that hangs in the file system.
const JOIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum number of threads that wait for the disk.
const DISK_THREADS: usize = 4;

impl Multiplexer for Tokio {
    const NAME: &'static str = "tokio";
    const FAMILY: Family = Family::Completion;
    const SUMMARY: &'static str = "tokio, a task for each connection";

    fn available() -> Result<(), Unavailable> {
        Ok(())
    }

    fn new(config: &Config) -> Result<Self, StartError> {
        config.check()?;
        let runtime = Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(DISK_THREADS)
            .thread_keep_alive(Duration::MAX)
            .build()
            .map_err(system_error)?;
        // tokio panics if it has no thread for a job and cannot start one, so the first one is started here and stays.
        catch_panic(|| drop(runtime.spawn_blocking(|| ())))
            .ok_or_else(|| system_error(Errno::AGAIN.into()))?;
        let runtime = Joined(Some(runtime));
        let mut submit = TokioSubmit::new(config)?;
        let roots = open_roots(submit.host_mut(), config)?;
        let (listeners, addresses) = open_listeners(submit.host_mut(), config)?;
        let remote = RemoteHandle::new(submit.waker());
        // Without turns there are no load estimates.
        let config = Config { admission: None, ..config.clone() };
        Ok(Tokio { runtime, io: Io::new(submit, &config, roots, listeners), addresses, remote })
    }

    fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    fn remote(&self) -> RemoteHandle {
        self.remote.clone()
    }

    fn add_buffers(&mut self, buffers: BufferPool) -> Result<BufferGroup, BufferError> {
        self.io.add_buffers(buffers)
    }

    fn set_listener_group(&mut self, at: Listener, group: BufferGroup) -> Result<(), BufferError> {
        self.io.set_listener_group(at, group)
    }

    fn run<A: Application + 'static>(self, app: A) -> Result<Stats, KernelError> {
        self.run_with(app, |_| {})
    }
}

impl Tokio {
    /// See [`EventLoop::run_inspected`](crate::mechanisms::EventLoop::run_inspected).
    #[doc(hidden)]
    pub fn run_inspected<A: Application + 'static>(
        self,
        app: A,
        inspect: impl FnMut(&Usage) + 'static,
    ) -> Result<Stats, KernelError> {
        let inspect = RefCell::new(inspect);
        self.run_with(app, move |driver| inspect.borrow_mut()(&driver.usage()))
    }

    fn run_with<A: Application + 'static>(
        self,
        app: A,
        inspect: impl Fn(&Driver<TokioSubmit, A>) + 'static,
    ) -> Result<Stats, KernelError> {
        let server = TokioServer::new(Driver::new(app, self.io, self.remote), inspect);
        let runtime = self.runtime.0.as_ref().expect("the runtime is taken only on drop");
        let result = LocalSet::new().block_on(runtime, server.serve());
        drop(self.runtime);
        if let Some(panic) = server.panic.take() {
            resume_unwind(panic);
        }
        let result = result.map_err(|error| KernelError::new("waiting for events", error));
        let mut driver = server.driver.borrow_mut();
        driver.abandon(result.as_ref().err());
        result.map(|()| driver.io.stats())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read as _, Write};
    use std::net::TcpStream;
    use std::os::fd::{AsFd, OwnedFd};
    use std::os::unix::net::UnixStream;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, mpsc};
    use std::task::Wake;
    use std::thread;
    use std::time::Duration;

    use shared_ring::buffers::RxBuf;
    use shared_ring::files::File;
    use shared_ring::{
        Errno, Fd, Linux, Op, OpKind, Outcome, Submitted, Token, WhenCold, nonblocking,
    };

    use super::*;
    use crate::{Chunk, Close, Cx, FileOp, FileOutcome, FilePath, Listener, Root, Rx, WriteAt};

    /// Holds all receive buffers and releases them some time after a connection was accepted.
    struct HoldsAllBuffers(Vec<RxBuf>);

    impl Application for HoldsAllBuffers {
        type State = ();
        const MAX_UNCONSUMED: usize = 64;

        fn accepted(&mut self, x: Cx<'_, impl Commands, ()>, _at: Listener) {
            let deadline = x.io.now() + Duration::from_millis(100);
            x.io.set_deadline(x.id, Some(deadline));
        }

        fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
            assert!(self.0.is_empty(), "no buffer should be free");
            x.io.send(x.id, Chunk::Received(rx.take()));
            x.io.close(x.id, Close::Flush);
        }

        fn expired(&mut self, _x: Cx<'_, impl Commands, ()>) {
            self.0.clear();
        }
    }

    /// Receives a byte into each buffer.
    fn all_buffers(kernel: &mut TokioSubmit, count: u16) -> Vec<RxBuf> {
        let (near, mut far) = UnixStream::pair().unwrap();
        let receive = |_| {
            far.write_all(b"x").unwrap();
            let pool = kernel.operations.buffers(BufferGroup::DEFAULT);
            // SAFETY: the socket is open until the function returns.
            let fd = unsafe { Fd::lent(near.as_fd()) };
            nonblocking::receive(&mut Linux::default(), fd, pool).ok().unwrap()
        };
        (0..count).map(receive).collect()
    }

    #[test]
    fn task_of_a_cancelled_receive_was_woken_for_a_buffer() {
        const BUFFERS: u16 = 4;
        let listen = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
        let config = Config { listen, buffers: BUFFERS, ..Config::default() };
        let mut server = Tokio::new(&config).unwrap();
        let kernel = &mut server.io.kernel;
        let mut held = all_buffers(kernel, BUFFERS);
        let mut pairs = [(); 2].map(|()| UnixStream::pair().unwrap());
        let wakes = [(); 2].map(|()| Arc::new(Wakes::default()));
        let receive = |slot| Token::new(OpKind::Receive, slot, 0);
        for (slot, (near, far)) in pairs.iter_mut().enumerate() {
            near.set_nonblocking(true).unwrap();
            far.write_all(b"y").unwrap();
            // SAFETY: the socket is open until the test ends.
            let fd = unsafe { Fd::lent(near.as_fd()) };
            let op = Op::Receive { fd, group: BufferGroup::DEFAULT };
            assert!(matches!(kernel.submit(receive(slot as u32), op), Ok(Submitted::InFlight)));
            kernel.todo(fd, &Arc::clone(&wakes[slot]).into());
            assert!(matches!(kernel.try_to_read(fd), submit::ReadAttempt::NoBuffer));
        }
        kernel.cancel(receive(0));
        let before = wakes.each_ref().map(|wakes| wakes.0.load(Ordering::Relaxed));
        held.pop();
        kernel.wake_starved();
        let after = wakes.each_ref().map(|wakes| wakes.0.load(Ordering::Relaxed));
        assert_eq!(after, [before[0], before[1] + 1]);
    }

    /// Counts how often it wakes a task.
    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn thread_that_hangs_does_not_keep_a_stopped_server() {
        let runtime = Builder::new_current_thread().build().unwrap();
        let (release, hangs) = std::sync::mpsc::channel::<()>();
        let (ended, end) = std::sync::mpsc::channel();
        runtime.spawn_blocking(move || {
            let _ = hangs.recv();
            ended.send(()).unwrap();
        });
        // It returns while the thread waits.
        drop(Joined(Some(runtime)));
        assert!(end.try_recv().is_err());
        drop(release);
        end.recv().unwrap();
    }

    #[test]
    fn mechanism_that_was_dropped_by_another_runtime_panicked() {
        let runtime = Builder::new_current_thread().build().unwrap();
        runtime.block_on(async { drop(Tokio::new(&Config::default()).unwrap()) });
    }

    #[test]
    fn task_without_a_buffer_retried_in_a_busy_loop() {
        const BUFFERS: u16 = 4;
        const CLIENTS: u64 = 3;
        let listen = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
        let config = Config { listen, buffers: BUFFERS, ..Config::default() };
        let mut server = Tokio::new(&config).unwrap();
        let buffers = all_buffers(&mut server.io.kernel, BUFFERS);
        let (at, remote) = (server.addresses()[0], server.remote());
        let clients = thread::spawn(move || {
            let mut clients: Vec<_> =
                (0..CLIENTS).map(|_| TcpStream::connect(at).unwrap()).collect();
            for client in &mut clients {
                client.write_all(b"hello").unwrap();
            }
            for client in &mut clients {
                let mut reply = Vec::new();
                client.read_to_end(&mut reply).unwrap();
                assert_eq!(reply, b"hello");
            }
            remote.stop();
        });
        let stats = server.run(HoldsAllBuffers(buffers)).unwrap();
        clients.join().unwrap();
        let shortages = stats.kernel.buffer_shortages;
        assert!(shortages <= 2 * CLIENTS, "{shortages} attempts");
        if shortages == 0 {
            println!("not tested: the clients were too slow");
        }
    }

    #[test]
    fn file_send_that_waited_for_a_thread_could_not_be_cancelled() {
        let listen = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
        let mut server = Tokio::new(&Config { listen, ..Config::default() }).unwrap();
        let (near, _far) = UnixStream::pair().unwrap();
        let (read, mut write) = std::io::pipe().unwrap();
        // SAFETY: the socket is open until the test ends.
        let fd = unsafe { Fd::lent(near.as_fd()) };
        // At this offset preadv2(2) reads a pipe at its current position, which is not cached.
        let file = File::from(OwnedFd::from(read));
        let op = Op::SendFile {
            fd,
            file,
            offset: u64::MAX,
            len: 1,
            is_last: true,
            when_cold: WhenCold::Read,
        };
        let token = Token::new(OpKind::Send, 200, 0);
        let kernel = &mut server.io.kernel;
        assert!(matches!(kernel.submit(token, op), Ok(Submitted::InFlight)));
        kernel.cancel(token);
        let done = kernel.done.pop_front().expect("it was cancelled");
        assert!(done.token == token && done.is_last);
        assert!(matches!(done.outcome, Outcome::Failed(Errno::CANCELED, None)));
        // No job uses the file, so it was closed.
        assert_eq!(write.write(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
        assert!(kernel.jobs().queue().run(token).is_none());
    }

    /// Lists a directory for each client, then panics in the main task.
    struct PanicsLate;

    impl Application for PanicsLate {
        type State = ();
        const MAX_UNCONSUMED: usize = 64;

        fn accepted(&mut self, x: Cx<'_, impl Commands, ()>, _at: Listener) {
            x.io.file_op(x.id, 0, FileOp::List((Root(0), FilePath::new("task"))));
        }

        fn file(
            &mut self,
            x: Cx<'_, impl Commands, ()>,
            _tag: u32,
            _done: std::io::Result<FileOutcome>,
        ) {
            let now = x.io.now();
            x.io.set_deadline(x.id, Some(now));
        }

        fn received(&mut self, _x: Cx<'_, impl Commands, ()>, _rx: &mut Rx<'_>) {}

        fn expired(&mut self, _x: Cx<'_, impl Commands, ()>) {
            panic!("on purpose");
        }
    }

    #[test]
    fn panic_of_the_main_task_waited_for_hung_file_work() {
        let (read, mut write) = std::io::pipe().unwrap();
        write.write_all(&[0; 64 * 1024]).unwrap();
        let (sender, receiver) = mpsc::channel();
        let server = thread::spawn(move || {
            let listen = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
            let config = Config { listen, roots: vec!["/proc/self".into()], ..Config::default() };
            let mut server = Tokio::new(&config).unwrap();
            let file = File::from(OwnedFd::from(write));
            // The pipe is full, so the thread waits for its reader.
            let op = Op::File(shared_ring::files::FileOp::write(file, WriteAt::End, "x"));
            let token = Token::new(OpKind::File, 200, 0);
            assert!(matches!(server.io.kernel.submit(token, op), Ok(Submitted::InFlight)));
            sender.send(server.addresses()[0]).unwrap();
            let panic = catch_unwind(AssertUnwindSafe(|| server.run(PanicsLate))).unwrap_err();
            sender.send(SocketAddr::from(([0; 4], 0))).unwrap();
            resume_unwind(panic);
        });
        let _client = TcpStream::connect(receiver.recv().unwrap()).unwrap();
        let ended = receiver.recv_timeout(Duration::from_secs(10));
        drop(read);
        assert!(ended.is_ok(), "the server waits for the thread");
        assert_eq!(server.join().unwrap_err().downcast_ref(), Some(&"on purpose"));
    }
}
