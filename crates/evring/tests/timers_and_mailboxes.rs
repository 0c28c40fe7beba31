//! An application's own timers, and values from other threads, on every mechanism.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{self, Receiver, Sender as Reports};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use evring::{
    AnyMechanism, Application, Chunk, Commands, Config, Cx, Mailbox, NoTimer, Others, RemoteHandle,
    Rx, SendError, Sender, Stats, backends,
};

/// Longer than any step takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(20);

const SET: u64 = 1;
const MAIL: u64 = 2;
const CAPACITY: usize = 3;

/// What the application reports to the test.
#[derive(Debug, PartialEq, Eq)]
enum Report {
    Refused(NoTimer),
    Timer(u32),
    Mail(Vec<String>),
}

/// Reports its timers and its mail.
struct Reporter {
    mailbox: Mailbox<String>,
    reports: Reports<Report>,
    /// When each timer is due.
    due: [Option<Instant>; 3],
}

impl Reporter {
    fn set(&mut self, io: &mut impl Commands, timer: u32, after: Option<Duration>) {
        let at = after.map(|after| io.now() + after);
        io.set_timer(timer, at).unwrap();
        self.due[timer as usize] = at;
    }
}

impl Application for Reporter {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        x.io.send(x.id, Chunk::Received(rx.take()));
    }

    fn expired(&mut self, _: Cx<'_, impl Commands, ()>) {
        panic!("no connection has a deadline");
    }

    fn woken(&mut self, io: &mut impl Commands, _: Others<'_, Self::State>, tag: u64) {
        if tag == MAIL {
            self.reports.send(Report::Mail(self.mailbox.drain().collect())).unwrap();
            return;
        }
        let refused = io.set_timer(3, Some(io.now())).unwrap_err();
        self.reports.send(Report::Refused(refused)).unwrap();
        self.set(io, 0, Some(Duration::from_millis(30)));
        self.set(io, 1, Some(Duration::from_millis(5)));
        self.set(io, 2, Some(Duration::from_millis(1)));
        self.set(io, 2, None);
    }

    fn timer(&mut self, io: &mut impl Commands, _: Others<'_, Self::State>, timer: u32) {
        let due = self.due[timer as usize].take().expect("it is set");
        assert!(due <= io.now(), "timer {timer} is early");
        self.reports.send(Report::Timer(timer)).unwrap();
    }
}

/// A server on one mechanism, and what the test needs of it.
struct Server {
    address: std::net::SocketAddr,
    remote: RemoteHandle,
    mail: Sender<String>,
    reports: Receiver<Report>,
    thread: JoinHandle<Stats>,
}

fn start(backend: &'static str) -> Server {
    let (sender, receiver) = mpsc::channel();
    let thread = thread::spawn(move || {
        let listen = vec!["127.0.0.1:0".parse().unwrap()];
        let config = Config::default().with(|c| {
            c.listen = listen;
            c.max_timers = 3;
        });
        let server = AnyMechanism::new(backend, &config).unwrap();
        let remote = server.remote();
        let (mailbox, mail) = Mailbox::new(&remote, MAIL, CAPACITY);
        let (reports, receiver) = mpsc::channel();
        sender.send((server.addresses()[0], remote, mail, receiver)).unwrap();
        server.run(Reporter { mailbox, reports, due: [None; 3] }).unwrap()
    });
    let (address, remote, mail, reports) = receiver.recv_timeout(TIMEOUT).unwrap();
    Server { address, remote, mail, reports, thread }
}

fn on_each(test: impl Fn(Server)) {
    for backend in backends() {
        if backend.available.is_ok() {
            println!("{}", backend.name);
            test(start(backend.name));
        }
    }
}

impl Server {
    fn report(&self) -> Report {
        self.reports.recv_timeout(TIMEOUT).expect("a report")
    }

    fn stop(self) {
        self.remote.stop();
        self.thread.join().unwrap();
        assert_eq!(self.reports.try_recv().ok(), None);
        assert_eq!(self.mail.send("late".into()), Err(SendError::Closed("late".into())));
    }
}

#[test]
fn timers_expire_in_order_and_not_early() {
    on_each(|server| {
        // The timer of a connection is not one of these.
        let mut client = TcpStream::connect(server.address).unwrap();
        client.set_read_timeout(Some(TIMEOUT)).unwrap();
        client.write_all(b"x").unwrap();
        client.read_exact(&mut [0]).unwrap();
        assert!(server.remote.wake(SET));
        let refused = NoTimer { timer: 3, max_timers: 3 };
        assert_eq!(server.report(), Report::Refused(refused));
        assert_eq!([server.report(), server.report()], [Report::Timer(1), Report::Timer(0)]);
        server.stop();
    });
}

#[test]
fn values_arrive_in_order_and_a_full_mailbox_returns_them() {
    on_each(|server| {
        let mut sent = 0;
        let mut received = 0;
        while sent < 1_000 {
            match server.mail.send(sent.to_string()) {
                Ok(()) => sent += 1,
                Err(error) => {
                    assert_eq!(error, SendError::Full(sent.to_string()));
                    received = expect_mail(server.report(), received);
                }
            }
        }
        while received < sent {
            received = expect_mail(server.report(), received);
        }
        server.stop();
    });
}

/// Compares mail with the expected numbers, and returns the next number.
fn expect_mail(report: Report, mut next: u64) -> u64 {
    let Report::Mail(values) = report else { panic!("{report:?}") };
    assert!(values.len() <= CAPACITY);
    for value in values {
        assert_eq!(value, next.to_string());
        next += 1;
    }
    next
}

#[test]
fn mailbox_of_a_server_that_does_not_run_is_bounded() {
    let config = Config::default().with(|c| c.listen = vec!["127.0.0.1:0".parse().unwrap()]);
    let server = AnyMechanism::new("auto", &config).unwrap();
    let (mut mailbox, mail) = Mailbox::new(&server.remote(), MAIL, CAPACITY);
    assert_eq!((0..5).filter(|value| mail.send(*value).is_err()).count(), 2);
    assert_eq!(mail.rejected(), 2);
    assert!(mailbox.drain().eq(0..3));
    // With all wake-ups pending, the application would not learn of a value.
    while server.remote().wake(0) {}
    assert_eq!((mail.send(5), mail.rejected()), (Err(SendError::Full(5)), 3));
    drop(mailbox);
    assert_eq!(mail.send(6), Err(SendError::Closed(6)));
}
