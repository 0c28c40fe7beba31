//! A thread that owns the ring, a hook that answers in it, and an application that gets the rest.

use std::collections::HashSet;
use std::convert::Infallible;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use evring::hooks::ReceiveHook;
use evring::mailbox::SendError;
use evring::owner::{
    Notification, NotificationRing, NotificationSender, OwnerError, OwnerThread, Scheduling,
};
use evring::{AnyMechanism, Chunk, Commands, Config, ConnId, Rx};

use crate::server;

use server::{connect, echo_to_a_late_reader, listening, side_by_side, small_queues};

/// Places in the ring.
const CAPACITY: usize = 4;
/// The length of a message.
const LEN: usize = 16;

/// Answers messages that begin with `h`, and posts an event for each of them: an upcall in process.
struct Upcall(NotificationSender);

impl ReceiveHook for Upcall {
    fn received(&mut self, io: &mut impl Commands, id: ConnId, rx: &mut Rx<'_>) {
        if rx.bytes().starts_with(b"h") {
            let len = rx.bytes().len();
            io.send(id, Chunk::Copy(&rx.bytes()[..len]));
            rx.consume(len);
            // Without room the event is dropped; some tests fill the ring.
            let _ = self.0.post(id, 1, len as u64);
        }
    }
}

fn start(backend: &str) -> (OwnerThread, NotificationRing) {
    start_with(backend, &listening(1))
}

fn start_with(backend: &str, config: &Config) -> (OwnerThread, NotificationRing) {
    let hook = |_: &mut AnyMechanism, notifier| Ok::<_, Infallible>(Upcall(notifier));
    OwnerThread::start(backend, config, Scheduling::Inherited, CAPACITY, hook).unwrap()
}

fn message(first: u8, n: usize) -> [u8; LEN] {
    let mut message = [first; LEN];
    message[8..].copy_from_slice(&(n as u64).to_be_bytes());
    message
}

fn read(client: &mut TcpStream) -> [u8; LEN] {
    let mut answer = [0; LEN];
    client.read_exact(&mut answer).unwrap();
    answer
}

/// Sends a reply when there is room for it.
fn send(ring: &NotificationRing, id: ConnId, mut bytes: Vec<u8>) {
    while let Err(error) = ring.send(id, bytes) {
        assert!(matches!(error, SendError::Full(_)), "{error}");
        bytes = error.into_value();
        thread::yield_now();
    }
}

#[test]
fn hook_answers_while_the_application_sleeps_and_the_rest_waits_for_it() {
    side_by_side(|backend| {
        const MESSAGES: usize = 500;
        let (owner, ring) = start(backend);
        let (mut handled, mut passed) =
            (connect(owner.addresses()[0]), connect(owner.addresses()[0]));
        for n in 0..MESSAGES {
            passed.write_all(&message(b'a', n)).unwrap();
            // The application takes nothing yet, and the ring is full.
            handled.write_all(&message(b'h', n)).unwrap();
            assert_eq!(read(&mut handled), message(b'h', n), "{backend}");
        }
        passed.shutdown(std::net::Shutdown::Write).unwrap();
        let (done, events) = mpsc::channel();
        let application = thread::spawn(move || {
            let mut taken = Vec::new();
            let mut posted = 0;
            loop {
                match ring.wait() {
                    Some(Notification::Message(id, bytes)) => {
                        taken.extend_from_slice(&bytes);
                        send(&ring, id, bytes);
                    }
                    Some(Notification::End(id)) if taken.len() == MESSAGES * LEN => {
                        // The other client's end may come when the server has stopped.
                        while let Err(SendError::Full(())) = ring.close(id) {
                            thread::yield_now();
                        }
                        let _ = done.send(posted);
                    }
                    Some(Notification::Event(..)) => posted += 1,
                    Some(_) => {}
                    None => return (taken, ring),
                }
            }
        });
        for n in 0..MESSAGES {
            assert_eq!(read(&mut passed), message(b'a', n), "{backend}");
        }
        assert_eq!(passed.read(&mut [0]).unwrap(), 0);
        // Events that found the ring full were dropped.
        assert!(events.recv().unwrap() <= CAPACITY);
        drop(handled);
        owner.remote().stop();
        owner.join().unwrap();
        let (taken, ring) = application.join().unwrap();
        let sent: Vec<u8> = (0..MESSAGES).flat_map(|n| message(b'a', n)).collect();
        assert!(taken == sent, "{backend}: each byte reaches the application once and in order");
        assert_eq!(ring.poll(), None);
        assert_eq!(ring.send(ConnId::new(0, 0), vec![1]), Err(SendError::Closed(vec![1])));
        assert_eq!(ring.close(ConnId::new(0, 0)), Err(SendError::Closed(())));
    });
}

#[test]
fn client_that_reads_late_was_reset() {
    side_by_side(|backend| {
        let (owner, ring) = start_with(backend, &small_queues());
        let application = thread::spawn(move || {
            while let Some(notification) = ring.wait() {
                if let Notification::Message(id, bytes) = notification {
                    send(&ring, id, bytes);
                }
            }
        });
        echo_to_a_late_reader(owner.addresses()[0], b'a');
        owner.remote().stop();
        owner.join().unwrap();
        application.join().unwrap();
    });
}

#[test]
fn bytes_received_while_the_ring_was_full_reached_the_application_as_one_message() {
    const BYTES: usize = 2 << 20;
    side_by_side(|backend| {
        let (owner, ring) = start_with(backend, &small_queues());
        let mut client = connect(owner.addresses()[0]);
        let mut writes = client.try_clone().unwrap();
        let writer = thread::spawn(move || writes.write_all(&vec![b'a'; BYTES]).unwrap());
        let (mut received, mut id) = (0, None);
        while received < BYTES {
            let Some(Notification::Message(from, bytes)) = ring.wait() else { panic!() };
            assert!(bytes.len() <= 64 << 10, "{backend}: {} bytes", bytes.len());
            received += bytes.len();
            if id.replace(from).is_none() {
                // The ring fills meanwhile.
                ring.send(from, vec![1]).unwrap();
                client.read_exact(&mut [0]).unwrap();
            }
        }
        writer.join().unwrap();
        owner.remote().stop();
        owner.join().unwrap();
    });
}

#[test]
fn rest_of_a_message_of_the_application_reached_the_hook() {
    side_by_side(|backend| {
        let (owner, ring) = start(backend);
        let mut client = connect(owner.addresses()[0]);
        let mut id = None;
        for round in 0..3 {
            // A message in two parts. The second one looks like a message for the hook, and so does one behind it.
            for part in [b"a part", b"h part", b"h next"] {
                client.write_all(part).unwrap();
                let Some(Notification::Message(from, bytes)) = ring.wait() else { panic!() };
                assert_eq!((*id.get_or_insert(from), &bytes[..]), (from, &part[..]), "{backend}");
                if round == 0 {
                    // Gives nothing back.
                    send(&ring, from, bytes);
                    assert_eq!(client.read(&mut [0; LEN]).unwrap(), part.len());
                }
            }
            ring.reply(id.unwrap(), b"reply".to_vec()).unwrap();
            let mut reply = [0; 5];
            client.read_exact(&mut reply).unwrap();
            assert_eq!(&reply, b"reply");
            client.write_all(&message(b'h', round)).unwrap();
            assert_eq!(read(&mut client), message(b'h', round), "{backend}");
            assert!(matches!(ring.wait(), Some(Notification::Event(..))));
        }
        // A reply that leaves before the application has taken the next message gives nothing back.
        client.write_all(b"a").unwrap();
        let Some(Notification::Message(id, _)) = ring.wait() else { panic!() };
        client.write_all(b"a").unwrap();
        let mut other = connect(owner.addresses()[0]);
        other.write_all(&message(b'h', 0)).unwrap();
        assert_eq!(read(&mut other), message(b'h', 0), "the message before has arrived");
        ring.reply(id, b"r".to_vec()).unwrap();
        client.read_exact(&mut [0]).unwrap();
        client.write_all(b"h").unwrap();
        let messages = std::iter::from_fn(|| ring.wait()).filter_map(|notification| {
            let Notification::Message(_, bytes) = notification else { return None };
            Some(bytes)
        });
        assert_eq!(messages.take(2).collect::<Vec<_>>(), [b"a", b"h"], "{backend}");
        owner.remote().stop();
        owner.join().unwrap();
    });
}

#[test]
fn application_kept_what_it_knew_of_a_connection_that_was_reset() {
    const CLIENTS: usize = 3 * CAPACITY;
    side_by_side(|backend| {
        let (owner, ring) = start(backend);
        let mut clients: Vec<_> = (0..CLIENTS).map(|_| connect(owner.addresses()[0])).collect();
        clients.iter_mut().for_each(|client| client.write_all(b"a").unwrap());
        // Half of them are gone while the ring is full.
        clients.truncate(CLIENTS / 2);
        let (mut known, mut closed) = (HashSet::new(), 0);
        while closed < CLIENTS {
            match ring.wait().unwrap() {
                Notification::Message(id, _) => {
                    assert!(known.insert(id), "{backend}");
                    // Bytes that the client does not read, so that its close is a reset.
                    send(&ring, id, b"unread".to_vec());
                    clients.pop();
                }
                Notification::End(id) => {
                    while let Err(SendError::Full(())) = ring.close(id) {
                        thread::yield_now();
                    }
                }
                Notification::Closed(id) => {
                    assert!(known.remove(&id), "{backend}");
                    closed += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        owner.remote().stop();
        owner.join().unwrap();
    });
}

/// Reports the messages of the application, and blocks at each that begins with `b`, until the test continues.
struct Blocks {
    seen: mpsc::Sender<u8>,
    resumed: mpsc::Receiver<()>,
}

impl ReceiveHook for Blocks {
    fn received(&mut self, _: &mut impl Commands, _: ConnId, rx: &mut Rx<'_>) {
        let first = rx.bytes()[0];
        self.seen.send(first).unwrap();
        if first == b'b' {
            self.resumed.recv_timeout(server::TIMEOUT).unwrap();
            rx.consume(1);
        }
    }
}

#[test]
fn connection_that_waits_for_room_resumes_after_a_wake_up_that_failed() {
    side_by_side(|backend| {
        let ((seen, sees), (resume, resumed)) = (mpsc::channel(), mpsc::channel());
        let hook = |_: &mut AnyMechanism, _| Ok::<_, Infallible>(Blocks { seen, resumed });
        let (owner, ring) =
            OwnerThread::start(backend, &listening(1), Scheduling::Inherited, CAPACITY, hook)
                .unwrap();
        let next = || sees.recv_timeout(server::TIMEOUT).unwrap();
        // One message more than the ring has room for.
        let mut clients: Vec<_> = (0..=CAPACITY).map(|_| connect(owner.addresses()[0])).collect();
        for client in &mut clients {
            client.write_all(b"a").unwrap();
        }
        assert!((0..=CAPACITY).all(|_| next() == b'a'));
        // The thread works, so no further wake-up fits in.
        let mut blocks = connect(owner.addresses()[0]);
        blocks.write_all(b"b").unwrap();
        assert_eq!(next(), b'b');
        while owner.remote().wake(0) {}
        for _ in 0..CAPACITY {
            assert!(matches!(ring.poll(), Some(Notification::Message(..))), "{backend}");
        }
        resume.send(()).unwrap();
        let (done, last) = mpsc::channel();
        thread::spawn(move || done.send(ring.wait()));
        let last = last.recv_timeout(server::TIMEOUT);
        assert!(matches!(last, Ok(Some(Notification::Message(..)))), "{backend}: {last:?}");
        owner.remote().stop();
        owner.join().unwrap();
    });
}

#[test]
fn connections_are_reset_when_the_application_has_gone() {
    let (owner, ring) = start("auto");
    drop(ring);
    let mut client = connect(owner.addresses()[0]);
    client.write_all(b"message").unwrap();
    let end = client.read(&mut [0]).map_err(|error| error.kind());
    assert_eq!(end, Err(ErrorKind::ConnectionReset), "there is no application");
    owner.remote().stop();
    owner.join().unwrap();
}

#[test]
fn connections_waited_for_an_application_that_had_gone_with_a_full_ring() {
    let (owner, ring) = start("auto");
    let mut handled = connect(owner.addresses()[0]);
    let mut handle = || {
        handled.write_all(&message(b'h', 0)).unwrap();
        read(&mut handled);
    };
    // Each has posted an event.
    (0..CAPACITY).for_each(|_| handle());
    let mut waiting = connect(owner.addresses()[0]);
    waiting.write_all(b"message").unwrap();
    handle();
    drop(ring);
    let mut next = connect(owner.addresses()[0]);
    next.write_all(b"message").unwrap();
    for mut client in [waiting, next] {
        let end = client.read(&mut [0]).unwrap_err().kind();
        assert_eq!(end, ErrorKind::ConnectionReset);
    }
    owner.remote().stop();
    owner.join().unwrap();
}

#[test]
fn owner_that_cannot_start_says_why() {
    let config = Config::default();
    let hook = |_: &mut AnyMechanism, notifier| Ok::<_, Infallible>(Upcall(notifier));
    let error =
        OwnerThread::start("absent", &config, Scheduling::Inherited, 1, hook).err().unwrap();
    assert!(matches!(error, OwnerError::Start(_)), "{error}");
    let hook = |_: &mut AnyMechanism, _| Err::<Upcall, _>("no module");
    let error = OwnerThread::start("auto", &config, Scheduling::Inherited, 1, hook).err().unwrap();
    assert_eq!(error.to_string(), "no module");
}

#[test]
fn owner_has_its_policy_or_says_that_it_is_not_permitted() {
    for scheduling in [Scheduling::Normal, Scheduling::ShortSlice, Scheduling::RealTime] {
        let (policy, got) = mpsc::channel();
        let hook = move |_: &mut AnyMechanism, notifier| {
            // SAFETY: it returns a number.
            policy.send(unsafe { libc::sched_getscheduler(0) }).unwrap();
            Ok::<_, Infallible>(Upcall(notifier))
        };
        match OwnerThread::start("auto", &listening(1), scheduling, CAPACITY, hook) {
            Ok((owner, ring)) => {
                let policy = got.recv().unwrap() & !libc::SCHED_RESET_ON_FORK;
                let is_real_time = policy == libc::SCHED_FIFO;
                assert_eq!(is_real_time, scheduling == Scheduling::RealTime);
                drop(ring);
                owner.remote().stop();
                owner.join().unwrap();
            }
            Err(OwnerError::Scheduling(error)) => {
                assert_eq!(error.scheduling, Scheduling::RealTime, "{error}");
            }
            Err(other) => panic!("{other}"),
        }
    }
}

/// Answers each message with the number of turns, and looks for the next one for a time.
struct Turns(Duration);

impl ReceiveHook for Turns {
    fn received(&mut self, io: &mut impl Commands, id: ConnId, rx: &mut Rx<'_>) {
        let turns = io.stats().kernel.turns;
        io.send(id, Chunk::Copy(&turns.to_be_bytes()));
        rx.consume(rx.bytes().len());
        io.busy_poll(self.0);
    }
}

#[test]
fn busy_poll_looks_for_messages_instead_of_sleeping() {
    // Turns for a message, on average at most, if the thread sleeps between messages.
    const TURNS: u64 = 8;
    side_by_side(|backend| {
        if backend == "tokio" {
            return println!("{backend}: does not apply: it does not poll");
        }
        let turns_of = |client: &mut TcpStream| {
            let mut turns = [0; 8];
            client.write_all(b"h").unwrap();
            client.read_exact(&mut turns).unwrap();
            u64::from_be_bytes(turns)
        };
        let start = |time| {
            let hook = move |_: &mut AnyMechanism, _| Ok::<_, Infallible>(Turns(time));
            let config = listening(1);
            OwnerThread::start(backend, &config, Scheduling::Inherited, CAPACITY, hook).unwrap()
        };
        let (sleeping, _ring) = start(Duration::ZERO);
        let mut client = connect(sleeping.addresses()[0]);
        let messages = 1..=100;
        let turns = messages.map(|_| turns_of(&mut client)).last().unwrap();
        assert!(turns <= 100 * TURNS, "{backend}: {turns} turns");
        sleeping.remote().stop();
        sleeping.join().unwrap();

        // Between two messages it turns until the next one, however long that takes.
        let (polling, _ring) = start(Duration::from_secs(3600));
        let mut client = connect(polling.addresses()[0]);
        let polled = (0..12).any(|n| {
            let before = turns_of(&mut client);
            thread::sleep(Duration::from_millis(1 << n));
            turns_of(&mut client) - before > 100 * TURNS
        });
        assert!(polled, "{backend}: it slept");
        // It polls until an hour from now, and yet ends.
        polling.remote().stop();
        polling.join().unwrap();
    });
}
