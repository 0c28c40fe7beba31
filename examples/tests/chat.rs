//! A chat over two workers, on every mechanism.

use crate::support;

use std::io::{BufRead as _, BufReader};
use std::sync::mpsc;
use std::thread;

use evring::AnyMechanism;
use examples::Chat;
use support::client::Client;
use support::{config, on_each};

#[test]
fn line_reaches_the_clients_of_all_workers() {
    on_each(|backend| {
        let mut workers = Vec::new();
        let mut servers = Vec::new();
        let mut chats = Vec::new();
        for _ in 0..2 {
            let ((sender, started), (chat_sender, chat)) = (mpsc::channel(), mpsc::channel());
            chats.push(chat_sender);
            workers.push(thread::spawn(move || {
                let server = AnyMechanism::new(backend, &config()).unwrap();
                sender.send((server.addresses()[0], server.remote())).unwrap();
                server.run::<Chat>(chat.recv().unwrap()).unwrap()
            }));
            servers.push(started.recv().unwrap());
        }
        let remotes: Vec<_> = servers.iter().map(|(_, remote)| remote.clone()).collect();
        for (sender, chat) in chats.iter().zip(Chat::workers(&remotes)) {
            sender.send(chat).unwrap();
        }
        let mut clients: Vec<_> = servers
            .iter()
            .chain(&servers)
            .map(|(address, _)| {
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
        remotes.iter().for_each(evring::RemoteHandle::stop);
        workers.into_iter().for_each(|worker| assert_eq!(worker.join().unwrap().accepted, 2));
    });
}
