//! A chat over two workers, on every mechanism.

use crate::support;

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use evring::{AnyMechanism, Config, RemoteHandle, Stats};
use examples::Chat;
use support::client::{Client, End};
use support::{config, on_each, tiny};

/// Workers of a chat.
struct Workers {
    addresses: Vec<SocketAddr>,
    remotes: Vec<RemoteHandle>,
    threads: Vec<JoinHandle<Stats>>,
}

impl Workers {
    fn start(number: usize, backend: &'static str, config: &Config) -> Self {
        let (mut addresses, mut remotes) = (Vec::new(), Vec::new());
        let (mut threads, mut chats) = (Vec::new(), Vec::new());
        for _ in 0..number {
            let ((sender, started), (chat_sender, chat)) = (mpsc::channel(), mpsc::channel());
            chats.push(chat_sender);
            let config = config.clone();
            threads.push(thread::spawn(move || {
                let server = AnyMechanism::new(backend, &config).unwrap();
                sender.send((server.addresses()[0], server.remote())).unwrap();
                server.run::<Chat>(chat.recv().unwrap()).unwrap()
            }));
            let (address, remote) = started.recv().unwrap();
            addresses.push(address);
            remotes.push(remote);
        }
        for (sender, chat) in chats.iter().zip(Chat::workers(&remotes)) {
            sender.send(chat).unwrap();
        }
        Workers { addresses, remotes, threads }
    }

    fn stop(self) -> Vec<Stats> {
        self.remotes.iter().for_each(RemoteHandle::stop);
        self.threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    }
}

#[test]
fn line_reaches_the_clients_of_all_workers() {
    on_each(|backend| {
        let workers = Workers::start(2, backend, &config());
        let addresses = &workers.addresses;
        let mut clients: Vec<_> = addresses
            .iter()
            .chain(addresses)
            .map(|address| {
                let mut client = Client::connect(*address);
                client.ask(b"joined\n", b"joined\n");
                client
            })
            .collect();
        for (index, client) in clients.iter_mut().enumerate() {
            client.send(format!("from {index}\n").as_bytes());
        }
        for client in &mut clients {
            // Lines of clients that joined before or after it may arrive, too.
            let lines = BufReader::new(&client.0).lines().map(Result::unwrap);
            let mut lines: Vec<_> = lines.filter(|line| line != "joined").take(4).collect();
            lines.sort();
            assert_eq!(lines, ["from 0", "from 1", "from 2", "from 3"]);
        }
        drop(clients);
        workers.stop().iter().for_each(|stats| assert_eq!(stats.accepted, 2));
    });
}

#[test]
fn line_of_any_length_that_arrived_at_once_was_sent() {
    on_each(|backend| {
        let workers = Workers::start(1, backend, &config());
        let mut client = Client::connect(workers.addresses[0]);
        let longest = "x".repeat(1023) + "\n";
        client.ask(&longest, &longest);
        client.send(format!("x{longest}").as_bytes());
        assert_eq!(client.read_to_end().0, b"");
        workers.stop();
    });
}

#[test]
fn client_that_did_not_read_its_lines_was_reset() {
    on_each(|backend| {
        let workers = Workers::start(1, backend, &tiny().with(|c| c.max_queued_bytes = 1 << 20));
        let mut client = Client::narrow(workers.addresses[0]);
        let lines: String = (0..1 << 20).map(|number| format!("line {number:010}\n")).collect();
        let sent = client.send_until_full(lines.as_bytes(), 6 << 20);
        assert!(sent < lines.len(), "the server took all of it");

        // The end arrives while the server does not receive.
        client.end();
        let whole = lines[..sent].rfind('\n').unwrap() + 1;
        client.expect_last(&lines.as_bytes()[..whole], End::Eof);
        workers.stop();
    });
}
