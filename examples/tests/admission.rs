//! How connections are admitted, and what other threads may do while the loop is busy.

mod support;

use std::collections::HashSet;
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use evring::{
    AcceptPolicy, AnyMechanism, Application, Chunk, Close, Commands, Config, Cx, Listener,
    Multiplexer as _, RemoteHandle, Rx, Tokio,
};
use examples::Echo;
use support::client::{Client, End};
use support::script::{Ended, Event, Log, Turn, script};
use support::{PATIENCE, Server, config, on_each};

/// What is echoed to show that a turn was taken.
const TICK: &[u8] = b"tick";

fn received(bytes: &[u8]) -> Event {
    Event::Received { bytes: bytes.to_vec(), eof: false }
}

fn end_of_stream() -> Event {
    Event::Received { bytes: Vec::new(), eof: true }
}

/// Sends back what comes, and closes when it ends or the server stops.
fn echo(turn: &mut Turn<'_, '_>) {
    match &turn.event {
        Event::Received { bytes, eof } => {
            let id = turn.id.unwrap();
            turn.io.send(id, Chunk::Copy(bytes));
            if *eof {
                turn.io.close(id, Close::Flush);
            }
        }
        Event::Stopping => turn.io.close(turn.conn(), Close::Flush),
        _ => {}
    }
    turn.consume();
}

/// A server that echoes and does the ways of admission by the tags it is woken with, and one of its
/// clients.
struct Door {
    server: Server,
    log: Log,
    inside: Client,
}

impl Door {
    fn start(backend: &'static str, ways: Vec<AcceptPolicy>) -> Door {
        let (make, log) = script(move |turn| {
            if let Event::Woken(tag) = turn.event {
                turn.io.set_accept_policy(Listener(0), ways[tag as usize]);
            }
            echo(turn);
        });
        let server = Server::start(backend, config(), make);
        let inside = Client::connect(server.address);
        assert_eq!(log.next(), Event::Accepted);
        Door { server, log, inside }
    }

    /// Has the loop take a turn, in which nothing else happens.
    #[track_caller]
    fn tick(&mut self) {
        self.inside.ask(TICK, TICK);
        assert_eq!(self.log.next(), received(TICK));
    }

    /// Has one of the ways take effect. Nothing else happens until the loop has turned again.
    #[track_caller]
    fn admit(&mut self, way: u64) {
        assert!(self.server.remote.wake(way));
        assert_eq!(self.log.next(), Event::Woken(way));
    }

    /// The same for a way by which nobody is accepted.
    #[track_caller]
    fn shut(&mut self, way: u64) {
        self.admit(way);
        self.tick();
        self.tick();
    }

    /// Clients that are connected, as far as they know.
    fn connect(&self, n: usize) -> Vec<Client> {
        (0..n).map(|_| Client::connect(self.server.address)).collect()
    }
}

#[test]
fn what_arrives_while_off_waits_until_all_are_admitted() {
    on_each(|backend| {
        let mut door = Door::start(backend, vec![AcceptPolicy::Off, AcceptPolicy::All]);
        let mut leaves = door.connect(1).remove(0);
        assert_eq!(door.log.next(), Event::Accepted);

        door.shut(0);
        let mut waiting = door.connect(20);
        waiting.iter_mut().for_each(|client| client.send(b"waits"));
        door.tick();
        // There is room for another now, which would have a listener begin again that was full.
        leaves.end();
        assert_eq!(door.log.next(), end_of_stream());
        assert_eq!(door.log.next(), Event::Closed(Ended::Closed));
        door.tick();
        door.shut(0);

        door.admit(1);
        waiting.iter_mut().for_each(|client| client.expect(b"waits"));
        let mut accepted = 0;
        for _ in 0..2 * waiting.len() {
            match door.log.next() {
                Event::Accepted => accepted += 1,
                event => assert_eq!(event, received(b"waits")),
            }
        }
        assert_eq!(accepted, waiting.len());
        door.tick();
        assert_eq!(door.server.stop().accepted, 22);
    });
}

#[test]
fn whoever_waits_at_the_stop_is_turned_away() {
    on_each(|backend| {
        let mut door = Door::start(backend, vec![AcceptPolicy::Off]);
        door.shut(0);
        let waiting = door.connect(5);
        door.tick();
        let stats = door.server.stop();
        assert_eq!((stats.accepted, stats.closed), (1, 1));
        assert_eq!(door.log.rest(), [Event::Stopping, Event::Closed(Ended::Closed)]);
        assert_eq!(door.inside.rest(), (Vec::new(), End::Eof));
        for mut client in waiting {
            assert_eq!(client.rest().0, b"");
        }
    });
}

#[test]
fn no_more_than_was_said_are_accepted_in_one_turn() {
    const WAITING: usize = 50;
    on_each(|backend| {
        for most in [1, 2, 7] {
            let (tell, turns_of_accepts) = mpsc::channel();
            let (make, log) = script(move |turn| {
                match turn.event {
                    // The time stands still during a turn.
                    Event::Accepted => tell.send(turn.io.now()).unwrap(),
                    Event::Woken(0) => turn.io.set_accept_policy(Listener(0), AcceptPolicy::Off),
                    Event::Woken(_) => {
                        turn.io.set_accept_policy(Listener(0), AcceptPolicy::PerTurn(most))
                    }
                    _ => {}
                }
                echo(turn);
            });
            let server = Server::start(backend, config(), make);
            let inside = Client::connect(server.address);
            assert_eq!(log.next(), Event::Accepted);
            turns_of_accepts.recv().unwrap();
            let mut door = Door { server, log, inside };
            door.shut(0);
            let mut waiting = door.connect(WAITING);
            waiting.iter_mut().for_each(|client| client.send(TICK));
            door.tick();

            door.admit(1);
            waiting.iter_mut().for_each(|client| client.expect(TICK));
            let stats = door.server.stop();
            assert_eq!((stats.accepted, stats.closed), (51, 51));
            let times: Vec<Instant> = turns_of_accepts.try_iter().collect();
            assert_eq!(times.len(), WAITING);
            let together = times.chunk_by(PartialEq::eq).map(<[_]>::len).max().unwrap();
            if backend == Tokio::NAME {
                println!("{backend} has no turns; {together} accepted at the same time");
                continue;
            }
            assert!(together <= most.into(), "{together} instead of {most} in one turn");
            let turns = stats.kernel.turns;
            let least = WAITING.div_ceil(most.into());
            assert!(turns >= least as u64, "{turns} turns for {WAITING} at {most} a turn");
            println!("{backend}: {turns} turns for {WAITING} connections at {most} a turn");
        }
    });
}

#[test]
fn the_length_of_the_queue_can_be_changed() {
    on_each(|backend| {
        let ways = [0, u32::MAX, 1, 100].map(AcceptPolicy::Backlog);
        let mut door =
            Door::start(backend, [&ways[..], &[AcceptPolicy::Off, AcceptPolicy::All]].concat());
        // As long as the server accepts, any length will do.
        for way in 0..4 {
            door.admit(way);
            let mut client = door.connect(1).remove(0);
            assert_eq!(door.log.next(), Event::Accepted);
            client.ask(TICK, TICK);
            assert_eq!(door.log.next(), received(TICK));
            client.end();
            assert_eq!(door.log.next(), end_of_stream());
            assert_eq!(door.log.next(), Event::Closed(Ended::Closed));
        }
        door.shut(4);
        // Room for one more than the length: the kernel has always counted so.
        door.shut(2);
        let mut waiting = door.connect(2);
        // Nobody answers, so this can't come too early.
        let patience = Duration::from_millis(30);
        assert!(TcpStream::connect_timeout(&door.server.address, patience).is_err());
        door.shut(3);
        waiting.extend(door.connect(10));
        door.tick();
        door.admit(5);
        (0..12).for_each(|_| assert_eq!(door.log.next(), Event::Accepted));
        door.server.stop();
    });
}

/// Tells where each connection came in; a tag is a listener, and whether it is to be open.
struct Doors(Sender<Listener>);

impl Doors {
    fn tag(listener: u16, open: bool) -> u64 {
        u64::from(listener) << 1 | u64::from(open)
    }
}

impl Application for Doors {
    type State = ();
    const MAX_UNCONSUMED: usize = Echo::MAX_UNCONSUMED;

    fn accepted(&mut self, _: Cx<'_, impl Commands, ()>, at: Listener) {
        let _ = self.0.send(at);
    }

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        Echo.received(x, rx);
    }

    fn woken(&mut self, io: &mut impl Commands, tag: u64) {
        let how = if tag & 1 == 1 { AcceptPolicy::All } else { AcceptPolicy::Off };
        io.set_accept_policy(Listener((tag >> 1) as u16), how);
    }
}

/// Stops a server when a test has failed.
struct StopOnDrop(RemoteHandle);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

#[test]
fn every_listener_has_its_number_and_its_own_way_of_admission() {
    on_each(|backend| {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let config = Config { listen: vec![any, any], ..config() };
        let (tell, ready) = mpsc::channel();
        let (log, accepted) = mpsc::channel();
        let server = thread::spawn(move || {
            let mechanism = AnyMechanism::new(backend, &config).unwrap();
            tell.send((mechanism.addresses().to_vec(), mechanism.remote())).unwrap();
            mechanism.run(Doors(log)).unwrap()
        });
        let (addresses, remote) = ready.recv_timeout(PATIENCE).unwrap();
        let remote = StopOnDrop(remote);
        assert_eq!(addresses.len(), 2);
        assert_ne!(addresses[0], addresses[1]);
        let next = || accepted.recv_timeout(PATIENCE).expect("it is accepted");

        let mut inside = Vec::new();
        for at in [0, 1, 1, 0, 1] {
            inside.push(Client::connect(addresses[at]));
            assert_eq!(next(), Listener(at as u16));
        }
        for shut in [0u16, 1] {
            let open = 1 - shut;
            // The last is nobody's number.
            for listener in [shut, 2, u16::MAX] {
                assert!(remote.0.wake(Doors::tag(listener, false)));
            }
            (0..3).for_each(|_| inside[0].ask(TICK, TICK));
            let mut waits = Client::connect(addresses[usize::from(shut)]);
            waits.send(TICK);
            let mut enters = Client::connect(addresses[usize::from(open)]);
            enters.ask(TICK, TICK);
            assert_eq!(next(), Listener(open));
            inside[0].ask(TICK, TICK);
            assert!(accepted.try_recv().is_err(), "it was shut");

            assert!(remote.0.wake(Doors::tag(shut, true)));
            waits.expect(TICK);
            assert_eq!(next(), Listener(shut));
        }
        drop(inside);
        remote.0.stop();
        let stats = server.join().unwrap();
        assert_eq!((stats.accepted, stats.closed), (9, 9));
    });
}

#[test]
fn random_numbers_differ() {
    const NUMBERS: usize = 100;
    on_each(|backend| {
        let (tell, numbers) = mpsc::channel();
        let (make, log) = script(move |turn| {
            if matches!(turn.event, Event::Woken(_)) {
                (0..NUMBERS).for_each(|_| tell.send(turn.io.random()).unwrap());
            }
        });
        let server = Server::start(backend, config(), make);
        for tag in 0..2 {
            assert!(server.remote.wake(tag));
            assert_eq!(log.next(), Event::Woken(tag));
        }
        server.stop();
        let all: Vec<u64> = numbers.try_iter().collect();
        assert_eq!(all.len(), 2 * NUMBERS);
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len(), "one came twice: {all:?}");
        let ever_set = all.iter().fold(0, |bits, n| bits | n);
        let ever_clear = all.iter().fold(0, |bits, n| bits | !n);
        assert_eq!((ever_set, ever_clear), (u64::MAX, u64::MAX), "a bit never changes");
    });
}

/// A server that echoes, but blocks in a callback when an event asks for it, until `release`.
struct Blocking {
    server: Server,
    log: Log,
    release: Sender<()>,
}

fn blocking(backend: &'static str, at: impl Fn(&Event) -> bool + Send + 'static) -> Blocking {
    let (release, released): (_, Receiver<()>) = mpsc::channel();
    let (make, log) = script(move |turn| {
        if at(&turn.event) {
            // An error is a test that failed.
            let _ = released.recv_timeout(PATIENCE);
        }
        echo(turn);
    });
    let server = Server::start(backend, config(), make);
    Blocking { server, log, release }
}

#[test]
fn tags_beyond_the_bound_are_refused_and_the_others_told() {
    const LAST: u64 = RemoteHandle::MAX_TAGS as u64;
    on_each(|backend| {
        let Blocking { server, log, release } =
            blocking(backend, |event| matches!(event, Event::Woken(0 | LAST)));
        let remote = &server.remote;
        assert!(remote.wake(0));
        for first in [1, LAST + 1] {
            // The callback runs now, and its own tag does not wait any more.
            assert_eq!(log.next(), Event::Woken(first - 1));
            let last = first + LAST - 1;
            (first..=last).for_each(|tag| assert!(remote.wake(tag), "tag {tag}"));
            (0..3).for_each(|_| assert!(!remote.wake(u64::MAX), "one more than the bound"));
            release.send(()).unwrap();
            (first..last).for_each(|tag| assert_eq!(log.next(), Event::Woken(tag)));
        }
        assert_eq!(log.next(), Event::Woken(2 * LAST));
        // There is room again, and none is told that was refused.
        assert!(remote.wake(7));
        assert_eq!(log.next(), Event::Woken(7));
        server.stop();
        assert_eq!(log.rest(), []);
    });
}

#[test]
fn a_stop_during_a_callback_comes_after_it() {
    on_each(|backend| {
        let Blocking { server, log, release } =
            blocking(backend, |event| *event == received(b"block"));
        let mut client = Client::connect(server.address);
        let mut idle = Client::connect(server.address);
        idle.ask(TICK, TICK);
        client.send(b"block");
        let mut before: Vec<_> = (0..4).map(|_| log.next()).collect();
        before.sort_by_key(|event| *event == received(b"block"));
        assert_eq!(before.pop(), Some(received(b"block")));

        assert!(server.remote.wake(7));
        thread::scope(|scope| {
            (0..4).for_each(|_| drop(scope.spawn(|| server.remote.stop())));
        });
        server.remote.stop();
        release.send(()).unwrap();
        // What the callback sent goes out before the end.
        client.expect_last(b"block", End::Eof);
        idle.expect_last(b"", End::Eof);
        let stats = server.stop();
        assert_eq!((stats.accepted, stats.closed), (2, 2));
        let rest = log.rest();
        let count = |event| rest.iter().filter(|e| **e == event).count();
        assert_eq!(count(Event::Woken(7)), 1, "the tag was taken: {rest:?}");
        assert_eq!(count(Event::Stopping), 2, "{rest:?}");
        assert_eq!(count(Event::Closed(Ended::Closed)), 2, "{rest:?}");
        assert_eq!(rest.len(), 5, "{rest:?}");
    });
}

#[test]
fn a_stop_while_woken_is_running_comes_after_it() {
    on_each(|backend| {
        let Blocking { server, log, release } =
            blocking(backend, |event| *event == Event::Woken(0));
        assert!(server.remote.wake(0));
        assert_eq!(log.next(), Event::Woken(0));
        // It waits in the listener's queue, for the loop is busy.
        let client = Client::connect(server.address);
        server.remote.stop();
        release.send(()).unwrap();
        let stats = server.stop();
        assert!(stats.accepted <= 1, "{stats:?}");
        assert!(Client(client.0).rest().0.is_empty());
    });
}
