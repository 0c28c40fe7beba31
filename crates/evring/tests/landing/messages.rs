//! Messages land in the memory of a handler, and replies leave from it.

use std::io::{Read, Write};
use std::thread;

use evring::hooks::{LandingCounters, Tenant};

use crate::landing::{BUFFERS, LEN, Server, echo};
use crate::server::side_by_side;

#[test]
fn messages_land_in_the_handlers_memory_and_replies_leave_from_it() {
    side_by_side(|backend| {
        let server = Server::start(backend);
        let mut clients: Vec<_> = (0..3).map(|listener| server.connect(listener)).collect();
        for _ in 0..50 {
            for client in &mut clients {
                echo(client, 0, LEN, 1);
                echo(client, 1, LEN, 1);
            }
        }
        let expected = [100, 100, 0, 0, 0, 100, 0, 0];
        for tenant in &server.tenants {
            assert_eq!(numbers(tenant), expected, "{backend}: no byte is copied");
        }
        // From the module's own memory, and short ones, they are copied; the application gets the rest.
        echo(&mut clients[0], 2, LEN, 1);
        echo(&mut clients[0], 0, 10, 1);
        echo(&mut clients[0], 1, 10, 1);
        echo(&mut clients[0], 3, LEN, 1);
        let copied = LEN as u64 + 20;
        assert_eq!(numbers(&server.tenants[0]), [104, 103, 0, 1, 0, 100, 3, copied]);
        // Four replies to one message, in order: its buffer leaves with the last that lies in it.
        echo(&mut clients[0], 4, LEN, 4);
        let copied = copied + 2 * LEN as u64;
        assert_eq!(numbers(&server.tenants[0]), [105, 104, 0, 1, 0, 102, 5, copied]);
        clients[0].write_all(&[5; LEN]).unwrap();
        // While the handler is off, the application answers.
        echo(&mut clients[1], 0, LEN, 1);
        server.tenants[1].set_on(false);
        echo(&mut clients[1], 0, LEN, 1);
        server.tenants[1].set_on(true);
        echo(&mut clients[1], 1, LEN, 1);
        assert_eq!(numbers(&server.tenants[1]), [103, 102, 0, 1, 0, 102, 0, 0]);
        let events: Vec<_> = server.events.try_iter().collect();
        // None of a message that was passed on.
        assert!(events.iter().all(|(kind, slot)| *kind != 3 && *slot < BUFFERS.0.into()));
        assert_eq!(events.iter().filter(|(kind, _)| *kind == 1).count(), 102);
        drop(clients);
        assert!(server.stop());
    });
}

/// Returns the counters in the order of their declaration.
fn numbers(tenant: &Tenant) -> [u64; 8] {
    let LandingCounters {
        landed,
        handled,
        discarded,
        passed,
        aborted,
        replies_lent,
        replies_copied,
        bytes_copied,
        ..
    } = tenant.counters();
    [landed, handled, discarded, passed, aborted, replies_lent, replies_copied, bytes_copied]
}

#[test]
fn memory_outlives_receives_and_replies_in_flight() {
    side_by_side(|backend| {
        for panics in [false, true] {
            let server = Server::start(backend);
            // Receives in flight; and replies that no client reads, until the slots are used up.
            let mut clients: Vec<_> = (0..6).map(|n| server.connect(n % 2)).collect();
            for (n, client) in clients.iter_mut().enumerate() {
                echo(client, (n % 2) as u8, LEN, 1);
            }
            let mut silent = server.connect(0);
            silent.set_nonblocking(true).unwrap();
            let message = [1; LEN];
            let mut rejected = 0;
            while rejected < 100 {
                match silent.write(&message) {
                    Ok(_) => rejected = 0,
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                        rejected += 1;
                        thread::yield_now();
                    }
                    // The server ended the connection, as it queued too much for it.
                    Err(_) => break,
                }
            }
            if panics {
                let mut client = server.connect(2);
                client.write_all(b"!").unwrap();
                let _ = client.read(&mut [0]);
            }
            assert_eq!(server.stop(), !panics, "{backend}");
            drop(clients);
        }
    });
}
