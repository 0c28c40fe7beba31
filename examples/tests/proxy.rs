//! The proxy on every mechanism, in front of echo on the same one or of a bare socket.

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use evring::Config;
use examples::{Echo, Proxy, Timeouts};
use support::client::{Client, End};
use support::{PATIENCE, Server, config, on_each, on_each_at_once, pattern, tiny};

fn proxy(backend: &'static str, config: Config, upstream: SocketAddr) -> Server {
    Server::start(backend, config, move || Proxy::new(upstream, Timeouts::default()))
}

/// A server of which the test holds the other end.
fn bare() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn take(listener: &TcpListener) -> TcpStream {
    let (stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Nobody listens there any more.
fn deserted() -> SocketAddr {
    bare().1
}

#[test]
fn bytes_pass_both_ways_wherever_they_are_split() {
    on_each(|backend| {
        let behind = Server::start(backend, config(), || Echo);
        let server = proxy(backend, config(), behind.address);
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
        behind.stop();
    });
}

#[test]
fn late_the_upstream_is_called_when_there_is_something_to_say() {
    on_each(|backend| {
        let (listener, upstream) = bare();
        let server = Server::start(backend, config(), move || {
            Proxy::new(upstream, Timeouts::default()).connecting_late()
        });
        let mut silent = Client::connect(server.address);
        let mut client = Client::connect(server.address);
        client.send(b"hello");
        let mut behind = Client(take(&listener));
        behind.expect(b"hello");
        behind.send(b"world");
        behind.end();
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
fn megabytes_pass_through_tiny_socket_buffers() {
    on_each(|backend| {
        let behind = Server::start(backend, config(), || Echo);
        let server = proxy(backend, tiny(), behind.address);
        let mut client = Client::narrow(server.address);
        let message = pattern(1 << 19);
        client.sending(&message, |client| client.expect(&message));
        client.end();
        client.expect_last(b"", End::Eof);
        server.stop();
        behind.stop();
    });
}

#[test]
fn each_half_closes_on_its_own() {
    on_each(|backend| {
        let (listener, upstream) = bare();
        let server = proxy(backend, config(), upstream);
        let mut client = Client::connect(server.address);
        client.send(b"question");
        client.end();

        let mut behind = take(&listener);
        let mut question = Vec::new();
        behind.read_to_end(&mut question).unwrap();
        assert_eq!(question, b"question", "the client's end comes through");
        behind.write_all(b"long ").unwrap();
        client.expect(b"long ");
        behind.write_all(b"after").unwrap();
        behind.shutdown(Shutdown::Write).unwrap();
        client.expect_last(b"after", End::Eof);

        // The other way round: the server ends first.
        let mut client = Client::connect(server.address);
        let mut behind = take(&listener);
        behind.write_all(b"banner").unwrap();
        behind.shutdown(Shutdown::Write).unwrap();
        client.expect(b"banner");
        assert_eq!(client.0.read(&mut [0]).unwrap(), 0);
        client.send(b"still here");
        client.end();
        let mut heard = Vec::new();
        behind.read_to_end(&mut heard).unwrap();
        assert_eq!(heard, b"still here");
        server.stop();
    });
}

#[test]
fn a_reader_that_stops_stops_the_writer_behind_the_proxy() {
    on_each(|backend| {
        let (listener, upstream) = bare();
        let server = proxy(backend, tiny(), upstream);
        let mut client = Client::narrow(server.address);
        client.send(b"go");
        let mut behind = Client(take(&listener));
        behind.expect(b"go");
        let message = pattern(16 << 20);
        let taken = behind.stuff(&message, 8 << 20);
        assert!(taken < message.len());
        client.expect(&message[..taken]);
        behind.send(b"and on");
        client.expect(b"and on");
        // And the other direction was free all the time.
        client.send(b"back");
        behind.expect(b"back");
        drop((client, behind));
        server.stop();
    });
}

#[test]
fn a_refused_upstream_resets_the_client() {
    on_each(|backend| {
        let server = proxy(backend, config(), deserted());
        for _ in 0..3 {
            // The reset may come before the client has seen that it was connected.
            match TcpStream::connect(server.address) {
                Ok(stream) => assert_eq!(Client(stream).rest(), (Vec::new(), End::Reset)),
                Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
            }
        }
        let stats = server.stop();
        assert_eq!((stats.accepted, stats.connected), (3, 3));
    });
}

#[test]
fn a_reset_on_one_side_resets_the_other() {
    on_each(|backend| {
        let (listener, upstream) = bare();
        let server = proxy(backend, config(), upstream);
        let mut client = Client::connect(server.address);
        client.send(b"x");
        let mut behind = Client(take(&listener));
        behind.expect(b"x");
        client.reset();
        assert_eq!(behind.rest(), (Vec::new(), End::Reset));

        let mut client = Client::connect(server.address);
        client.send(b"x");
        let mut behind = Client(take(&listener));
        behind.expect(b"x");
        behind.reset();
        assert_eq!(client.rest(), (Vec::new(), End::Reset));
        server.stop();
    });
}

#[test]
fn a_pair_without_bytes_times_out() {
    on_each_at_once(|backend| {
        let (listener, upstream) = bare();
        let timeouts = Timeouts { idle: Duration::from_millis(150), ..Timeouts::default() };
        let server = Server::start(backend, config(), move || Proxy::new(upstream, timeouts));
        let begin = Instant::now();
        let mut client = Client::connect(server.address);
        client.send(b"x");
        let mut behind = Client(take(&listener));
        behind.expect(b"x");
        assert_eq!(client.rest(), (Vec::new(), End::Reset));
        assert_eq!(behind.rest(), (Vec::new(), End::Reset));
        assert!(begin.elapsed() >= Duration::from_millis(150), "it was too early");
        server.stop();
    });
}

#[test]
fn an_upstream_that_does_not_answer_times_out() {
    on_each_at_once(|backend| {
        // A queue of one that is full: what comes then is neither accepted nor refused.
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
        assert_eq!(client.rest(), (Vec::new(), End::Reset));
        server.stop();
    });
}
