//! The proxy on every mechanism, in front of an echo server or a plain socket, and on a simulated machine.

use crate::simulated;
use crate::support;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use evring::Config;
use evring_sim::{Net, Next, Peer, PeerConn, ReceiveResult};
use examples::{Echo, Proxy, Timeouts};
use support::client::{Client, End};
use support::{Server, TIMEOUT, config, on_each, on_each_at_once, pattern, refuse, tiny};

fn proxy(backend: &'static str, config: Config, upstream: SocketAddr) -> Server {
    Server::start(backend, config, move || Proxy::new(upstream, Timeouts::default()))
}

/// A listener whose connections the test accepts.
fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn take(listener: &TcpListener) -> TcpStream {
    let (stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

#[test]
fn timeouts_beyond_the_end_of_the_clock_ended_the_proxy() {
    on_each(|backend| {
        let upstream_server = Server::start(backend, config(), || Echo);
        let upstream = upstream_server.address;
        for connects_late in [false, true] {
            let server = Server::start(backend, config(), move || {
                let timeouts = Timeouts { connect: Duration::MAX, idle: Duration::MAX };
                let proxy = Proxy::new(upstream, timeouts);
                if connects_late { proxy.connecting_late() } else { proxy }
            });
            Client::connect(server.address).ask(b"hello", b"hello");
            server.stop();
        }
        upstream_server.stop();
    });
}

#[test]
fn message_split_at_any_byte_is_echoed() {
    on_each(|backend| {
        let upstream_server = Server::start(backend, config(), || Echo);
        let server = proxy(backend, config(), upstream_server.address);
        let message = pattern(30);
        for at in 0..message.len() {
            let mut client = Client::connect(server.address);
            let (head, tail) = message.split_at(at);
            client.ask(head, head);
            client.ask(tail, tail);
            client.end();
            client.expect_last(b"", End::Eof);
        }
        let stats = server.stop();
        assert_eq!((stats.accepted, stats.connected), (30, 30));
        upstream_server.stop();
    });
}

#[test]
fn client_beyond_the_maximum_of_pairs_is_reset() {
    assert_eq!(Proxy::MAX_PAIRED, 32_768);
    on_each(|backend| {
        let upstream_server = Server::start(backend, config(), || Echo);
        let upstream = upstream_server.address;
        let server = Server::start(backend, config(), move || {
            Proxy::new(upstream, Timeouts::default()).with_max_paired(4)
        });
        let mut clients = [Client::connect(server.address), Client::connect(server.address)];
        clients.iter_mut().for_each(|client| client.ask(b"hello", b"hello"));
        match TcpStream::connect(server.address) {
            Ok(third) => Client(third).expect_last(b"", End::Reset),
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        }
        clients.iter_mut().for_each(|client| client.ask(b"again", b"again"));
        server.stop();
        upstream_server.stop();
    });
}

#[test]
fn late_connect_waits_for_the_first_bytes() {
    on_each(|backend| {
        let (listener, upstream) = listen();
        let server = Server::start(backend, config(), move || {
            Proxy::new(upstream, Timeouts::default()).connecting_late()
        });
        let mut silent = Client::connect(server.address);
        let mut client = Client::connect(server.address);
        client.send(b"hello");
        let mut upstream_server = Client(take(&listener));
        upstream_server.expect(b"hello");
        upstream_server.send(b"world");
        upstream_server.end();
        client.expect(b"world");
        silent.end();
        silent.expect_last(b"", End::Eof);
        client.end();
        client.expect_last(b"", End::Eof);
        let stats = server.stop();
        assert_eq!((stats.accepted, stats.connected), (2, 1));
    });
}

#[test]
fn silent_client_kept_the_place_of_others_and_delayed_a_stop() {
    on_each(|backend| {
        let (_listener, upstream) = listen();
        let config = config().with(|c| {
            c.max_connections = 1;
            c.drain_timeout = Duration::from_secs(3600);
        });
        let server = Server::start(backend, config, move || {
            Proxy::new(upstream, Timeouts::default()).connecting_late()
        });
        let mut silent = Client::connect(server.address);
        let _next = Client::connect(server.address);
        silent.expect_last(b"", End::Eof);
        server.stop();
    });
}

#[test]
fn megabytes_pass_through_tiny_socket_buffers() {
    on_each(|backend| {
        let upstream_server = Server::start(backend, config(), || Echo);
        let server = proxy(backend, tiny(), upstream_server.address);
        let mut client = Client::narrow(server.address);
        let message = pattern(1 << 19);
        client.sending(&message, |client| client.expect(&message));
        client.end();
        client.expect_last(b"", End::Eof);
        server.stop();
        upstream_server.stop();
    });
}

#[test]
fn half_closes_are_independent() {
    on_each(|backend| {
        let (listener, upstream) = listen();
        let server = proxy(backend, config(), upstream);
        let mut client = Client::connect(server.address);
        client.send(b"question");
        client.end();

        let mut upstream_server = take(&listener);
        let mut question = Vec::new();
        upstream_server.read_to_end(&mut question).unwrap();
        assert_eq!(question, b"question", "the half-close is passed on");
        upstream_server.write_all(b"long ").unwrap();
        client.expect(b"long ");
        upstream_server.write_all(b"after").unwrap();
        upstream_server.shutdown(Shutdown::Write).unwrap();
        client.expect_last(b"after", End::Eof);

        // In the other direction: the server closes first.
        let mut client = Client::connect(server.address);
        let mut upstream_server = take(&listener);
        upstream_server.write_all(b"banner").unwrap();
        upstream_server.shutdown(Shutdown::Write).unwrap();
        client.expect_last(b"banner", End::Eof);
        client.send(b"still here");
        client.end();
        let mut received = Vec::new();
        upstream_server.read_to_end(&mut received).unwrap();
        assert_eq!(received, b"still here");
        server.stop();
    });
}

#[test]
fn stopped_reader_blocks_the_writer() {
    on_each(|backend| {
        let (listener, upstream) = listen();
        let server = proxy(backend, tiny(), upstream);
        let mut client = Client::narrow(server.address);
        client.send(b"go");
        let mut upstream_server = Client(take(&listener));
        upstream_server.expect(b"go");
        let message = pattern(16 << 20);
        let taken = upstream_server.send_until_full(&message, 8 << 20);
        assert!(taken < message.len());
        client.expect(&message[..taken]);
        upstream_server.send(b"and on");
        client.expect(b"and on");
        // The other direction stays open all the time.
        client.send(b"back");
        upstream_server.expect(b"back");
        drop((client, upstream_server));
        server.stop();
    });
}

#[test]
fn refused_upstream_resets_the_client() {
    on_each(|backend| {
        let (_socket, address) = refuse();
        let server = proxy(backend, config(), address);
        for _ in 0..3 {
            match Client::try_connect(server.address) {
                Ok(mut client) => assert_eq!(client.read_to_end(), (Vec::new(), End::Reset)),
                Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
            }
        }
        let stats = server.stop();
        assert_eq!((stats.accepted, stats.connected), (3, 3));
    });
}

#[test]
fn reset_on_one_side_resets_the_other() {
    on_each(|backend| {
        let (listener, upstream) = listen();
        let server = proxy(backend, config(), upstream);
        let mut client = Client::connect(server.address);
        client.send(b"x");
        let mut upstream_server = Client(take(&listener));
        upstream_server.expect(b"x");
        client.reset();
        assert_eq!(upstream_server.read_to_end(), (Vec::new(), End::Reset));

        let mut client = Client::connect(server.address);
        client.send(b"x");
        let mut upstream_server = Client(take(&listener));
        upstream_server.expect(b"x");
        upstream_server.reset();
        assert_eq!(client.read_to_end(), (Vec::new(), End::Reset));
        server.stop();
    });
}

#[test]
fn pair_without_bytes_times_out() {
    on_each_at_once(|backend| {
        let (listener, upstream) = listen();
        let idle = Duration::from_secs(2);
        let timeouts = Timeouts { idle, ..Timeouts::default() };
        let server = Server::start(backend, config(), move || Proxy::new(upstream, timeouts));
        let begin = Instant::now();
        let mut client = Client::connect(server.address);
        client.send(b"x");
        let mut upstream_server = Client(take(&listener));
        upstream_server.expect(b"x");
        assert_eq!(client.read_to_end(), (Vec::new(), End::Reset));
        assert_eq!(upstream_server.read_to_end(), (Vec::new(), End::Reset));
        assert!(begin.elapsed() >= idle, "the connection timed out too early");
        server.stop();
    });
}

#[test]
fn unresponsive_upstream_times_out() {
    on_each_at_once(|backend| {
        // A full backlog of one: further connections are neither accepted nor refused.
        let fd = rustix::net::socket(
            rustix::net::AddressFamily::INET,
            rustix::net::SocketType::STREAM,
            None,
        )
        .unwrap();
        let any = std::net::SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 0);
        rustix::net::bind(&fd, &any).unwrap();
        rustix::net::listen(&fd, 0).unwrap();
        let listener = TcpListener::from(fd);
        let upstream = listener.local_addr().unwrap();
        let _waits = TcpStream::connect(upstream).unwrap();

        let timeouts = Timeouts { connect: Duration::from_millis(150), ..Timeouts::default() };
        let server = Server::start(backend, config(), move || Proxy::new(upstream, timeouts));
        let mut client = Client::connect(server.address);
        assert_eq!(client.read_to_end(), (Vec::new(), End::Reset));
        server.stop();
    });
}

/// A server that sends a message to each client, and ends.
struct Sender {
    line: Option<PeerConn>,
    message: Vec<u8>,
}

impl Peer for Sender {
    fn step(&mut self, net: &mut Net<'_>) -> Next {
        if self.line.is_none() {
            self.line = net.accept();
        }
        let Some(line) = &self.line else { return Next::Wait };
        let sent = net.send(line, &self.message);
        self.message.drain(..sent);
        if self.message.is_empty() {
            net.finish(line);
        }
        Next::Wait
    }

    fn waits_for(&self) -> String {
        "a client".to_owned()
    }
}

/// Nothing is received and no queue drains, as the socket's buffer has all bytes that the client has no room for.
#[test]
fn pair_was_reset_while_the_client_read() {
    const ROOM: usize = 1_000_000;
    let (upstream, message) = ("10.0.0.2:7".parse().unwrap(), pattern(ROOM * 3 / 2));
    let machine = simulated::machine(ROOM);
    machine.add_server(upstream, Sender { line: None, message: message.clone() });
    let (client, received) = simulated::Client::new(b"", 50_000, Duration::from_millis(500));
    machine.add_peer(client);
    let config = Config::default().with(|c| c.listen = vec![simulated::at()]);
    let timeouts = Timeouts { idle: Duration::from_secs(2), ..Timeouts::default() };
    simulated::serve(&machine, &config, Proxy::new(upstream, timeouts), |_| {});
    let received = received.take();
    assert!(received.bytes == message, "{:?}, {} bytes", received.end, received.bytes.len());
    assert_eq!(received.end, Some(ReceiveResult::End));
}

#[test]
fn pair_times_out_once_the_client_takes_nothing_more() {
    const ROOM: usize = 1_000_000;
    let (upstream, message) = ("10.0.0.2:7".parse().unwrap(), pattern(ROOM * 3 / 2));
    let machine = simulated::machine(ROOM);
    machine.add_server(upstream, Sender { line: None, message });
    let (mut client, received) = simulated::Client::new(b"", ROOM, Duration::ZERO);
    client.reads_at = Duration::from_secs(60);
    machine.add_peer(client);
    let config = Config::default().with(|c| c.listen = vec![simulated::at()]);
    let timeouts = Timeouts { idle: Duration::from_secs(2), ..Timeouts::default() };
    simulated::serve(&machine, &config, Proxy::new(upstream, timeouts), |_| {});
    let received = received.take();
    assert_eq!((received.end, received.bytes.len()), (Some(ReceiveResult::Reset), ROOM));
}
