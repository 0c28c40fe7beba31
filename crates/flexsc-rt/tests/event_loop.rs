//! Callbacks: stages that post stages, delays, panics, cancellation.

use std::cell::{Cell, RefCell};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Duration;

use flexsc_rt::operations::{
    accept, close, open, poll, raw, read_at, receive, send, sleep, stat_file,
};
use flexsc_rt::{Call, Config, Descriptor, Direction, EventLoop, Scratch};
use rustix::fs::{Mode, OFlags};

fn events(config: Config) -> EventLoop {
    EventLoop::new(&config).expect("pages")
}

/// The server of figure 4: each stage posts the next; several accepts are outstanding.
#[test]
fn stages_serve_connections() {
    const CLIENTS: usize = 50;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let clients = std::thread::spawn(move || {
        let mut streams: Vec<_> =
            (0..CLIENTS).map(|_| TcpStream::connect(address).unwrap()).collect();
        for stream in streams.iter_mut().rev() {
            stream.write_all(b"ping").unwrap();
        }
        for mut stream in streams {
            let mut reply = String::new();
            stream.read_to_string(&mut reply).unwrap();
            assert_eq!(reply, "ping");
        }
    });

    fn accept_next(events: &mut EventLoop, master: Descriptor, left: Rc<Cell<usize>>) {
        if left.get() == 0 {
            return;
        }
        left.set(left.get() - 1);
        let again = master.clone();
        let accepted = move |events: &mut EventLoop, connection: std::io::Result<Descriptor>| {
            accept_next(events, again, left);
            let connection = connection.unwrap();
            let read = receive(&connection, Vec::with_capacity(64));
            let received = move |events: &mut EventLoop, (result, bytes): (_, Vec<u8>)| {
                let _: usize = std::io::Result::unwrap(result);
                let reply = send(&connection, bytes);
                let sent = move |events: &mut EventLoop, _| {
                    events.post_silently(close(connection)).map_err(drop).unwrap();
                };
                events.post(reply, sent).unwrap();
            };
            events.post(read, received).unwrap();
        };
        events.post(accept(&master), accepted).unwrap();
    }
    // Once blocking, so that a thread accepts; the clients do not see a difference.
    let mut events = events(Config::default());
    let left = Rc::new(Cell::new(CLIENTS));
    let master = Descriptor::new(listener);
    for _ in 0..4 {
        accept_next(&mut events, master.clone(), Rc::clone(&left));
    }
    events.run().unwrap();
    clients.join().unwrap();
}

#[test]
fn calls_beyond_the_entries_are_delayed_in_order() {
    let mut config = Config::with_entries(64);
    config.reserve = 0;
    let mut events = events(config);
    let file = Descriptor::new(tempfile::tempfile().unwrap());
    let order = Rc::new(RefCell::new(Vec::new()));
    for number in 0..128 {
        let order = Rc::clone(&order);
        let note = move |_: &mut EventLoop, result: std::io::Result<libc::statx>| {
            assert_eq!(result.unwrap().stx_size, 0);
            order.borrow_mut().push(number);
        };
        events.post_or_delay(stat_file(&file), note).unwrap();
    }
    assert!(events.post_or_delay(stat_file(&file), |_, _| {}).is_err());
    let refused: &dyn std::error::Error = &events.post(stat_file(&file), |_, _| {}).unwrap_err();
    assert!(refused.to_string().starts_with("all syscall entries are busy; "), "{refused}");
    events.run().unwrap();
    assert_eq!(*order.borrow(), Vec::from_iter(0..128));
}

#[test]
fn panic_in_a_callback_loses_no_other_call() {
    let mut events = events(Config::default());
    let file = Descriptor::new(tempfile::tempfile().unwrap());
    let count = Rc::new(Cell::new(0));
    for number in 0..20 {
        let count = Rc::clone(&count);
        let callback = move |_: &mut EventLoop, _| {
            assert!(number != 7, "the handler's defect");
            count.set(count.get() + 1);
        };
        events.post(stat_file(&file), callback).unwrap();
    }
    assert!(catch_unwind(AssertUnwindSafe(|| events.run())).is_err());
    assert_eq!(count.get(), 7);
    events.run().unwrap();
    assert_eq!((count.get(), events.outstanding()), (19, 0));
}

/// Notes that it is dropped.
struct SetsOnDrop(Rc<Cell<bool>>);

impl Drop for SetsOnDrop {
    fn drop(&mut self) {
        self.0.set(true);
    }
}

/// Panics when it is dropped.
struct Panics;

impl Drop for Panics {
    fn drop(&mut self) {
        panic!("a destructor panics");
    }
}

#[test]
fn panic_of_a_destructor_freed_the_memory_of_a_call_in_flight() {
    let mut events = events(Config::default());
    let (reads, writes) = rustix::pipe::pipe().unwrap();
    let freed = Rc::new(Cell::new(false));
    let memory = (vec![0_u8; 1], SetsOnDrop(Rc::clone(&freed)));
    let fd = reads.as_raw_fd() as usize;
    // SAFETY: the operation owns the byte; the pipe is open until the read has ended.
    let read = unsafe {
        let prepare = move |(byte, _): &mut (Vec<u8>, SetsOnDrop), _: &mut Scratch| {
            let args = [fd, byte.as_mut_ptr() as usize, 1, 0, 0, 0];
            Call::new(libc::SYS_read, args).uncancellable()
        };
        raw(memory, prepare, |_, result, _| result)
    };
    assert!(events.post_silently(read).is_ok());
    let panics = Panics;
    events.post(sleep(Duration::from_secs(1_000)), move |_, _| drop(panics)).unwrap();
    events.turn(Some(Duration::ZERO)).unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| drop(events))).is_err());
    assert!(!freed.get(), "the kernel reads into it");
    rustix::io::write(&writes, b"x").unwrap();
}

#[test]
fn cancelled_call_has_its_callback() {
    let mut events = events(Config::default());
    let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let socket = Descriptor::new(ours);
    let ended = Rc::new(Cell::new(false));
    let note = Rc::clone(&ended);
    let id = events
        .post(receive(&socket, Vec::with_capacity(8)), move |_, (result, buffer)| {
            assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EINTR));
            assert_eq!((buffer.len(), buffer.capacity()), (0, 8));
            note.set(true);
        })
        .unwrap();
    let stopped = events.post(sleep(Duration::from_millis(1)), move |events, _| events.cancel(id));
    stopped.unwrap();
    events.run().unwrap();
    assert!(ended.get());
}

/// Notes the error of a receive that ends with its buffer.
fn interrupted(
    count: &Rc<Cell<usize>>,
) -> impl FnOnce(&mut EventLoop, (std::io::Result<usize>, Vec<u8>)) + use<> {
    let count = Rc::clone(count);
    move |_, (result, buffer)| {
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EINTR));
        assert_eq!((buffer.len(), buffer.capacity()), (0, 8));
        count.set(count.get() + 1);
    }
}

#[test]
fn delayed_call_could_not_be_cancelled() {
    let mut config = Config::with_entries(64);
    config.reserve = 0;
    let mut events = events(config);
    let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let socket = Descriptor::new(ours);
    let read = || receive(&socket, Vec::with_capacity(8));
    let ended = Rc::new(Cell::new(0));
    let ids: Vec<_> =
        (0..67).map(|_| events.post_or_delay(read(), interrupted(&ended)).unwrap()).collect();
    events.turn(Some(Duration::ZERO)).unwrap();
    assert_eq!((events.outstanding(), ended.get()), (64, 0));

    // Its callback runs in a turn, as that of any call, and the turn does not sleep.
    events.cancel(ids[65]);
    assert_eq!(ended.get(), 0);
    events.turn(None).unwrap();
    assert_eq!((events.outstanding(), ended.get()), (64, 1));
    // Once.
    events.cancel(ids[65]);
    events.turn(Some(Duration::ZERO)).unwrap();
    assert_eq!((events.outstanding(), ended.get()), (64, 1));

    // The other delayed ones take the entries of posted ones, and keep their ids.
    events.cancel(ids[0]);
    events.cancel(ids[1]);
    while ended.get() < 3 || events.outstanding() < 64 {
        events.turn(Some(Duration::ZERO)).unwrap();
    }
    events.cancel(ids[64]);
    events.cancel(ids[66]);
    while ended.get() < 5 {
        events.turn(None).unwrap();
    }
    assert_eq!(events.outstanding(), 62);

    // An old id does not name the next call of its entry.
    let received = Rc::new(Cell::new(0));
    for _ in 0..2 {
        let note = Rc::clone(&received);
        let receives = move |_: &mut EventLoop, (len, _): (std::io::Result<usize>, _)| {
            note.set(note.get() + len.unwrap());
        };
        events.post_or_delay(read(), receives).unwrap();
    }
    ids.iter().for_each(|id| events.cancel(*id));
    theirs.write_all(b"x").unwrap();
    theirs.shutdown(std::net::Shutdown::Write).unwrap();
    events.run().unwrap();
    assert_eq!((received.get(), ended.get()), (1, 67));
}

#[test]
fn cancelled_calls_count_as_delayed_until_their_callbacks_run() {
    let mut config = Config::with_entries(64);
    (config.threads, config.reserve) = (2, 0);
    let mut events = events(config);
    let long = || sleep(Duration::from_secs(1_000));
    let first = events.post_or_delay(long(), |_, _| {}).unwrap();
    let ended = Rc::new(Cell::new(0));
    for _ in 0..64 {
        let ended = Rc::clone(&ended);
        let stop = move |events: &mut EventLoop, result: std::io::Result<()>| {
            assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EINTR));
            ended.set(ended.get() + 1);
            assert_ne!(ended.get(), 3, "the callback's defect");
            events.stop();
        };
        let id = events.post_or_delay(long(), stop).unwrap();
        events.cancel(id);
    }
    assert!(events.post_or_delay(long(), |_, _| {}).is_err());
    events.cancel(first);
    for turn in 1..=2 {
        events.run().unwrap();
        assert_eq!(ended.get(), turn);
    }
    assert!(catch_unwind(AssertUnwindSafe(|| events.run())).is_err());
    // One more, and no other is lost.
    let last = events.post_or_delay(long(), |_, _| {}).unwrap();
    events.cancel(last);
    while ended.get() < 64 {
        events.run().unwrap();
    }
    events.run().unwrap();
    assert_eq!(events.outstanding(), 0);
}

#[test]
fn cancelled_calls_counted_as_delayed_ones_of_another_sort() {
    let mut config = Config::with_entries(64);
    (config.threads, config.reserve) = (2, 0);
    let mut events = events(config);
    let file = Descriptor::new(tempfile::tempfile().unwrap());
    for _ in 0..64 {
        events.post(stat_file(&file), |_, _| {}).unwrap();
    }
    for _ in 0..64 {
        let id = events.post_or_delay(stat_file(&file), |_, _| {}).unwrap();
        events.cancel(id);
    }
    let ended = Rc::new(Cell::new(0));
    let end = || {
        let ended = Rc::clone(&ended);
        move |_: &mut EventLoop, _| ended.set(ended.get() + 1)
    };
    // As many again that need a thread, and no further one of either sort.
    for _ in 0..64 {
        let id = events.post_or_delay(sleep(Duration::from_secs(1_000)), end()).unwrap();
        events.cancel(id);
    }
    assert!(events.post_or_delay(sleep(Duration::ZERO), end()).is_err());
    assert!(events.post_or_delay(stat_file(&file), |_, _| {}).is_err());
    events.run().unwrap();
    assert_eq!(ended.get(), 64);
    events.post_or_delay(sleep(Duration::ZERO), end()).unwrap();
    events.run().unwrap();
    assert_eq!(ended.get(), 65);
}

#[test]
fn stop_leaves_calls_for_the_next_run() {
    let mut events = events(Config::default());
    let file = Descriptor::new(tempfile::tempfile().unwrap());
    for _ in 0..3 {
        events.post(stat_file(&file), |events, _| events.stop()).unwrap();
    }
    for left in [2, 1, 0] {
        events.run().unwrap();
        assert_eq!(events.outstanding(), left);
    }
}

/// A descriptor that calls still use is not closed under them; a loop that is dropped closes it.
#[test]
fn close_waits_for_calls_on_the_descriptor() {
    let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let mut events = events(Config::default());
    let socket = Descriptor::new(ours);
    let received = Rc::new(Cell::new(false));
    let note = Rc::clone(&received);
    let read = receive(&socket, Vec::with_capacity(8));
    events
        .post(read, move |_, (result, bytes)| {
            assert_eq!((result.unwrap(), &bytes[..]), (2, &b"hi"[..]));
            note.set(true);
        })
        .unwrap();
    events.post(close(socket), |_, result| result.unwrap()).unwrap();
    events.turn(None).unwrap();
    theirs.write_all(b"hi").unwrap();
    events.run().unwrap();
    assert!(received.get());
    assert_eq!(theirs.read(&mut [0; 8]).unwrap(), 0);
}

#[test]
fn dropped_loop_closes_what_late_calls_open() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    std::fs::write(&path, "content").unwrap();
    let path = std::ffi::CString::new(path.into_os_string().into_encoded_bytes()).unwrap();
    let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let mut events = events(Config::default());
    let socket = Descriptor::new(ours);
    events.post(receive(&socket, Vec::with_capacity(8)), |_, _| panic!("cancelled")).unwrap();
    drop(socket);
    let read = |events: &mut EventLoop, file: std::io::Result<Descriptor>| {
        let read = read_at(&file.unwrap(), 3, Vec::with_capacity(8));
        events.post(read, |_, (_, bytes)| assert_eq!(bytes, b"tent")).unwrap();
    };
    events.post(open(path, OFlags::RDONLY, Mode::empty()), read).unwrap();
    events.turn(None).unwrap();
    drop(events);
    // The receive was cancelled, and its socket closed.
    assert_eq!(theirs.read(&mut [0; 8]).unwrap(), 0);
}

#[test]
fn bounded_call_behind_a_delayed_one_that_needs_a_thread_was_never_posted() {
    let mut config = Config::default();
    config.threads = 2;
    let mut events = events(config);
    // The only thread that may wait indefinitely, and a call for it.
    for _ in 0..2 {
        events.post_or_delay(sleep(Duration::from_secs(1_000)), |_, _| {}).unwrap();
    }
    let file = Descriptor::new(tempfile::tempfile().unwrap());
    let order = Rc::new(RefCell::new(Vec::new()));
    for number in 0..3 {
        let order = Rc::clone(&order);
        let note = move |_: &mut EventLoop, _| order.borrow_mut().push(number);
        events.post_or_delay(stat_file(&file), note).unwrap();
    }
    events.turn(Some(Duration::ZERO)).unwrap();
    assert_eq!(*order.borrow(), [0, 1, 2]);
    assert_eq!(events.outstanding(), 1);
}

#[test]
fn delayed_bounded_calls_do_not_overtake_those_that_came_before() {
    let mut config = Config::with_entries(64);
    config.reserve = 1;
    let mut events = events(config);
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let (ours, theirs) = (Descriptor::new(ours), Descriptor::new(theirs));
    let order = Rc::new(RefCell::new(Vec::new()));
    let note = |number| {
        let order = Rc::clone(&order);
        move || order.borrow_mut().push(number)
    };
    for _ in 0..64 {
        events.post(stat_file(&ours), |_, _| {}).unwrap();
    }
    for number in 0..3 {
        let (sent, asked) = (note(2 * number), note(2 * number + 1));
        events.post_or_delay(send(&theirs, vec![b'x']), move |_, _| sent()).unwrap();
        events.post_or_delay(stat_file(&ours), move |_, _| asked()).unwrap();
    }
    events.run().unwrap();
    assert_eq!(*order.borrow(), Vec::from_iter(0..6));
}

#[test]
fn delayed_call_that_waits_starved_behind_bounded_calls_that_were_posted_again() {
    const CALLS: usize = 64;
    fn repeat(events: &mut EventLoop, file: Descriptor, ended: Rc<Cell<usize>>) {
        let call = stat_file(&file);
        let again = move |events: &mut EventLoop, result: std::io::Result<libc::statx>| {
            result.unwrap();
            ended.set(ended.get() + 1);
            if ended.get() < 100 * CALLS {
                repeat(events, file, ended);
            }
        };
        events.post_or_delay(call, again).unwrap();
    }
    let mut config = Config::with_entries(CALLS as u32);
    config.reserve = 8;
    let mut events = events(config);
    let (reads, writes) = rustix::pipe::pipe().unwrap();
    rustix::io::write(&writes, b"x").unwrap();
    let (reads, file) = (Descriptor::new(reads), Descriptor::new(tempfile::tempfile().unwrap()));
    let (ended, polled) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(None)));
    for _ in 0..CALLS {
        repeat(&mut events, file.clone(), Rc::clone(&ended));
    }
    let (others, note) = (Rc::clone(&ended), Rc::clone(&polled));
    let waited = move |_: &mut EventLoop, result: std::io::Result<i16>| {
        assert_ne!(result.unwrap(), 0);
        note.set(Some(others.get()));
    };
    events.post_or_delay(poll(&reads, Direction::Read), waited).unwrap();
    events.run().unwrap();
    assert!(polled.get().is_some_and(|others| others <= 16 * CALLS), "{polled:?}");
}

#[test]
fn panic_while_a_delayed_call_was_prepared_lost_the_other_delayed_ones() {
    let mut config = Config::with_entries(64);
    config.reserve = 0;
    let mut events = events(config);
    let file = Descriptor::new(tempfile::tempfile().unwrap());
    for _ in 0..64 {
        events.post(stat_file(&file), |_, _| {}).unwrap();
    }
    let is_full = Rc::new(Cell::new(true));
    let full = Rc::clone(&is_full);
    // SAFETY: the call takes numbers.
    let panics = unsafe {
        let prepare = move |(): &mut (), _: &mut Scratch| {
            assert!(full.get(), "the operation's defect");
            Call::bounded(libc::SYS_getppid, [0; 6])
        };
        raw((), prepare, |(), result, _| result)
    };
    events.post_or_delay(panics, |_, _| {}).unwrap();
    let made = Rc::new(Cell::new(0));
    for _ in 0..3 {
        let made = Rc::clone(&made);
        events.post_or_delay(stat_file(&file), move |_, _| made.set(made.get() + 1)).unwrap();
    }
    events.turn(None).unwrap();
    is_full.set(false);
    assert!(catch_unwind(AssertUnwindSafe(|| events.run())).is_err());
    events.run().unwrap();
    assert_eq!(made.get(), 3);
}

#[test]
fn turn_after_a_stop_ran_no_callback() {
    let mut events = events(Config::default());
    let file = Descriptor::new(tempfile::tempfile().unwrap());
    let made = Rc::new(Cell::new(0));
    for _ in 0..4 {
        let made = Rc::clone(&made);
        let stop = move |events: &mut EventLoop, _| {
            made.set(made.get() + 1);
            events.stop();
        };
        events.post(stat_file(&file), stop).unwrap();
    }
    events.run().unwrap();
    assert_eq!(made.get(), 1);
    // Each ends its turn.
    for turn in 2..4 {
        events.turn(None).unwrap();
        assert_eq!(made.get(), turn);
    }
    events.run().unwrap();
    assert_eq!((made.get(), events.outstanding()), (4, 0));
}
