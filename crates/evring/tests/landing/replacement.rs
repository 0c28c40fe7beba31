//! Handlers that are added to a landing while the server runs.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, TryRecvError};

use evring::Listener;
use evring::buffers::{BufferError, BufferGroup};
use evring::hooks::{BindError, Binding, Bindings, Landing, LandingCounters, Tenant};

use crate::landing::{BUFFERS, LEN, Server, ash, echo, handler};
use crate::server::{TIMEOUT, side_by_side};

#[test]
fn handler_is_replaced_while_the_server_runs() {
    side_by_side(|backend| {
        let server = Server::start(backend);
        let mut client = server.connect(0);
        echo(&mut client, 2, LEN, 1);
        // Before it is bound, the landing has to get a message.
        let add = |count| server.bindings.add(handler(), count, BUFFERS.1);
        let (too_many, waiting) = (add(1 << 15), add(BUFFERS.0));
        echo(&mut client, 2, LEN, 1);
        let new = waiting.recv_timeout(TIMEOUT).unwrap().unwrap();
        let error = too_many.recv_timeout(TIMEOUT).unwrap().unwrap_err();
        assert!(matches!(error, BindError::Buffers(_)), "{backend}: {error:?}");
        let old = &server.tenants[0];
        let counts = |tenant: &Tenant| {
            let LandingCounters { landed, copied, handled, .. } = tenant.counters();
            [landed, copied, handled]
        };
        assert_eq!((counts(old), counts(&new)), ([2, 0, 2], [0, 0, 0]), "{backend}");
        // Messages that land in the memory of the old one are copied to the new one.
        server.bindings.bind(Binding::Landed(old.group()), &new).unwrap();
        (0..3).for_each(|_| echo(&mut client, 2, LEN, 1));
        assert_eq!((counts(old), counts(&new)), ([2, 0, 2], [0, 3, 3]), "{backend}");
        // The next connections receive into its own memory.
        server.bindings.bind(Binding::Listener(Listener(0)), &new).unwrap();
        let mut next = server.connect(0);
        (0..3).for_each(|_| echo(&mut next, 0, LEN, 1));
        assert_eq!((counts(old), counts(&new)), ([2, 0, 2], [3, 3, 6]), "{backend}");
        server.bindings.unbind(Binding::Landed(old.group()));
        echo(&mut client, 2, LEN, 1);
        assert_eq!((counts(old), counts(&new)), ([3, 0, 3], [3, 3, 6]), "{backend}");
        drop((client, next));
        assert!(server.stop(), "{backend}");
    });
}

#[test]
fn handler_for_a_landing_that_has_ended_waited_without_end() {
    let landing = Landing::new();
    let bindings = landing.bindings();
    let waiting = handler();
    let memory = Arc::downgrade(waiting.memory());
    let waiting = bindings.add(waiting, BUFFERS.0, BUFFERS.1);
    drop(landing);
    assert_eq!(waiting.recv_timeout(TIMEOUT).unwrap_err(), RecvTimeoutError::Disconnected);
    assert!(memory.upgrade().is_none(), "the memory of the handler leaks");
    let late = handler();
    let memory = Arc::downgrade(late.memory());
    let late = bindings.add(late, BUFFERS.0, BUFFERS.1);
    assert_eq!(late.recv_timeout(TIMEOUT).unwrap_err(), RecvTimeoutError::Disconnected);
    assert!(memory.upgrade().is_none(), "the memory of the handler leaks");
    // Those that no landing has.
    let none = Bindings::default().add(handler(), BUFFERS.0, BUFFERS.1);
    assert_eq!(none.recv_timeout(TIMEOUT).unwrap_err(), RecvTimeoutError::Disconnected);
}

#[test]
fn handlers_that_wait_for_a_message_were_not_bounded() {
    let landing = Landing::new();
    let bindings = landing.bindings();
    let ash = ash();
    let add = || bindings.add(ash.instantiate(1).unwrap(), BUFFERS.0, BUFFERS.1);
    let waiting: Vec<_> = (0..BufferGroup::MAX).map(|_| add()).collect();
    let too_many = Err(BindError::Buffers(BufferError::TooMany));
    assert_eq!(add().try_recv().map(|bound| bound.map(|_| ())), Ok(too_many));
    for waiting in waiting {
        assert!(matches!(waiting.try_recv(), Err(TryRecvError::Empty)));
    }
}

#[test]
fn handlers_that_had_waited_were_bound_last_first() {
    side_by_side(|backend| {
        let server = Server::start(backend);
        let added = [(); 3].map(|()| server.bindings.add(handler(), BUFFERS.0, BUFFERS.1));
        echo(&mut server.connect(0), 2, LEN, 1);
        let groups =
            added.map(|added| added.recv_timeout(TIMEOUT).unwrap().unwrap().group().index());
        assert!(groups.is_sorted(), "{backend}: {groups:?}");
        assert!(server.stop(), "{backend}");
    });
}

#[test]
fn messages_of_the_first_handler_missed_the_second_replacement() {
    side_by_side(|backend| {
        let server = Server::start(backend);
        let mut client = server.connect(0);
        let add = || server.bindings.add(handler(), BUFFERS.0, BUFFERS.1);
        let first = &server.tenants[0];
        let [second, third] = [add(), add()];
        echo(&mut client, 2, LEN, 1);
        let [second, third] =
            [second, third].map(|added| added.recv_timeout(TIMEOUT).unwrap().unwrap());
        let handled = || [first, &second, &third].map(|tenant| tenant.counters().handled);
        let replace = |old: &Tenant, new: &Tenant| {
            server.bindings.bind(Binding::Landed(old.group()), new).unwrap();
        };
        assert_eq!(handled(), [1, 0, 0], "{backend}");
        replace(first, &second);
        echo(&mut client, 2, LEN, 1);
        assert_eq!(handled(), [1, 1, 0], "{backend}");
        replace(&second, &third);
        echo(&mut client, 2, LEN, 1);
        assert_eq!(handled(), [1, 1, 1], "{backend}");
        // A handler that was replaced may come back, and two may change places.
        server.bindings.unbind(Binding::Landed(second.group()));
        echo(&mut client, 2, LEN, 1);
        assert_eq!(handled(), [1, 2, 1], "{backend}");
        replace(&second, first);
        echo(&mut client, 2, LEN, 1);
        assert_eq!(handled(), [1, 3, 1], "{backend}");
        replace(first, first);
        echo(&mut client, 2, LEN, 1);
        assert_eq!(handled(), [2, 3, 1], "{backend}");
        drop(client);
        assert!(server.stop(), "{backend}");
    });
}
