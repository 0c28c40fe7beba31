//! The bindings of a handler.

use ash_sandbox::sandbox::{Outcome, Pass};
use evring::Listener;
use evring::buffers::{BufferError, BufferGroup};
use evring::hooks::{BindError, Binding, Landing};

use crate::landing::{LEN, Server, echo, handler};
use crate::server::side_by_side;

#[test]
fn handler_is_bound_once_and_its_buffers_fit_its_area() {
    let mut landing = Landing::new();
    let none = |_| Err(BufferError::TooMany);
    let too_many = landing.bind(handler(), 256, 2048, none).unwrap_err();
    let needed = 256 * (2048 + 64);
    let error = BufferError::TooSmall { needed, len: 256 << 10 };
    assert_eq!(too_many, BindError::Buffers(error));
    assert_eq!(landing.bind(handler(), 3, 1, none).unwrap_err(), BufferError::Count(3).into());
    assert_eq!(landing.bind(handler(), 4, 1, none).unwrap_err(), BufferError::TooMany.into());
    let mut bound = handler();
    let _areas = bound.take_areas(usize::MAX).unwrap();
    // The area belongs to the kernel, so nothing else is copied to it.
    let outcome = bound.handle_copy(b"message", 0, std::time::Instant::now());
    assert_eq!(outcome, Outcome::Passed(Pass::Elsewhere));
    let error = landing.bind(bound, 4, 512, none).unwrap_err();
    assert_eq!(error, BindError::Taken);
    assert!(error.to_string().contains("another instance"));
}

#[test]
fn handler_of_another_landing_was_bound() {
    let add = |_| Ok(BufferGroup::DEFAULT);
    let (mut ours, mut others) = (Landing::new(), Landing::new());
    let [own, other] = [&mut ours, &mut others].map(|landing| landing.bind(handler(), 4, 64, add));
    let (own, other) = (own.unwrap(), other.unwrap());
    assert_eq!(own.group(), other.group(), "they differ by their landing only");
    let (bindings, to) = (ours.bindings(), || Binding::Listener(Listener(0)));
    let error = bindings.bind(to(), &other).unwrap_err();
    assert_eq!(error, BindError::OtherLanding);
    assert!(error.to_string().contains("another landing"));
    drop(others);
    assert_eq!(bindings.bind(to(), &other), Err(BindError::OtherLanding));
    assert_eq!(bindings.bind(to(), &own), Ok(()));
}

#[test]
fn handlers_are_bound_again_while_the_server_runs() {
    side_by_side(|backend| {
        let server = Server::start(backend);
        let (mut client, mut other) = (server.connect(2), server.connect(2));
        echo(&mut client, 0, LEN, 1);
        let ids: Vec<_> = server.accepted.try_iter().collect();
        let numbers = || [0, 1].map(|n| server.tenants[n].counters());
        let handled = || numbers().map(|counters| [counters.handled, counters.copied]);
        let bind = |to, n: usize| server.bindings.bind(to, &server.tenants[n]).unwrap();
        assert_eq!(handled(), [[0, 0]; 2], "{backend}: the listener has no handler");
        // A filter, whose messages are copied.
        let filter = Binding::Filter { offset: 1, bytes: vec![3, 6] };
        bind(filter.clone(), 0);
        echo(&mut client, 0, LEN, 1);
        echo(&mut client, 1, LEN, 1);
        echo(&mut client, 0, 2, 1);
        assert_eq!(handled(), [[1, 1], [0, 0]], "{backend}: only the first has these bytes");
        // Bound again, by the identifier of another handler.
        bind(filter.clone(), 1);
        echo(&mut client, 0, LEN, 1);
        assert_eq!(handled(), [[1, 1], [1, 1]], "{backend}");
        // A message that lands in the memory of its handler is not copied.
        echo(&mut server.connect(1), 0, LEN, 1);
        assert_eq!(handled(), [[1, 1], [2, 1]], "{backend}");
        // Replies from a reply slot and from the memory of the module.
        bind(Binding::Filter { offset: 0, bytes: vec![4] }, 0);
        echo(&mut client, 4, LEN, 4);
        assert_eq!(handled(), [[2, 2], [2, 1]], "{backend}");
        let copied = numbers()[0];
        assert_eq!((copied.replies_lent, copied.replies_copied), (1, 4), "{backend}");
        // A connection goes before the filters.
        ids.iter().for_each(|id| {
            bind(Binding::Connection(*id), 0);
        });
        echo(&mut client, 0, LEN, 1);
        echo(&mut other, 1, LEN, 1);
        assert_eq!(handled(), [[4, 4], [2, 1]], "{backend}");
        ids.iter().for_each(|id| server.bindings.unbind(Binding::Connection(*id)));
        // A listener, whose next connections receive into the memory of the handler.
        bind(Binding::Listener(Listener(2)), 0);
        let mut next = server.connect(2);
        echo(&mut next, 1, LEN, 1);
        assert_eq!(handled(), [[5, 4], [2, 1]], "{backend}");
        // The filter takes what landed elsewhere, too.
        echo(&mut next, 0, LEN, 1);
        assert_eq!(handled(), [[5, 4], [3, 2]], "{backend}");
        server.bindings.unbind(filter);
        server.bindings.unbind(Binding::Listener(Listener(2)));
        echo(&mut client, 0, LEN, 1);
        echo(&mut server.connect(2), 0, LEN, 1);
        assert_eq!(handled(), [[5, 4], [3, 2]], "{backend}");
        drop((client, other, next));
        assert!(server.stop());
    });
}
