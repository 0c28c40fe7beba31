//! Echo on every mechanism.

use crate::support;

use std::sync::mpsc;
use std::thread;

use evring::Config;
use examples::Echo;
use support::client::{Client, End};
use support::{Server, config, on_each, pattern, tiny};

fn echo(backend: &'static str, config: Config) -> Server {
    Server::start(backend, config, || Echo)
}

#[test]
fn message_split_at_any_byte_is_echoed() {
    on_each(|backend| {
        let server = echo(backend, config());
        let message = pattern(40);
        for at in 0..message.len() {
            let mut client = Client::connect(server.address);
            let (head, tail) = message.split_at(at);
            client.ask(head, head); // the reply shows that it was received separately
            client.ask(tail, tail);
            client.end();
            client.expect_last(b"", End::Eof);
        }
        assert_eq!(server.stop().accepted, message.len() as u64);
    });
}

#[test]
fn every_receive_buffer_size_gives_the_same_bytes() {
    on_each(|backend| {
        for buffer_size in [1, 2, 3, 1000] {
            let server = echo(
                backend,
                config().with(|c| {
                    c.buffer_size = buffer_size;
                    c.buffers = 4;
                }),
            );
            let message = pattern(3000);
            let mut client = Client::connect(server.address);
            client.ask(&message, &message);
            client.end();
            client.expect_last(b"", End::Eof);
            let stats = server.stop();
            assert!(stats.received as usize >= message.len() / buffer_size as usize);
        }
    });
}

#[test]
fn megabytes_pass_through_tiny_socket_buffers() {
    on_each(|backend| {
        let server = echo(backend, tiny());
        let mut client = Client::narrow(server.address);
        let message = pattern(1 << 20);
        client.sending(&message, |client| client.expect(&message));
        client.end();
        client.expect_last(b"", End::Eof);
        server.stop();
    });
}

#[test]
fn client_that_never_reads_is_paused() {
    on_each(|backend| {
        let server = echo(backend, tiny());
        let mut client = Client::narrow(server.address);
        let message = pattern(16 << 20);
        let sent = client.send_until_full(&message, 6 << 20);
        assert!(sent < message.len(), "the server took all of it");

        let mut other = Client::connect(server.address);
        other.ask(b"meanwhile", b"meanwhile");

        client.expect(&message[..sent]);
        client.ask(b"and on", b"and on");
        client.end();
        client.expect_last(b"", End::Eof);
        drop(other);
        server.stop();
    });
}

#[test]
fn bytes_before_the_end_are_echoed() {
    on_each(|backend| {
        let server = echo(backend, tiny());
        let mut client = Client::narrow(server.address);
        let message = pattern(100_000);
        client.sending(&message, |client| {
            client.expect(&message[..1]);
            client.expect(&message[1..]);
        });
        client.end();
        client.expect_last(b"", End::Eof);
        server.stop();
    });
}

#[test]
fn reset_closes_only_its_own_connection() {
    on_each(|backend| {
        let server = echo(backend, config());
        let mut open = Client::connect(server.address);
        open.ask(b"before", b"before");
        for _ in 0..20 {
            let mut resetting = Client::connect(server.address);
            resetting.ask(b"x", b"x");
            resetting.send(&pattern(50_000));
            resetting.reset();
        }
        open.ask(b"after", b"after");
        drop(open);
        assert_eq!(server.stop().accepted, 21);
    });
}

#[test]
fn concurrent_clients_get_their_own_bytes() {
    on_each(|backend| {
        let server = echo(backend, config().with(|c| c.buffers = 8));
        let (done, all) = mpsc::channel();
        for seed in 1..=40usize {
            let (done, address) = (done.clone(), server.address);
            thread::spawn(move || {
                let mut client = Client::connect(address);
                let message = pattern(20_000 + seed)[seed..].to_vec();
                client.sending(&message, |client| client.expect(&message));
                done.send(seed).unwrap();
            });
        }
        drop(done);
        assert_eq!(all.iter().count(), 40, "a client failed");
        assert_eq!(server.stop().accepted, 40);
    });
}
