//! A chat over two workers, on every mechanism.

mod support;

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
        let mut clients = Vec::new();
        for (index, (address, _)) in servers.iter().chain(&servers).enumerate() {
            let mut client = Client::connect(*address);
            let line = format!("{index} joined\n");
            client.ask(line.as_bytes(), line.as_bytes());
            clients.push(client);
            // The lines of those that join later.
            for client in &mut clients[..index] {
                client.expect(line.as_bytes());
            }
        }
        clients[1].send(b"to all\n");
        clients.iter_mut().for_each(|client| client.expect(b"to all\n"));
        drop(clients);
        remotes.iter().for_each(evring::RemoteHandle::stop);
        workers.into_iter().for_each(|worker| assert_eq!(worker.join().unwrap().accepted, 2));
    });
}
