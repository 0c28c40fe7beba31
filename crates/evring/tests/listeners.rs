//! Listeners of mechanisms that do not start, or are stopped.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use evring::sockets::BufferSizes;
use evring::{
    AcceptPolicy, AnyMechanism, Application, Chunk, Close, Commands, Config, Cx, Listener, Root,
    Rx, StartError,
};
use shared_ring::{Host, Linux};

use crate::listener::into_owned_fd;
use crate::server::{Server, TIMEOUT, listening, one_by_one};

/// Returns a free port on an address that no other test uses.
fn private_address(last: u8) -> SocketAddr {
    let any = SocketAddr::from(([127, 66, 0, last], 0));
    TcpListener::bind(any).unwrap().local_addr().unwrap()
}

/// Checks that `at` can be bound.
fn check_free(at: SocketAddr) -> Result<(), String> {
    TcpListener::bind(at).map(drop).map_err(|error| format!("cannot bind {at}: {error}"))
}

#[test]
fn mechanism_that_never_ran_kept_its_listener_open() {
    one_by_one(|name| {
        let server =
            AnyMechanism::new(name, &listening(1).with(|c| c.listen = vec![private_address(1)]))
                .unwrap();
        let at = server.addresses()[0];
        TcpStream::connect(at).expect("connections wait in the backlog");
        drop(server);
        assert_eq!(check_free(at), Ok(()), "{name}");
    });
}

#[test]
fn failed_listener_left_the_previous_one_open() {
    one_by_one(|name| {
        let held = TcpListener::bind(private_address(2)).unwrap();
        let (first, in_use) = (private_address(2), held.local_addr().unwrap());
        let config = listening(1).with(|c| c.listen = vec![first, in_use]);
        match AnyMechanism::new(name, &config) {
            Err(StartError::Listen(at, _)) => assert_eq!(at, in_use, "{name}"),
            other => panic!("{name}: {:?}", other.map(|server| server.name())),
        }
        assert_eq!(check_free(first), Ok(()), "{name}");
    });
}

#[test]
fn settings_out_of_their_range_were_accepted() {
    type Change = fn(&mut Config);
    let wrong: [(Change, &str); 5] = [
        (|c| c.max_file_ops = 0, "max_file_ops must be between 1 and 256"),
        (|c| c.max_file_ops = 257, "max_file_ops must be between 1 and 256"),
        (|c| c.workers = 0, "workers must be at least 1"),
        (|c| c.progress_interval = Duration::ZERO, "progress_interval must not be 0"),
        (
            |c| c.writable_roots = vec![Root(0)],
            "writable_roots must be indices of directories in roots",
        ),
    ];
    one_by_one(|name| {
        for (change, reason) in wrong {
            let server = AnyMechanism::new(name, &listening(1).with(change));
            let error = server.map(|_| ()).expect_err(reason);
            assert_eq!(error.to_string(), reason, "{name}");
        }
    });
}

#[test]
fn failed_root_left_the_listeners_open() {
    one_by_one(|name| {
        let at = private_address(3);
        let config = listening(1).with(|c| {
            c.listen = vec![at];
            c.roots = vec!["/nowhere".into()];
        });
        match AnyMechanism::new(name, &config) {
            Err(StartError::Root(..)) => {}
            other => panic!("{name}: {:?}", other.map(|server| server.name())),
        }
        assert_eq!(check_free(at), Ok(()), "{name}");
    });
}

/// Keeps connections open after a stop. On each message, changes the backlog, then replies.
struct ChangesBacklog;

impl Application for ChangesBacklog {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        if rx.take().is_empty() {
            x.io.close(x.id, Close::Flush);
        } else {
            x.io.set_accept_policy(Listener(0), AcceptPolicy::Backlog(7));
            x.io.send(x.id, Chunk::Static(b"done"));
        }
    }

    fn stopping(&mut self, _x: Cx<'_, impl Commands, ()>) {}
}

#[test]
fn backlog_change_after_a_stop_made_another_socket_listen() {
    one_by_one(|name| {
        let config = listening(1).with(|c| {
            c.listen = vec![private_address(4)];
            c.drain_timeout = TIMEOUT;
        });
        let server = Server::start(name, config, || ChangesBacklog);
        let mut client = server.connect();
        let mut back = [0; 4];
        client.write_all(b"x").unwrap();
        client.read_exact(&mut back).unwrap();
        server.remote.stop();
        let until = Instant::now() + TIMEOUT;
        while TcpStream::connect(server.address).is_ok() {
            assert!(Instant::now() < until, "{name}: the listener stays open");
            thread::sleep(Duration::from_millis(1));
        }
        // One of these gets the listener's former descriptor number.
        let mut host = Linux::default();
        let sockets: Vec<_> = (0..64)
            .map(|_| host.socket(([127, 0, 0, 1], 0).into(), None, BufferSizes::default()).unwrap())
            .map(|socket| TcpListener::from(into_owned_fd(socket)))
            .collect();
        client.write_all(b"x").unwrap();
        client.read_exact(&mut back).unwrap();
        for socket in sockets {
            // Listening on an unbound socket would have bound it.
            let at = socket.local_addr().unwrap();
            assert_eq!(at.port(), 0, "{name}: a foreign socket listens at {at}");
        }
        drop(client);
        server.stop();
    });
}
