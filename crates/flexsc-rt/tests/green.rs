//! Green threads: many connections, joins, panics, bounds, cancellation, and their end.

use std::cell::{Cell, RefCell};
use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use flexsc_rt::green::{Config, JoinHandle, SpawnError, Stopped, Threads, call, spawn, yield_now};
use flexsc_rt::operations::{accept, close, read, receive, send, sleep, splice, stat_file};
use flexsc_rt::{Descriptor, Direction, Error, Operation};
use rustix::pipe::fcntl_getpipe_size;

mod support;

fn threads() -> Threads {
    Threads::new(&Config::default()).expect("pages")
}

#[test]
fn stack_of_any_size_panicked() {
    for stack_bytes in [usize::MAX, isize::MAX as usize, 1 << 50] {
        let mut config = Config::default();
        config.stack_bytes = stack_bytes;
        let threads = Threads::new(&config).unwrap();
        assert!(matches!(threads.spawn(|| ()), Err(SpawnError::Stack(_))), "{stack_bytes}");
    }
}

/// The message of a panic.
fn message<T>(joined: std::thread::Result<T>) -> String {
    let payload = joined.err().expect("a panic");
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).expect("a message")
}

fn interrupted<T>(result: io::Result<T>) -> bool {
    result.is_err_and(|error| error.raw_os_error() == Some(libc::EINTR))
}

fn pair() -> (Descriptor, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    (Descriptor::new(ours), theirs)
}

fn receive_from(socket: &Descriptor) -> impl Operation<Output = (io::Result<usize>, Vec<u8>)> {
    receive(socket, Vec::with_capacity(64))
}

#[test]
fn thread_that_waits_lets_others_run() {
    let threads = threads();
    let (ours, theirs) = pair();
    let theirs = Descriptor::new(theirs);
    let order = Rc::new(RefCell::new(Vec::new()));
    let (first, second) = (Rc::clone(&order), Rc::clone(&order));
    let reader = threads.spawn(move || {
        first.borrow_mut().push("receives");
        let (_, bytes) = call(receive_from(&ours));
        first.borrow_mut().push("has received");
        bytes
    });
    let writer = threads.spawn(move || {
        second.borrow_mut().push("sends");
        call(send(&theirs, b"hello".to_vec())).0.unwrap()
    });
    threads.run().unwrap();
    assert_eq!(reader.unwrap().join().unwrap(), b"hello");
    assert_eq!(writer.unwrap().join().unwrap(), 5);
    assert_eq!(*order.borrow(), ["receives", "sends", "has received"]);
}

/// Calls of threads that are ready together make one batch, and nothing sleeps.
#[test]
fn calls_of_ready_threads_are_executed_together() {
    let threads = threads();
    let file = Descriptor::new(tempfile::tempfile().unwrap());
    for _ in 0..100 {
        let file = file.clone();
        threads.spawn(move || call(stat_file(&file)).unwrap().stx_size).unwrap();
    }
    threads.run().unwrap();
    assert_eq!((threads.counters().posted, threads.counters().sleeps), (100, 0));
    // Each begins, and goes on once.
    assert_eq!(threads.switches(), 200);
}

/// Connections of the test below, as many as there may be descriptors.
const CONNECTIONS: u64 = 10_000;
const CLIENT: &str = "FLEXSC_TEST_CLIENT";

fn connections() -> u64 {
    support::raise_descriptor_limit();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(CONNECTIONS, |limit| CONNECTIONS.min(limit - 200))
}

/// Waits until a connection was accepted.
fn greeted(stream: &mut TcpStream) {
    stream.read_exact(&mut [0]).unwrap();
}

/// The clients are another process, as each side needs a descriptor for each connection.
#[test]
fn clients_of_ten_thousand_threads() {
    let Ok(address) = std::env::var(CLIENT) else { return };
    let mut streams = Vec::new();
    for next in 0..connections() as usize {
        streams.push(TcpStream::connect(&address).unwrap());
        // The kernel would delay connections beyond the backlog by a second.
        if let Some(earlier) = next.checked_sub(100) {
            greeted(&mut streams[earlier]);
        }
    }
    let last = streams.len().saturating_sub(100);
    streams[last..].iter_mut().for_each(greeted);
    // All connections are open before the first is served, and served in the other order.
    for (number, stream) in streams.iter_mut().enumerate().rev() {
        stream.write_all(&number.to_ne_bytes()).unwrap();
    }
    for (number, mut stream) in streams.into_iter().enumerate() {
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply).unwrap();
        assert_eq!(reply, number.to_ne_bytes());
    }
}

#[test]
fn ten_thousand_threads_serve_connections() {
    let connections = connections();
    let threads = threads();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // The owner accepts, in place.
    listener.set_nonblocking(true).unwrap();
    let mut clients = this_test("clients_of_ten_thousand_threads")
        .env(CLIENT, listener.local_addr().unwrap().to_string())
        .spawn()
        .unwrap();
    let listener = Descriptor::new(listener);
    let served = Rc::new(Cell::new(0));
    let of_acceptor = Rc::clone(&served);
    let acceptor = threads.spawn(move || {
        let mut most = 0;
        let open = Rc::new(Cell::new(0));
        for _ in 0..connections {
            let connection = call(accept(&listener)).unwrap();
            let (open, served) = (Rc::clone(&open), Rc::clone(&of_acceptor));
            open.set(open.get() + 1);
            most = most.max(open.get());
            assert_eq!(call(send(&connection, &b"!"[..])).0.unwrap(), 1);
            spawn(move || {
                let (received, bytes) = call(receive_from(&connection));
                assert_eq!(received.unwrap(), 8);
                assert_eq!(call(send(&connection, bytes)).0.unwrap(), 8);
                call(close(connection)).unwrap();
                open.set(open.get() - 1);
                served.set(served.get() + 1);
            })
            .unwrap();
        }
        most
    });
    threads.run().unwrap();
    assert!(clients.wait().unwrap().success());
    assert_eq!(served.get(), connections);
    // The clients send when all are connected.
    assert_eq!(acceptor.unwrap().join().unwrap(), connections);
}

#[test]
fn panic_reaches_the_one_that_joins_and_no_other_thread() {
    let threads = threads();
    let file = Descriptor::new(tempfile::tempfile().unwrap());
    let joins = threads.spawn(move || {
        let of_panicking = file.clone();
        let panics = spawn(move || {
            call(stat_file(&of_panicking)).unwrap();
            panic!("on purpose");
        });
        let other = spawn(move || call(stat_file(&file)).is_ok()).unwrap();
        assert_eq!(message::<()>(panics.unwrap().join()), "on purpose");
        assert!(other.join().unwrap());
        assert!(!std::thread::panicking());
    });
    threads.run().unwrap();
    joins.unwrap().join().unwrap();
}

/// Calls in destructors of a thread that panics: the OS thread waits, and no other thread runs.
#[test]
fn destructor_makes_calls_while_its_thread_panics() {
    struct SaysGoodbye(Descriptor);
    impl Drop for SaysGoodbye {
        fn drop(&mut self) {
            assert_eq!(call(send(&self.0, b"bye".to_vec())).0.unwrap(), 3);
            call(sleep(Duration::from_millis(1))).unwrap();
            yield_now();
        }
    }
    let threads = threads();
    let (ours, mut theirs) = pair();
    let panics = threads.spawn(move || {
        let _goodbye = SaysGoodbye(ours);
        panic!("on purpose");
    });
    let other = threads.spawn(|| {
        for _ in 0..10 {
            assert!(!std::thread::panicking());
            yield_now();
        }
    });
    threads.run().unwrap();
    assert_eq!(message::<()>(panics.unwrap().join()), "on purpose");
    other.unwrap().join().unwrap();
    let mut said = String::new();
    theirs.read_to_string(&mut said).unwrap();
    assert_eq!(said, "bye");
}

/// Sleeps when it is dropped, and notes whether that was interrupted.
struct Sleeps(Rc<Cell<bool>>);

impl Drop for Sleeps {
    fn drop(&mut self) {
        self.0.set(interrupted(call(sleep(Duration::from_millis(1)))));
    }
}

#[test]
fn destructor_did_not_get_the_syscall_thread_that_was_kept_for_another() {
    let mut config = Config::default();
    // One of them for calls that may wait indefinitely.
    config.pages.threads = 2;
    let threads = Threads::new(&config).unwrap();
    let was_interrupted = Rc::new(Cell::new(true));
    let sleeps = Sleeps(Rc::clone(&was_interrupted));
    let panics = threads.spawn(move || {
        let _sleeps = sleeps;
        // Its end wakes the other one, which waits for the syscall thread, and does not run before the destructor.
        call(sleep(Duration::from_millis(1))).unwrap();
        panic!("on purpose");
    });
    let other = threads.spawn(|| call(sleep(Duration::from_millis(1)))).unwrap();
    threads.run().unwrap();
    assert_eq!(message::<()>(panics.unwrap().join()), "on purpose");
    other.join().unwrap().unwrap();
    assert!(!was_interrupted.get());
}

#[test]
fn destructor_waited_for_ever_for_the_syscall_thread_of_another() {
    let (sender, ended) = mpsc::channel();
    std::thread::spawn(move || {
        let mut config = Config::default();
        // One of them for calls that may wait indefinitely.
        config.pages.threads = 2;
        let threads = Threads::new(&config).unwrap();
        let other = threads.spawn(|| call(sleep(Duration::from_millis(10)))).unwrap();
        let was_interrupted = Rc::new(Cell::new(false));
        let sleeps = Sleeps(Rc::clone(&was_interrupted));
        let panics = threads.spawn(move || {
            let _sleeps = sleeps;
            panic!("on purpose");
        });
        threads.run().unwrap();
        assert_eq!(message::<()>(panics.unwrap().join()), "on purpose");
        other.join().unwrap().unwrap();
        sender.send(was_interrupted.get()).unwrap();
    });
    assert_eq!(ended.recv_timeout(Duration::from_secs(10)), Ok(true));
}

#[test]
fn threads_beyond_the_maximum_are_refused() {
    let mut config = Config::default();
    config.threads = 3;
    let threads = Threads::new(&config).unwrap();
    for _ in 0..10 {
        let spawned: Vec<_> = (0..3).map(|_| threads.spawn(yield_now).unwrap()).collect();
        assert!(matches!(threads.spawn(|| ()), Err(SpawnError::TooMany(3))));
        threads.run().unwrap();
        assert!(spawned.iter().all(JoinHandle::is_finished));
        assert_eq!(threads.live(), 0);
    }
}

#[test]
fn spawn_of_a_function_with_large_captures_panicked() {
    let threads = threads();
    let large = [1_u8; 4096];
    let sum = threads.spawn(move || large.iter().map(|byte| u32::from(*byte)).sum::<u32>());
    threads.run().unwrap();
    assert_eq!(sum.unwrap().join().unwrap(), 4096);
}

#[test]
fn stack_that_the_kernel_refuses_is_an_error() {
    let mut config = Config::default();
    config.stack_bytes = 1 << 60;
    let threads = Threads::new(&config).unwrap();
    let error = threads.spawn(|| ()).unwrap_err();
    assert!(error.to_string().starts_with("cannot map a stack: "), "{error}");
    assert_eq!(threads.live(), 0);
    threads.run().unwrap();
}

/// Returns the address of the stack of the caller.
#[inline(never)]
fn stack_address() -> usize {
    let local = 0_u8;
    std::hint::black_box(&raw const local) as usize
}

/// Stacks of threads that have ended serve the next ones.
#[test]
fn stacks_are_reused() {
    let threads = threads();
    let mut stacks = std::collections::HashSet::new();
    for _ in 0..1_000 {
        let thread = threads.spawn(stack_address).unwrap();
        threads.run().unwrap();
        stacks.insert(thread.join().unwrap());
    }
    assert_eq!(stacks.len(), 1);
}

/// Below the stack is memory without access (proc_pid_maps(5)).
#[test]
fn each_stack_is_above_a_guard_page() {
    let threads = threads();
    let both: Vec<_> = (0..2).map(|_| threads.spawn(stack_address).unwrap()).collect();
    threads.run().unwrap();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let maps: Vec<_> = maps
        .lines()
        .map(|line| {
            let mut words = line.split(' ');
            let (start, end) = words.next().unwrap().split_once('-').unwrap();
            let address = |hex| usize::from_str_radix(hex, 16).unwrap();
            (address(start), address(end), words.next().unwrap())
        })
        .collect();
    let guards: Vec<_> = both
        .into_iter()
        .map(|thread| {
            let local = thread.join().unwrap();
            let stack = maps.iter().position(|(start, end, _)| (*start..*end).contains(&local));
            let ((start, end, access), below) = (maps[stack.unwrap()], maps[stack.unwrap() - 1]);
            assert!(access.starts_with("rw"), "{access}");
            assert!(end - start >= Config::default().stack_bytes);
            assert_eq!((below.1, below.2), (start, "---p"));
            start
        })
        .collect();
    assert_ne!(guards[0], guards[1]);
}

const OVERFLOW: &str = "FLEXSC_TEST_OVERFLOW";

#[inline(never)]
fn deeper(depth: u64) -> u64 {
    let frame = std::hint::black_box([depth; 64]);
    if depth == u64::MAX { 0 } else { deeper(depth + 1) + frame[7] }
}

#[test]
fn overflowing_thread() {
    if std::env::var(OVERFLOW).is_ok() {
        let threads = threads();
        threads.spawn(|| deeper(0)).unwrap();
        threads.run().unwrap();
    }
}

#[test]
fn stack_overflow_ends_the_process() {
    let status = this_test("overflowing_thread").env(OVERFLOW, "1").status().unwrap();
    assert_eq!(status.signal(), Some(libc::SIGSEGV));
}

/// Runs a test of this file in a process of its own.
fn this_test(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([name, "--exact"]).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

#[test]
fn cancelled_thread_gets_eintr_for_this_call_and_later_ones() {
    let threads = threads();
    let (ours, _theirs) = pair();
    let cancels = threads.spawn(move || {
        let waits = spawn(move || {
            let first = interrupted(call(receive_from(&ours)).0);
            (first, interrupted(call(sleep(Duration::from_secs(1_000)))))
        });
        // It waits for its socket by then.
        call(sleep(Duration::from_millis(1))).unwrap();
        let waits = waits.unwrap();
        waits.cancel();
        waits.join()
    });
    threads.run().unwrap();
    assert_eq!(cancels.unwrap().join().unwrap().unwrap(), (true, true));
}

/// While the threads are dropped, a close finds no free entry, and is not made.
#[test]
fn close_that_was_withdrawn_left_its_descriptor_open() {
    struct Closes(Option<Descriptor>, Rc<Cell<u32>>);
    impl Drop for Closes {
        fn drop(&mut self) {
            if interrupted(call(close(self.0.take().unwrap()))) {
                self.1.set(self.1.get() + 1);
            }
        }
    }
    const THREADS: u32 = 64;
    let mut config = Config::default();
    config.threads = THREADS;
    (config.pages.entries, config.pages.reserve) = (THREADS, 0);
    let threads = Threads::new(&config).expect("pages");
    let (idle, _peer) = pair();
    let withdrawn = Rc::new(Cell::new(0));
    let mut peers = Vec::new();
    for _ in 0..THREADS {
        let (ours, theirs) = pair();
        peers.push(theirs);
        let (idle, closes) = (idle.clone(), Closes(Some(ours), Rc::clone(&withdrawn)));
        threads
            .spawn(move || {
                let _closes = closes;
                call(receive_from(&idle)).0.is_ok()
            })
            .unwrap();
    }
    threads.turn(Some(Duration::ZERO)).unwrap();
    assert_eq!(threads.counters().readiness_waits, u64::from(THREADS));
    drop(threads);
    assert_eq!(withdrawn.get(), THREADS);
    for mut peer in peers {
        peer.set_nonblocking(true).unwrap();
        assert_eq!(peer.read(&mut [0]).unwrap(), 0);
    }
}

/// A cancellation that comes too late changes no result, and a close is never cancelled.
#[test]
fn cancellation_may_lose() {
    let threads = threads();
    let (ours, mut theirs) = pair();
    theirs.write_all(b"x").unwrap();
    let cancels = threads.spawn(move || {
        let waits = spawn(move || {
            let received = call(receive_from(&ours)).0.unwrap();
            call(close(ours)).unwrap();
            received
        });
        let waits = waits.unwrap();
        // Its call was posted in the first turn, and made after it.
        yield_now();
        waits.cancel();
        waits.join()
    });
    threads.run().unwrap();
    assert_eq!(cancels.unwrap().join().unwrap().unwrap(), 1);
    assert_eq!(theirs.read(&mut [0; 8]).unwrap(), 0);
}

/// Threads that wait for a socket, on a syscall thread, for another thread, or have not begun.
#[test]
fn dropped_threads_are_unwound_and_leak_nothing() {
    struct Counted(Rc<Cell<u32>>);
    impl Drop for Counted {
        fn drop(&mut self) {
            // Calls of destructors end with an error, unless they cannot be cancelled.
            assert!(interrupted(call(sleep(Duration::from_secs(1_000)))));
            assert!(matches!(spawn(|| ()), Err(SpawnError::Stopping)));
            self.0.set(self.0.get() + 1);
        }
    }
    let dropped = Rc::new(Cell::new(0));
    let counted = || Counted(Rc::clone(&dropped));
    let threads = threads();
    let (ours, mut theirs) = pair();
    let mut handles = Vec::new();
    let (on_socket, of_socket) = (ours.clone(), counted());
    handles.push(threads.spawn(move || {
        let _counted = of_socket;
        call(receive_from(&on_socket)).0.unwrap();
    }));
    let of_thread = counted();
    handles.push(threads.spawn(move || {
        let _counted = of_thread;
        call(sleep(Duration::from_secs(1_000))).unwrap();
    }));
    let (of_joiner, of_joined) = (counted(), counted());
    handles.push(threads.spawn(move || {
        let _counted = of_joiner;
        let joined = spawn(move || {
            let _counted = of_joined;
            call(sleep(Duration::from_secs(1_000))).unwrap();
        });
        joined.unwrap().join().unwrap();
    }));
    drop(ours);
    while threads.live() < 4 || threads.counters().on_threads < 2 {
        threads.turn(Some(Duration::ZERO)).unwrap();
    }
    let of_late = counted();
    handles.push(threads.spawn(move || {
        let _counted = of_late;
        unreachable!("it never runs");
    }));
    drop(threads);
    assert_eq!(dropped.get(), 5);
    for handle in handles {
        let error = handle.unwrap().join().unwrap_err();
        assert_eq!(error.downcast_ref(), Some(&Stopped));
    }
    assert_eq!(theirs.read(&mut [0; 8]).unwrap(), 0);
}

/// The threads are dropped while the OS thread unwinds.
#[test]
fn panic_of_the_os_thread_unwinds_the_threads() {
    let dropped = Rc::new(());
    let held = Rc::clone(&dropped);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let threads = threads();
        threads
            .spawn(move || {
                let _held = held;
                while interrupted(call(sleep(Duration::from_secs(1_000)))) {}
            })
            .unwrap();
        threads.turn(None).unwrap();
        panic!("on purpose");
    }));
    assert_eq!(message(outcome), "on purpose");
    assert_eq!(Rc::strong_count(&dropped), 1);
}

const THREAD_LOCAL: &str = "FLEXSC_TEST_THREAD_LOCAL";

#[test]
fn os_thread_with_threads_in_a_thread_local_value() {
    thread_local! {
        static THREADS: Threads = threads();
    }
    if std::env::var(THREAD_LOCAL).is_err() {
        return;
    }
    let held = Arc::new(());
    let of_thread = Arc::clone(&held);
    let os_thread = std::thread::spawn(move || {
        THREADS.with(|threads| {
            threads
                .spawn(move || {
                    let _held = of_thread;
                    call(sleep(Duration::from_secs(1_000)))
                })
                .unwrap();
            threads.turn(Some(Duration::ZERO)).unwrap();
        });
    });
    os_thread.join().unwrap();
    assert_eq!(Arc::strong_count(&held), 1);
}

#[test]
fn end_of_an_os_thread_with_threads_in_a_thread_local_value_aborted_the_process() {
    let mut test = this_test("os_thread_with_threads_in_a_thread_local_value");
    assert!(test.env(THREAD_LOCAL, "1").status().unwrap().success());
}

/// The OS thread seems to panic in all of its green threads, so none could switch.
#[test]
fn threads_run_by_a_destructor_of_an_unwinding_os_thread_hung() {
    struct Runs(Threads, mpsc::Sender<Result<(), Error>>);
    impl Drop for Runs {
        fn drop(&mut self) {
            self.1.send(self.0.run()).unwrap();
        }
    }
    let (sender, ended) = mpsc::channel();
    std::thread::spawn(move || {
        let runs = Runs(threads(), sender);
        let (ours, theirs) = pair();
        let theirs = Descriptor::new(theirs);
        runs.0.spawn(move || call(receive_from(&ours)).0.is_ok()).unwrap();
        runs.0.spawn(move || call(send(&theirs, b"x".to_vec())).0.is_ok()).unwrap();
        panic!("on purpose");
    });
    let result = ended.recv_timeout(Duration::from_secs(10)).expect("an end");
    assert!(matches!(result, Err(Error::Unwinding)), "{result:?}");
}

#[test]
fn threads_that_join_each_other_are_an_error() {
    type Handle = Rc<RefCell<Option<JoinHandle<()>>>>;
    let threads = threads();
    let handles: [Handle; 2] = Default::default();
    for (number, handle) in handles.iter().enumerate() {
        let other = Rc::clone(&handles[1 - number]);
        let joins = move || {
            let other = other.take().unwrap();
            other.join().unwrap();
        };
        *handle.borrow_mut() = Some(threads.spawn(joins).unwrap());
    }
    let error = threads.run().unwrap_err();
    assert!(matches!(error, Error::Deadlock), "{error}");
    assert_eq!(threads.live(), 2);
}

/// With fewer entries than calls, threads wait for an entry.
#[test]
fn more_calls_than_entries_all_complete() {
    let mut config = Config::default();
    config.threads = 200;
    config.pages.entries = 1;
    config.pages.reserve = 0;
    let threads = Threads::new(&config).unwrap();
    let file = Descriptor::new(tempfile::tempfile().unwrap());
    let done = Rc::new(Cell::new(0));
    for _ in 0..200 {
        let (file, done) = (file.clone(), Rc::clone(&done));
        threads
            .spawn(move || {
                for _ in 0..10 {
                    call(stat_file(&file)).unwrap();
                    done.set(done.get() + 1);
                }
            })
            .unwrap();
    }
    threads.run().unwrap();
    assert_eq!(done.get(), 2_000);
}

/// A splice from a socket that is ready to a pipe that is full: its syscall thread finds that, and the splice waits for
/// the pipe. So the syscall thread is free, although no call has ended.
#[test]
fn call_waited_for_ever_for_a_syscall_thread_that_was_free() {
    let (sender, ended) = mpsc::channel();
    std::thread::spawn(move || {
        let mut config = Config::default();
        // One of them for calls that may wait indefinitely.
        config.pages.threads = 2;
        let threads = Threads::new(&config).unwrap();
        let (socket, mut feed) = pair();
        feed.write_all(b"x").unwrap();
        let (reads, writes) = rustix::pipe::pipe().unwrap();
        let full = vec![0; fcntl_getpipe_size(&writes).unwrap()];
        rustix::io::write(&writes, &full).unwrap();
        let (reads, writes) = (Descriptor::new(reads), Descriptor::new(writes));
        let splices = threads.spawn(move || call(splice(&socket, &writes, 1, Direction::Read)));
        let of_reader = reads.clone();
        let reader = threads.spawn(move || {
            // The syscall thread has the splice by then.
            yield_now();
            call(sleep(Duration::ZERO)).unwrap();
            call(read(&of_reader, Vec::with_capacity(full.len()))).0.unwrap()
        });
        threads.run().unwrap();
        let spliced = splices.unwrap().join().unwrap().unwrap();
        sender.send((spliced, reader.unwrap().join().is_ok())).unwrap();
        drop(reads);
    });
    assert_eq!(ended.recv_timeout(Duration::from_secs(10)), Ok((1, true)));
}

/// A call of a thread that keeps its syscall thread is bounded by those; the others wait for it.
#[test]
fn more_blocking_calls_than_syscall_threads_all_complete() {
    let mut config = Config::default();
    config.pages.threads = 2;
    let threads = Threads::new(&config).unwrap();
    let sleepers: Vec<_> = (0..20)
        .map(|_| threads.spawn(|| call(sleep(Duration::from_micros(100))).unwrap()).unwrap())
        .collect();
    threads.run().unwrap();
    assert!(sleepers.into_iter().all(|sleeper| sleeper.join().is_ok()));
    assert!(threads.counters().throttled > 0);
}

#[test]
fn green_functions_need_a_green_thread() {
    let outcome = catch_unwind(|| call(sleep(Duration::ZERO)));
    assert_eq!(message(outcome), "this can be called by a green thread only");
    let threads = Rc::new(threads());
    let of_thread = Rc::downgrade(&threads);
    let runs = threads.spawn(move || of_thread.upgrade().unwrap().run());
    threads.run().unwrap();
    let expected = "green threads cannot be run by a green thread";
    assert_eq!(message(runs.unwrap().join()), expected);
}
