//! A thread that owns the ring, a hook that answers in it, and an application that gets the rest.

use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use evring::{
    AnyMechanism, BufferSizes, Chunk, Commands, Config, ConnId, Notification, NotificationRing,
    Notifier, OwnerError, OwnerThread, ReceiveHook, Rx, SendError,
};

use crate::server;

use server::{connect, listening, side_by_side};

/// Places in the ring.
const CAPACITY: usize = 4;
/// The length of a message.
const LEN: usize = 16;

/// Answers messages that begin with `h`, and posts an event for each of them: an upcall in process.
struct Upcall(Notifier);

impl ReceiveHook for Upcall {
    fn received(&mut self, io: &mut impl Commands, id: ConnId, rx: &mut Rx<'_>) {
        if rx.bytes().starts_with(b"h") {
            let len = rx.bytes().len();
            io.send(id, Chunk::Copy(&rx.bytes()[..len]));
            rx.consume(len);
            self.0.post(id, 1, len as u64);
        }
    }
}

fn start(backend: &str) -> (OwnerThread, NotificationRing) {
    start_with(backend, &listening(1))
}

fn start_with(backend: &str, config: &Config) -> (OwnerThread, NotificationRing) {
    let hook = |_: &mut AnyMechanism, notifier| Ok::<_, Infallible>(Upcall(notifier));
    OwnerThread::start(backend, config, CAPACITY, hook).unwrap()
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
    const BYTES: usize = 16 << 20;
    side_by_side(|backend| {
        let config = listening(1).with(|c| {
            c.max_queued_bytes = 1 << 20;
            c.socket_buffers = BufferSizes { send: Some(64 << 10), receive: Some(64 << 10) };
        });
        let (owner, ring) = start_with(backend, &config);
        let application = thread::spawn(move || {
            while let Some(notification) = ring.wait() {
                if let Notification::Message(id, bytes) = notification {
                    send(&ring, id, bytes);
                }
            }
        });
        let mut client = connect(owner.addresses()[0]);
        let mut writes = client.try_clone().unwrap();
        let written = AtomicUsize::new(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                let part = [b'a'; 4096];
                while written.load(Ordering::Relaxed) < BYTES {
                    written.fetch_add(writes.write(&part).unwrap(), Ordering::Relaxed);
                }
            });
            // The client reads when it can write no more.
            let mut before = usize::MAX;
            while before != written.load(Ordering::Relaxed) {
                before = written.load(Ordering::Relaxed);
                thread::sleep(Duration::from_millis(100));
            }
            let (mut replies, mut part) = (0, vec![0; 1 << 16]);
            while replies < BYTES {
                let len = client.read(&mut part).unwrap();
                assert!(len > 0 && part[..len].iter().all(|byte| *byte == b'a'), "{backend}");
                replies += len;
            }
        });
        drop(client);
        owner.remote().stop();
        owner.join().unwrap();
        application.join().unwrap();
    });
}

#[test]
fn connections_are_reset_when_the_application_has_gone() {
    let (owner, ring) = start("auto");
    drop(ring);
    let mut client = connect(owner.addresses()[0]);
    client.write_all(b"message").unwrap();
    assert!(client.read(&mut [0]).is_err(), "there is nobody to answer");
    owner.remote().stop();
    owner.join().unwrap();
}

#[test]
fn owner_that_cannot_start_says_why() {
    let config = Config::default();
    let hook = |_: &mut AnyMechanism, notifier| Ok::<_, Infallible>(Upcall(notifier));
    let error = OwnerThread::start("absent", &config, 1, hook).err().unwrap();
    assert!(matches!(error, OwnerError::Start(_)), "{error}");
    let hook = |_: &mut AnyMechanism, _| Err::<Upcall, _>("no module");
    let error = OwnerThread::start("auto", &config, 1, hook).err().unwrap();
    assert_eq!(error.to_string(), "no module");
}
