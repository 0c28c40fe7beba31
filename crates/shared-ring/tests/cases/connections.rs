//! Connections from their accept or connect to their end.

use std::num::NonZeroU16;

use crate::*;

pub(crate) fn connection_receives_sends_and_ends(mut kernel: impl Kernel, far: &impl Far) {
    let (listener, address) = listen(&mut kernel);
    kernel.submit(ACCEPT, Op::Accept { listener: number(&listener), per_turn: None }).unwrap();
    let mut batch = Batch::new();
    let mut peer = far.connect(address);
    let accepted = next(&mut kernel, &mut batch, ACCEPT);
    assert!(!accepted.is_last);
    let Outcome::Accepted(socket) = accepted.outcome else { panic!("{accepted:?}") };
    assert_eq!(kernel.host().peer_addr(&socket), Some(peer.address()));
    let fd = number(&socket);

    kernel.submit(receive(0), Op::Receive { fd, group: BufferGroup::DEFAULT }).unwrap();
    peer.write_all(b"ping");
    assert_eq!(collect(&mut kernel, &mut batch, receive(0), 4), b"ping");
    kernel.submit(send(0), Op::Send { fd, data: gather(&[b"po", b"ng"]) }).unwrap();
    let sent = next(&mut kernel, &mut batch, send(0));
    assert!(matches!(sent.outcome, Outcome::Sent(ref list, 4) if list.is_empty()), "{sent:?}");
    let mut back = [0; 4];
    peer.read_exact(&mut back);
    assert_eq!(&back, b"pong");

    peer.finish();
    let end = next(&mut kernel, &mut batch, receive(0));
    assert!(matches!(end.outcome, Outcome::Eof) && end.is_last);
    close(&mut kernel, socket);
    assert!(!peer.read_some(&mut Vec::new()), "the stream has ended");
    cancel(&mut kernel, &mut batch, ACCEPT);
    assert!(batch.is_empty(), "{batch:?}");
    kernel.host_mut().close_unused(listener);
}

pub(crate) fn receive_continues_until_cancelled(mut kernel: impl Kernel, far: &impl Far) {
    let (socket, mut peer) = plain(&mut kernel, far);
    let fd = number(&socket);
    let mut batch = Batch::new();
    kernel.submit(receive(3), Op::Receive { fd, group: BufferGroup::DEFAULT }).unwrap();
    for round in 0..50u8 {
        peer.write_all(&[round; 100]);
        assert_eq!(collect(&mut kernel, &mut batch, receive(3), 100), [round; 100]);
    }
    cancel(&mut kernel, &mut batch, receive(3));
    kernel.cancel(receive(3));
    close(&mut kernel, socket);
    assert!(batch.is_empty(), "one last completion and no more: {batch:?}");
}

pub(crate) fn cancelled_token_can_be_reused(mut kernel: impl Kernel, far: &impl Far) {
    let (socket, mut peer) = plain(&mut kernel, far);
    let fd = number(&socket);
    let mut batch = Batch::new();
    for round in 0..100u8 {
        kernel.submit(receive(0), Op::Receive { fd, group: BufferGroup::DEFAULT }).unwrap();
        if round % 2 == 0 {
            kernel.turn_into(Some(kernel.now()), &mut batch).unwrap();
        }
        cancel(&mut kernel, &mut batch, receive(0));
    }
    kernel.submit(receive(0), Op::Receive { fd, group: BufferGroup::DEFAULT }).unwrap();
    peer.write_all(b"x");
    assert_eq!(collect(&mut kernel, &mut batch, receive(0), 1), b"x");
    assert!(batch.is_empty(), "{batch:?}");
}

pub(crate) fn cancel_does_not_reach_the_next_operation_of_its_token(
    mut kernel: impl Kernel,
    far: &impl Far,
) {
    let (first, mut one) = plain(&mut kernel, far);
    let (second, mut two) = plain(&mut kernel, far);
    kernel
        .submit(receive(0), Op::Receive { fd: number(&first), group: BufferGroup::DEFAULT })
        .unwrap();
    kernel.turn(Some(kernel.now())).unwrap();
    one.finish();
    kernel.turn(Some(later(&kernel))).unwrap();
    // Its last completion has landed, but was not processed yet.
    kernel.cancel(receive(0));
    let mut end = kernel.next();
    while end.is_none() {
        kernel.turn(Some(kernel.now())).unwrap();
        end = kernel.next();
    }
    assert!(end.is_some_and(|end| end.token == receive(0) && end.is_last));
    kernel
        .submit(receive(0), Op::Receive { fd: number(&second), group: BufferGroup::DEFAULT })
        .unwrap();
    let mut batch = Batch::new();
    kernel.turn_into(Some(kernel.now()), &mut batch).unwrap();
    two.write_all(b"x");
    assert_eq!(collect(&mut kernel, &mut batch, receive(0), 1), b"x");
}

pub(crate) fn event_of_a_closed_socket_does_not_reach_the_next(
    mut kernel: impl Kernel,
    far: &impl Far,
) {
    if !far.connect_waits_for_backlog() {
        return;
    }
    let options = ListenOptions::new(0);
    let (listener, to) =
        kernel.host_mut().listen("127.0.0.1:0".parse().unwrap(), &options).unwrap();
    // It fills the backlog, so that the next connect waits.
    let _queued = far.connect(to);
    let (socket, mut peer) = connection(&mut kernel, far, SMALL);
    let fd = number(&socket);
    let mut batch = Batch::new();
    let data = gather(&[&[b'x'; 8 << 20]]);
    kernel.submit(send(0), Op::Send { fd, data }).unwrap();
    let mut unsent = match next(&mut kernel, &mut batch, send(0)).outcome {
        Outcome::Sent(list, _) => Some(list),
        other => panic!("{other:?}"),
    };
    let mut waits = false;
    while !waits {
        let data = unsent.take().expect("a send returns its list");
        kernel.submit(send(0), Op::Send { fd, data }).unwrap();
        kernel.turn_into(Some(kernel.now()), &mut batch).unwrap();
        match batch.pop_front() {
            Some(Completion { outcome: Outcome::Sent(list, _), .. }) => unsent = Some(list),
            None => waits = true,
            other => panic!("{other:?}"),
        }
    }
    kernel.cancel(send(0));
    // Now the socket is writable, which a poller reports along with the end of the send.
    peer.read_some(&mut Vec::new());
    kernel.turn(Some(later(&kernel))).unwrap();
    while !kernel.next().expect("the send ends").is_last {}
    kernel.submit(Token::new(OpKind::Close, 0, 0), Op::Close { socket }).unwrap();
    // If the close is already done, one of these gets the number.
    let mut sockets: Vec<Socket> = Vec::new();
    while sockets.len() < 64 && sockets.last().map(number) != Some(fd) {
        sockets.push(kernel.host_mut().socket(to, None, BufferSizes::default()).unwrap());
    }
    let late = sockets.pop().unwrap();
    let token = Token::new(OpKind::Connect, 0, 0);
    kernel.submit(token, Op::Connect { fd: number(&late), to }).unwrap();
    kernel.turn_into(Some(kernel.now()), &mut batch).unwrap();
    assert!(!batch.iter().any(|c| c.token == token), "not connected yet: {batch:?}");
    cancel(&mut kernel, &mut batch, token);
    for socket in sockets.into_iter().chain([late, listener]) {
        kernel.host_mut().close_unused(socket);
    }
}

pub(crate) fn connecting_succeeds_and_fails(mut kernel: impl Kernel, far: &impl Far) {
    let (socket, _peer) = plain(&mut kernel, far);
    close(&mut kernel, socket);
    let closed = far.closed_address();
    let socket = kernel.host_mut().socket(closed, None, BufferSizes::default()).unwrap();
    let token = Token::new(OpKind::Connect, 0, 0);
    kernel.submit(token, Op::Connect { fd: number(&socket), to: closed }).unwrap();
    let done = next(&mut kernel, &mut Batch::new(), token);
    assert_eq!(failure(done), Errno::CONNREFUSED);
    close(&mut kernel, socket);
}

pub(crate) fn accepts_per_turn_are_bounded(mut kernel: impl Kernel, far: &impl Far) {
    let (listener, address) = listen(&mut kernel);
    let _peers: Vec<_> = (0..10).map(|_| far.connect(address)).collect();
    let per_turn = NonZeroU16::new(3);
    kernel.submit(ACCEPT, Op::Accept { listener: number(&listener), per_turn }).unwrap();
    let (mut batch, mut accepted) = (Batch::new(), 0);
    while accepted < 10 {
        kernel.turn_into(Some(later(&kernel)), &mut batch).unwrap();
        assert!(batch.len() <= 3, "{batch:?}");
        for completion in batch.drain(..) {
            let Outcome::Accepted(socket) = completion.outcome else { panic!("{completion:?}") };
            kernel.host_mut().close_unused(socket);
            accepted += 1;
        }
    }
    cancel(&mut kernel, &mut batch, ACCEPT);
    kernel.host_mut().close_unused(listener);
}
