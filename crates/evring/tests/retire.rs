//! Servers that retire: they close their listeners, and their connections go on.

use crate::server;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use evring::files::{FileOp, FilePath};
use evring::mechanisms::EventLoop;
use evring::sockets::{ListenOptions, ListeningSocket};
use evring::{Application, Chunk, Close, Commands, Config, Cx, Listener, Root, Rx};
use evring_sim::{Faults, Machine, Net, Next, Peer, PeerConn, Plan, ReceiveResult, SimEngine};

use server::{Server, listening, side_by_side};

struct Echo;

impl Application for Echo {
    type State = ();
    const MAX_UNCONSUMED: usize = 1;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        x.io.send(x.id, Chunk::Received(rx.take()));
        if rx.eof() {
            x.io.close(x.id, Close::Flush);
        }
    }
}

fn config() -> Config {
    // A retiring server has no such limit.
    listening(1).with(|c| c.drain_timeout = Duration::ZERO)
}

fn expect_echo(client: &mut TcpStream) {
    let mut byte = [0];
    client.write_all(b"x").unwrap();
    client.read_exact(&mut byte).unwrap();
    assert_eq!(byte, *b"x");
}

/// Connects until connections are refused, as the listener is closed.
fn wait_until_closed(at: SocketAddr) {
    loop {
        match TcpStream::connect(at) {
            Ok(client) => drop(client),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => return,
            // It was in the backlog when the listener closed.
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        }
    }
}

/// Closes each connection while a file operation runs.
struct Lists;

impl Application for Lists {
    type State = ();
    const MAX_UNCONSUMED: usize = 1;

    fn accepted(&mut self, x: Cx<'_, impl Commands, ()>, _: Listener) {
        x.io.file_op(x.id, 1, FileOp::List((Root(0), FilePath::new("."))));
        x.io.close(x.id, Close::Flush);
    }

    fn received(&mut self, _: Cx<'_, impl Commands, ()>, _: &mut Rx<'_>) {}
}

/// A client that waits for the end of its connection.
struct Waits(Option<PeerConn>);

impl Peer for Waits {
    fn step(&mut self, net: &mut Net<'_>) -> Next {
        let Some(conn) = self.0.take() else {
            self.0 = net.connect("10.0.0.1:7".parse().unwrap());
            return Next::Ready;
        };
        match net.receive(&conn, 1, &mut Vec::new()) {
            ReceiveResult::Nothing => {
                self.0 = Some(conn);
                Next::Wait
            }
            _ => {
                net.close(conn);
                Next::Done
            }
        }
    }

    fn waits_for(&self) -> String {
        "the end of the connection".to_owned()
    }
}

#[test]
fn server_without_connections_waited_for_a_disk_that_hangs() {
    let machine = Machine::new(&Plan::default().with(|p| p.faults = Faults::NONE));
    machine.add_file("site/file", "");
    machine.set_disk_time(Duration::from_secs(3600));
    let mut config = Config::default();
    config.listen = vec!["10.0.0.1:7".parse().unwrap()];
    config.roots = vec!["/site".into()];
    let kernel = SimEngine::<true>::new(&machine, &config.engine_config().unwrap()).unwrap();
    let server = EventLoop::new(kernel, &config).unwrap();
    let remote = server.remote();
    machine.add_peer(Waits(None));
    machine.on_end(move || remote.retire());
    server.run(Lists).unwrap();
    assert!(machine.now() < Duration::from_secs(10), "{:?}", machine.now());
}

#[test]
fn connections_go_on_and_the_last_one_ends_the_server() {
    side_by_side(|name| {
        let server = Server::start(name, config(), || Echo);
        let mut clients: Vec<_> = (0..3).map(|_| server.connect()).collect();
        clients.iter_mut().for_each(expect_echo);
        assert!(!server.remote.are_listeners_closed(), "{name}");
        server.remote.retire();
        wait_until_closed(server.address);
        while !server.remote.are_listeners_closed() {
            thread::yield_now();
        }
        clients.iter_mut().for_each(expect_echo);
        while let Some(mut client) = clients.pop() {
            assert!(!server.thread.is_finished(), "{name}");
            expect_echo(&mut client);
        }
        let stats = server.thread.join().unwrap();
        assert_eq!((stats.accepted, stats.reset_at_stop), (stats.closed, 0), "{name}");
    });
}

#[test]
fn stop_ends_a_retiring_server() {
    side_by_side(|name| {
        let server = Server::start(name, config(), || Echo);
        let mut client = server.connect();
        expect_echo(&mut client);
        server.remote.retire();
        wait_until_closed(server.address);
        let stats = server.stop();
        assert_eq!(stats.accepted, stats.closed, "{name}");
        assert!(!matches!(client.read(&mut [0]), Ok(1)), "{name}");
    });
}

#[test]
fn connections_for_which_there_is_no_room_stay_for_other_owners_of_the_socket() {
    side_by_side(|name| {
        let address = ([127, 0, 0, 1], 0).into();
        let socket = ListeningSocket::bind(address, &ListenOptions::new(16)).unwrap();
        let given = socket.clone();
        let config = config().with(|c| {
            c.listen = vec![given.address()];
            c.inherited = vec![given];
            c.max_connections = 1;
        });
        let server = Server::start(name, config, || Echo);
        let mut first = server.connect();
        expect_echo(&mut first);
        let mut second = server.connect();
        server.remote.retire();
        expect_echo(&mut first);
        drop(first);
        let config = Config::default().with(|c| {
            c.listen = vec![socket.address()];
            c.inherited = vec![socket];
        });
        let successor = Server::start(name, config, || Echo);
        expect_echo(&mut second);
        drop(second);
        assert_eq!(server.thread.join().unwrap().reset_at_stop, 0, "{name}");
        successor.stop();
    });
}
