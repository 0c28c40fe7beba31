//! Accept policies, and wake-ups and stops while the loop is busy.

use crate::support;

use std::collections::HashSet;
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use evring::mechanisms::{Multiplexer as _, Tokio};
use evring::{
    AcceptPolicy, AnyMechanism, Application, Chunk, Close, Commands, Config, Cx, Listener, Others,
    RemoteHandle, Rx,
};
use examples::Echo;
use support::client::{Client, End};
use support::script::{Ended, Event, Log, Turn, script};
use support::{Server, TIMEOUT, config, on_each};

/// Echoed to complete a turn.
const TICK: &[u8] = b"tick";

fn received(bytes: &[u8]) -> Event {
    Event::Received { bytes: bytes.to_vec(), eof: false }
}

fn end_of_stream() -> Event {
    Event::Received { bytes: Vec::new(), eof: true }
}

/// Echoes, and closes at the end of the stream or when the server stops.
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

/// Settings of a server that stops when its connections have ended, however long that takes.
fn patient() -> Config {
    config().with(|c| c.drain_timeout = 3 * TIMEOUT)
}

/// An echo server that applies the accept policy whose index it is woken with, and one of its clients.
struct PolicyServer {
    server: Server,
    log: Log,
    client: Client,
}

impl PolicyServer {
    fn start(backend: &'static str, policies: Vec<AcceptPolicy>) -> PolicyServer {
        let (make, log) = script(move |turn| {
            if let Event::Woken(tag) = turn.event {
                turn.io.set_accept_policy(Listener(0), policies[tag as usize]);
            }
            echo(turn);
        });
        let server = Server::start(backend, patient(), make);
        let client = Client::connect(server.address);
        assert_eq!(log.next(), Event::Accepted);
        PolicyServer { server, log, client }
    }

    /// Makes the loop complete a turn.
    #[track_caller]
    fn tick(&mut self) {
        self.client.ask(TICK, TICK);
        assert_eq!(self.log.next(), received(TICK));
    }

    /// Applies a policy. No other event happens until the next turn.
    #[track_caller]
    fn apply(&mut self, policy: u64) {
        assert!(self.server.remote.wake(policy));
        assert_eq!(self.log.next(), Event::Woken(policy));
    }

    /// Applies a policy that accepts no connection, and waits until it takes effect.
    #[track_caller]
    fn apply_and_wait(&mut self, policy: u64) {
        self.apply(policy);
        self.tick();
        self.tick();
    }

    /// Connects clients; the server may not have accepted them.
    fn connect(&self, n: usize) -> Vec<Client> {
        (0..n).map(|_| Client::connect(self.server.address)).collect()
    }
}

#[test]
fn connections_wait_while_accepting_is_off() {
    on_each(|backend| {
        let mut server = PolicyServer::start(backend, vec![AcceptPolicy::Off, AcceptPolicy::All]);
        let mut closing = server.connect(1).remove(0);
        assert_eq!(server.log.next(), Event::Accepted);

        server.apply_and_wait(0);
        let mut waiting = server.connect(20);
        waiting.iter_mut().for_each(|client| client.send(b"waits"));
        server.tick();
        // Now there is room, which would resume a listener that was full.
        closing.end();
        assert_eq!(server.log.next(), end_of_stream());
        assert_eq!(server.log.next(), Event::Closed(Ended::Closed));
        server.tick();
        server.apply_and_wait(0);

        server.apply(1);
        waiting.iter_mut().for_each(|client| client.expect(b"waits"));
        let mut accepted = 0;
        for _ in 0..2 * waiting.len() {
            match server.log.next() {
                Event::Accepted => accepted += 1,
                event => assert_eq!(event, received(b"waits")),
            }
        }
        assert_eq!(accepted, waiting.len());
        server.tick();
        assert_eq!(server.server.stop().accepted, 22);
    });
}

#[test]
fn connections_waiting_at_the_stop_are_rejected() {
    on_each(|backend| {
        let mut server = PolicyServer::start(backend, vec![AcceptPolicy::Off]);
        server.apply_and_wait(0);
        let waiting = server.connect(5);
        server.tick();
        let stats = server.server.stop();
        assert_eq!((stats.accepted, stats.closed), (1, 1));
        assert_eq!(server.log.remaining(), [Event::Stopping, Event::Closed(Ended::Closed)]);
        assert_eq!(server.client.read_to_end(), (Vec::new(), End::Eof));
        for mut client in waiting {
            assert_eq!(client.read_to_end().0, b"");
        }
    });
}

#[test]
fn accepts_per_turn_are_limited() {
    const WAITING: usize = 50;
    on_each(|backend| {
        for max in [1, 2, 7] {
            let (sender, turns_of_accepts) = mpsc::channel();
            let (make, log) = script(move |turn| {
                match turn.event {
                    // The time does not change within a turn.
                    Event::Accepted => sender.send(turn.io.now()).unwrap(),
                    Event::Woken(0) => turn.io.set_accept_policy(Listener(0), AcceptPolicy::Off),
                    Event::Woken(_) => {
                        turn.io.set_accept_policy(Listener(0), AcceptPolicy::PerTurn(max))
                    }
                    _ => {}
                }
                echo(turn);
            });
            let server = Server::start(backend, config(), make);
            let client = Client::connect(server.address);
            assert_eq!(log.next(), Event::Accepted);
            turns_of_accepts.recv().unwrap();
            let mut server = PolicyServer { server, log, client };
            server.apply_and_wait(0);
            let mut waiting = server.connect(WAITING);
            waiting.iter_mut().for_each(|client| client.send(TICK));
            server.tick();

            server.apply(1);
            waiting.iter_mut().for_each(|client| client.expect(TICK));
            let stats = server.server.stop();
            assert_eq!((stats.accepted, stats.closed), (51, 51));
            let times: Vec<Instant> = turns_of_accepts.try_iter().collect();
            assert_eq!(times.len(), WAITING);
            let together = times.chunk_by(PartialEq::eq).map(<[_]>::len).max().unwrap();
            if backend == Tokio::NAME {
                println!("{backend} has no turns; {together} accepted at the same time");
                continue;
            }
            assert!(together <= max.into(), "{together} instead of {max} in one turn");
            let turns = stats.kernel.turns;
            let min_turns = WAITING.div_ceil(max.into());
            assert!(turns >= min_turns as u64, "{turns} turns for {WAITING} at {max} a turn");
            println!("{backend}: {turns} turns for {WAITING} connections at {max} a turn");
        }
    });
}

#[test]
fn backlog_can_be_changed() {
    on_each(|backend| {
        let policies = [0, u32::MAX, 1, 100].map(AcceptPolicy::Backlog);
        let mut server = PolicyServer::start(
            backend,
            [&policies[..], &[AcceptPolicy::Off, AcceptPolicy::All]].concat(),
        );
        // While the server accepts, any length works.
        for policy in 0..4 {
            server.apply(policy);
            let mut client = server.connect(1).remove(0);
            assert_eq!(server.log.next(), Event::Accepted);
            client.ask(TICK, TICK);
            assert_eq!(server.log.next(), received(TICK));
            client.end();
            assert_eq!(server.log.next(), end_of_stream());
            assert_eq!(server.log.next(), Event::Closed(Ended::Closed));
        }
        server.apply_and_wait(4);
        // The kernel queues one more connection than the backlog.
        server.apply_and_wait(2);
        let mut waiting = server.connect(2);
        // No reply can come, so a short timeout suffices.
        let timeout = Duration::from_millis(30);
        assert!(TcpStream::connect_timeout(&server.server.address, timeout).is_err());
        server.apply_and_wait(3);
        waiting.extend(server.connect(10));
        server.tick();
        server.apply(5);
        (0..12).for_each(|_| assert_eq!(server.log.next(), Event::Accepted));
        server.server.stop();
    });
}

/// Reports the listener of each connection. A tag is a listener, and whether it should accept.
struct ReportsListeners(Sender<Listener>);

impl ReportsListeners {
    fn tag(listener: u16, open: bool) -> u64 {
        u64::from(listener) << 1 | u64::from(open)
    }
}

impl Application for ReportsListeners {
    type State = ();
    const MAX_UNCONSUMED: usize = Echo::MAX_UNCONSUMED;

    fn accepted(&mut self, _: Cx<'_, impl Commands, ()>, at: Listener) {
        let _ = self.0.send(at);
    }

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        Echo.received(x, rx);
    }

    fn woken(&mut self, io: &mut impl Commands, _: Others<'_, Self::State>, tag: u64) {
        let how = if tag & 1 == 1 { AcceptPolicy::All } else { AcceptPolicy::Off };
        io.set_accept_policy(Listener((tag >> 1) as u16), how);
    }
}

/// Stops a server if a test fails.
struct StopOnDrop(RemoteHandle);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

#[test]
fn each_listener_has_its_own_policy() {
    on_each(|backend| {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let config = config().with(|c| c.listen = vec![any, any]);
        let (sender, ready) = mpsc::channel();
        let (log, accepted) = mpsc::channel();
        let server = thread::spawn(move || {
            let mechanism = AnyMechanism::new(backend, &config).unwrap();
            sender.send((mechanism.addresses().to_vec(), mechanism.remote())).unwrap();
            mechanism.run(ReportsListeners(log)).unwrap()
        });
        let (addresses, remote) = ready.recv_timeout(TIMEOUT).unwrap();
        let remote = StopOnDrop(remote);
        assert_eq!(addresses.len(), 2);
        assert_ne!(addresses[0], addresses[1]);
        let next = || accepted.recv_timeout(TIMEOUT).expect("the connection is accepted");

        let mut client = Vec::new();
        for at in [0, 1, 1, 0, 1] {
            client.push(Client::connect(addresses[at]));
            assert_eq!(next(), Listener(at as u16));
        }
        for closed in [0u16, 1] {
            let open = 1 - closed;
            // The last two are no listeners.
            for listener in [closed, 2, u16::MAX] {
                assert!(remote.0.wake(ReportsListeners::tag(listener, false)));
            }
            (0..3).for_each(|_| client[0].ask(TICK, TICK));
            let mut pending = Client::connect(addresses[usize::from(closed)]);
            pending.send(TICK);
            let mut enters = Client::connect(addresses[usize::from(open)]);
            enters.ask(TICK, TICK);
            assert_eq!(next(), Listener(open));
            client[0].ask(TICK, TICK);
            assert!(accepted.try_recv().is_err(), "accepted on a closed listener");

            assert!(remote.0.wake(ReportsListeners::tag(closed, true)));
            pending.expect(TICK);
            assert_eq!(next(), Listener(closed));
        }
        drop(client);
        remote.0.stop();
        let stats = server.join().unwrap();
        assert_eq!((stats.accepted, stats.closed), (9, 9));
    });
}

#[test]
fn random_numbers_differ() {
    const NUMBERS: usize = 100;
    on_each(|backend| {
        let (sender, numbers) = mpsc::channel();
        let (make, log) = script(move |turn| {
            if matches!(turn.event, Event::Woken(_)) {
                (0..NUMBERS).for_each(|_| sender.send(turn.io.random()).unwrap());
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
        assert_eq!(
            all.iter().collect::<HashSet<_>>().len(),
            all.len(),
            "a number repeats: {all:?}"
        );
        let ever_set = all.iter().fold(0, |bits, n| bits | n);
        let ever_clear = all.iter().fold(0, |bits, n| bits | !n);
        assert_eq!((ever_set, ever_clear), (u64::MAX, u64::MAX), "a bit never changes");
    });
}

/// An echo server that blocks in a callback on a given event, until `release`.
struct Blocking {
    server: Server,
    log: Log,
    release: Sender<()>,
}

fn blocking(backend: &'static str, at: impl Fn(&Event) -> bool + Send + 'static) -> Blocking {
    let (release, released): (_, Receiver<()>) = mpsc::channel();
    let (make, log) = script(move |turn| {
        if at(&turn.event) {
            // An error means that the test failed.
            let _ = released.recv_timeout(TIMEOUT);
        }
        echo(turn);
    });
    let server = Server::start(backend, patient(), make);
    Blocking { server, log, release }
}

#[test]
fn tags_beyond_the_maximum_are_rejected() {
    const LAST: u64 = RemoteHandle::MAX_TAGS as u64;
    on_each(|backend| {
        let Blocking { server, log, release } =
            blocking(backend, |event| matches!(event, Event::Woken(0 | LAST)));
        let remote = &server.remote;
        assert!(remote.wake(0));
        for first in [1, LAST + 1] {
            // The callback is running, and its own tag is no longer pending.
            assert_eq!(log.next(), Event::Woken(first - 1));
            let last = first + LAST - 1;
            (first..=last).for_each(|tag| assert!(remote.wake(tag), "tag {tag}"));
            (0..3).for_each(|_| assert!(!remote.wake(u64::MAX), "beyond the maximum"));
            release.send(()).unwrap();
            (first..last).for_each(|tag| assert_eq!(log.next(), Event::Woken(tag)));
        }
        assert_eq!(log.next(), Event::Woken(2 * LAST));
        // There is room again, and rejected tags are not delivered.
        assert!(remote.wake(7));
        assert_eq!(log.next(), Event::Woken(7));
        server.stop();
        assert_eq!(log.remaining(), []);
    });
}

#[test]
fn stop_during_a_callback_follows_it() {
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
        // Bytes sent by the callback arrive before the end.
        client.expect_last(b"block", End::Eof);
        idle.expect_last(b"", End::Eof);
        let stats = server.stop();
        assert_eq!((stats.accepted, stats.closed), (2, 2));
        let remaining = log.remaining();
        let count = |event| remaining.iter().filter(|e| **e == event).count();
        assert_eq!(count(Event::Woken(7)), 1, "the tag was taken: {remaining:?}");
        assert_eq!(count(Event::Stopping), 2, "{remaining:?}");
        assert_eq!(count(Event::Closed(Ended::Closed)), 2, "{remaining:?}");
        assert_eq!(remaining.len(), 5, "{remaining:?}");
    });
}

#[test]
fn stop_during_woken_follows_it() {
    on_each(|backend| {
        let Blocking { server, log, release } =
            blocking(backend, |event| *event == Event::Woken(0));
        assert!(server.remote.wake(0));
        assert_eq!(log.next(), Event::Woken(0));
        // The connection waits in the backlog while the loop is blocked.
        let client = Client::connect(server.address);
        server.remote.stop();
        release.send(()).unwrap();
        let stats = server.stop();
        assert!(stats.accepted <= 1, "{stats:?}");
        assert!(Client(client.0).read_to_end().0.is_empty());
    });
}
