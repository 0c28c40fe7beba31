//! An application's own timers, and values from other threads, on every mechanism.

use crate::server;

use std::sync::mpsc::{self, Receiver, Sender as Reports};
use std::time::{Duration, Instant};

use evring::mailbox::{Mailbox, SendError, Sender};
use evring::{
    AnyMechanism, Application, Chunk, Commands, Config, Cx, NoTimer, Others, RemoteHandle, Rx,
};
use server::{Server, TIMEOUT, ask, listening, one_by_one};

const SET: u64 = 1;
const MAIL: u64 = 2;
const CAPACITY: usize = 3;

/// A report of the application to the test.
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
struct Reporting {
    server: Server,
    mail: Sender<String>,
    reports: Receiver<Report>,
}

fn on_each(test: impl Fn(Reporting)) {
    one_by_one(|name| {
        let config = listening(1).with(|c| c.max_timers = 3);
        let (server, (mail, reports)) = Server::start_with(name, config, |server| {
            let (mailbox, mail) = Mailbox::new(&server.remote(), MAIL, CAPACITY);
            let (reports, receiver) = mpsc::channel();
            (Reporter { mailbox, reports, due: [None; 3] }, (mail, receiver))
        });
        test(Reporting { server, mail, reports });
    });
}

impl Reporting {
    fn report(&self) -> Report {
        self.reports.recv_timeout(TIMEOUT).expect("a report")
    }

    fn stop(self) {
        self.server.stop();
        assert_eq!(self.reports.try_recv().ok(), None);
        assert_eq!(self.mail.send("late".into()), Err(SendError::Closed("late".into())));
    }
}

#[test]
fn timers_expire_in_order_and_not_early() {
    on_each(|reporting| {
        // The timer of a connection is not one of these.
        ask(&mut reporting.server.connect(), b"x", b"x");
        assert!(reporting.server.remote.wake(SET));
        let refused = NoTimer { timer: 3, max_timers: 3 };
        assert_eq!(reporting.report(), Report::Refused(refused));
        let timers = [reporting.report(), reporting.report()];
        assert_eq!(timers, [Report::Timer(1), Report::Timer(0)]);
        reporting.stop();
    });
}

#[test]
fn values_arrive_in_order_and_a_full_mailbox_returns_them() {
    on_each(|reporting| {
        let mut sent = 0;
        let mut received = 0;
        while sent < 1_000 {
            match reporting.mail.send(sent.to_string()) {
                Ok(()) => sent += 1,
                Err(error) => {
                    assert_eq!(error, SendError::Full(sent.to_string()));
                    received = expect_mail(reporting.report(), received);
                }
            }
        }
        while received < sent {
            received = expect_mail(reporting.report(), received);
        }
        reporting.stop();
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

/// Stops when it is woken.
struct StopsIfWoken(RemoteHandle);

impl Application for StopsIfWoken {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn received(&mut self, _: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        rx.take();
    }

    fn woken(&mut self, _: &mut impl Commands, _: Others<'_, ()>, _: u64) {
        self.0.stop();
    }
}

/// So an application without listeners begins to connect.
#[test]
fn wake_up_before_the_run_arrives() {
    one_by_one(|name| {
        let mechanism = AnyMechanism::new(name, &Config::default()).unwrap();
        let remote = mechanism.remote();
        assert!(remote.wake(0));
        mechanism.run(StopsIfWoken(remote)).unwrap();
    });
}

#[test]
fn mailbox_of_a_server_that_does_not_run_is_bounded() {
    let server = AnyMechanism::new("auto", &listening(1)).unwrap();
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
