//! A handler in a thread that owns the ring, in front of an application that sleeps.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc;

use evring::hooks::{BindError, Landing};
use evring::owner::{Notification, NotificationRing, NotificationSender, OwnerThread, Scheduling};
use evring::{AnyMechanism, Listener};

use crate::landing::{BUFFERS, echo, handler};
use crate::server::{connect, listening, side_by_side};

const LEN: usize = 16;

/// Sends a message that begins with `first`, which the application sends back.
fn echo_by_application(client: &mut TcpStream, ring: &NotificationRing, first: u8) {
    let message = [first; LEN];
    client.write_all(&message).unwrap();
    let notification = ring.wait();
    let Some(Notification::Message(id, bytes)) = notification else {
        panic!("the application got {notification:?}");
    };
    assert_eq!(bytes, message);
    ring.reply(id, bytes).unwrap();
    let mut answer = [0; LEN];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(answer, message);
}

#[test]
fn handler_of_an_owner_thread_answers_posts_passes_on_and_is_switched() {
    side_by_side(|backend| {
        let (bound, tenant) = mpsc::channel();
        let hook = move |server: &mut AnyMechanism, notifier: NotificationSender| {
            let mut landing = Landing::new();
            let (count, size) = BUFFERS;
            let add = |buffers| server.add_buffers(buffers);
            let tenant = landing.bind(handler(), count, size, add)?;
            server.set_listener_group(Listener(0), tenant.group())?;
            bound.send(tenant).unwrap();
            Ok::<_, BindError>(landing.posting(move |id, kind, value| {
                assert!(notifier.post(id, kind, value));
            }))
        };
        let config = listening(1);
        let started = OwnerThread::start(backend, &config, Scheduling::Inherited, 16, hook);
        let (owner, ring) = started.unwrap();
        let tenant = tenant.recv().unwrap();
        let mut client = connect(owner.addresses()[0]);
        let handled = |client: &mut TcpStream| {
            echo(client, 0, LEN, 1);
            let event = ring.wait();
            assert!(matches!(event, Some(Notification::Event(_, 0, _))), "{backend}: {event:?}");
        };
        handled(&mut client);
        // It passes this one on.
        echo_by_application(&mut client, &ring, 3);
        handled(&mut client);
        tenant.set_on(false);
        echo_by_application(&mut client, &ring, 0);
        tenant.set_on(true);
        handled(&mut client);
        let counters = tenant.counters();
        assert_eq!((counters.handled, counters.passed), (3, 2), "{backend}");
        drop(client);
        owner.remote().stop();
        owner.join().unwrap();
    });
}
