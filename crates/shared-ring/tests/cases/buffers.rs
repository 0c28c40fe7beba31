//! Receive buffers and their groups.

use shared_ring::sockets::{Datagram, Transmit};

use super::calls::{CALL, called};
use crate::far::DatagramPeer;
use crate::*;

pub(crate) fn connections_share_few_buffers(mut kernel: impl Kernel, far: &impl Far) {
    let mut batch = Batch::new();
    let mut connections: Vec<_> = (0..10).map(|_| plain(&mut kernel, far)).collect();
    for (slot, (socket, _)) in connections.iter().enumerate() {
        kernel
            .submit(
                receive(slot as u32),
                Op::Receive { fd: number(socket), group: BufferGroup::DEFAULT },
            )
            .unwrap();
    }
    // 2 buffers of 512 bytes for 10 times 5,000 bytes, which arrive at once.
    for (slot, (_, peer)) in connections.iter_mut().enumerate() {
        peer.write_all(&[slot as u8; 5000]);
    }
    let until = later(&kernel);
    let mut received = [0; 10];
    while received != [5000; 10] {
        assert!(kernel.now() < until, "stuck at {received:?}");
        kernel.turn_into(Some(until), &mut batch).unwrap();
        for completion in batch.drain(..) {
            let slot = completion.token.slot() as usize;
            let Outcome::Received(bytes) = completion.outcome else { panic!("{completion:?}") };
            assert!(!completion.is_last && bytes.iter().all(|b| *b == slot as u8));
            received[slot] += bytes.len();
        }
    }
    assert!(kernel.counters().buffer_shortages > 0);
}

pub(crate) fn starved_receive_can_be_cancelled(mut kernel: impl Kernel, far: &impl Far) {
    let mut batch = Batch::new();
    let (first, mut one) = plain(&mut kernel, far);
    let (second, mut two) = plain(&mut kernel, far);
    kernel
        .submit(receive(0), Op::Receive { fd: number(&first), group: BufferGroup::DEFAULT })
        .unwrap();
    one.write_all(b"x");
    let held = next(&mut kernel, &mut batch, receive(0));
    kernel
        .submit(receive(1), Op::Receive { fd: number(&second), group: BufferGroup::DEFAULT })
        .unwrap();
    two.write_all(b"y");
    while kernel.counters().buffer_shortages == 0 {
        soon(&mut kernel, &mut batch);
    }
    cancel(&mut kernel, &mut batch, receive(1));
    drop(held);
    kernel
        .submit(receive(1), Op::Receive { fd: number(&second), group: BufferGroup::DEFAULT })
        .unwrap();
    assert_eq!(collect(&mut kernel, &mut batch, receive(1), 1), b"y");
}

pub(crate) fn messages_lie_in_memory_of_the_caller(mut kernel: impl Kernel, far: &impl Far) {
    let (group, view) = add_mapped(&mut kernel, 2);
    let group = group.unwrap();
    let (other_group, other_view) = add_mapped(&mut kernel, 2);
    let other_group = other_group.unwrap();
    let groups = [(group, Some(view)), (other_group, Some(other_view))];
    let groups = groups.into_iter().chain([(BufferGroup::DEFAULT, None)]);
    let mut batch = Batch::new();
    for (slot, (group, view)) in groups.enumerate() {
        let slot = slot as u32;
        let (socket, mut peer) = plain(&mut kernel, far);
        let receives = Op::Receive { fd: number(&socket), group };
        kernel.submit(receive(slot), receives).unwrap();
        for round in 0..20u8 {
            peer.write_all(&[round; 150]);
            let mut n = 0;
            while n < 150 {
                let received = next(&mut kernel, &mut batch, receive(slot)).outcome;
                let Outcome::Received(mut bytes) = received else { panic!("{received:?}") };
                assert!(*bytes == vec![round; bytes.len()]);
                n += bytes.len();
                let place = bytes.place().unwrap();
                assert_eq!(place.group, group);
                let Some(view) = &view else { continue };
                assert_eq!(view.read(place.offset, bytes.len()), *bytes);
                // A change in place by the program is in the map, too.
                bytes[0] = 99;
                assert_eq!(view.read(place.offset, 1), [99]);
                bytes.advance(1);
                assert_eq!(bytes.place().unwrap().offset, place.offset + 1);
            }
        }
        cancel(&mut kernel, &mut batch, receive(slot));
        close(&mut kernel, socket);
    }
}

pub(crate) fn group_without_a_buffer_does_not_delay_another(
    mut kernel: impl Kernel,
    far: &impl Far,
) {
    let mut batch = Batch::new();
    let FullGroup { view: _view, held, first: (_first, mut one), .. } =
        full_group(&mut kernel, far, &mut batch);
    let (second, mut two) = plain(&mut kernel, far);
    one.write_all(b"y");
    while kernel.counters().buffer_shortages == 0 {
        soon(&mut kernel, &mut batch);
    }
    let receives = Op::Receive { fd: number(&second), group: BufferGroup::DEFAULT };
    kernel.submit(receive(1), receives).unwrap();
    for _ in 0..20 {
        two.write_all(b"z");
        assert_eq!(collect(&mut kernel, &mut batch, receive(1), 1), b"z");
    }
    assert!(batch.is_empty(), "the full group has no buffer: {batch:?}");
    drop(held);
    assert_eq!(collect(&mut kernel, &mut batch, receive(0), 1), b"y");
}

pub(crate) fn receive_without_a_buffer_kept_the_kernel_busy(
    mut kernel: impl Kernel,
    far: &impl Far,
) {
    let mut batch = Batch::new();
    let FullGroup { view: _view, held, first: (_first, mut one), .. } =
        full_group(&mut kernel, far, &mut batch);
    one.write_all(b"y");
    while kernel.counters().buffer_shortages == 0 {
        soon(&mut kernel, &mut batch);
    }
    let until = kernel.now() + Duration::from_millis(20);
    let mut turns = 0;
    while kernel.now() < until {
        kernel.turn_into(Some(until), &mut batch).unwrap();
        turns += 1;
    }
    assert!(batch.is_empty(), "the group has no buffer: {batch:?}");
    assert!(turns <= 5, "{turns} turns");
    drop(held);
    assert_eq!(collect(&mut kernel, &mut batch, receive(0), 1), b"y");
}

/// It had been counted for the buffer that came back.
pub(crate) fn cancelled_receive_kept_another_one_from_a_buffer(
    mut kernel: impl Kernel,
    far: &impl Far,
) {
    let mut batch = Batch::new();
    let FullGroup { group, view: _view, held, first: (_first, mut one) } =
        full_group(&mut kernel, far, &mut batch);
    let (second, mut two) = plain(&mut kernel, far);
    kernel.submit(receive(1), Op::Receive { fd: number(&second), group }).unwrap();
    one.write_all(b"y");
    while kernel.counters().buffer_shortages == 0 {
        soon(&mut kernel, &mut batch);
    }
    two.write_all(b"y");
    (0..2).for_each(|_| soon(&mut kernel, &mut batch));
    cancel(&mut kernel, &mut batch, receive(0));
    drop(held);
    let until = kernel.now() + Duration::from_secs(10);
    while batch.is_empty() {
        assert!(kernel.now() < until, "it slept");
        kernel.turn_into(Some(until), &mut batch).unwrap();
    }
    assert_eq!(collect(&mut kernel, &mut batch, receive(1), 1), b"y");
}

pub(crate) fn call_after_a_starved_receive_was_not_made(mut kernel: impl Kernel, far: &impl Far) {
    let mut batch = Batch::new();
    let FullGroup { group: _group, view: _view, held: _held, first: (first, mut one) } =
        full_group(&mut kernel, far, &mut batch);
    one.write_all(b"y");
    while kernel.counters().buffer_shortages == 0 {
        soon(&mut kernel, &mut batch);
    }
    cancel(&mut kernel, &mut batch, receive(0));
    // The second call waits.
    for expected in [b"y", b"z"] {
        let read = Box::new(Call::read(number(&first), 1));
        kernel.submit(CALL, Op::Call(read, Executor::WhenReadable)).unwrap();
        if expected == b"z" {
            one.write_all(expected);
        }
        let (call, result) = called(next(&mut kernel, &mut batch, CALL).outcome);
        assert_eq!((result, &call.memory(1)[..1]), (Ok(1), &expected[..]));
    }
}

pub(crate) fn starved_receive_of_a_group_can_be_cancelled(mut kernel: impl Kernel, far: &impl Far) {
    let mut batch = Batch::new();
    let FullGroup { group, view: _view, held, first: _first } =
        full_group(&mut kernel, far, &mut batch);
    let (second, mut two) = plain(&mut kernel, far);
    kernel.submit(receive(1), Op::Receive { fd: number(&second), group }).unwrap();
    two.write_all(b"y");
    while kernel.counters().buffer_shortages == 0 {
        soon(&mut kernel, &mut batch);
    }
    cancel(&mut kernel, &mut batch, receive(1));
    drop(held);
    kernel.submit(receive(1), Op::Receive { fd: number(&second), group }).unwrap();
    assert_eq!(collect(&mut kernel, &mut batch, receive(1), 1), b"y");
}

pub(crate) fn memory_outlives_receives_in_flight_and_messages(
    mut kernel: impl Kernel,
    far: &impl Far,
) {
    let (group, view) = add_mapped(&mut kernel, 4);
    let group = group.unwrap();
    let mut batch = Batch::new();
    let (first, mut one) = plain(&mut kernel, far);
    let (second, _two) = plain(&mut kernel, far);
    kernel.submit(receive(0), Op::Receive { fd: number(&first), group }).unwrap();
    kernel.submit(receive(1), Op::Receive { fd: number(&second), group }).unwrap();
    one.write_all(b"x");
    let received = next(&mut kernel, &mut batch, receive(0)).outcome;
    let Outcome::Received(bytes) = received else { panic!("{received:?}") };
    // Bytes that no completion was taken for.
    one.write_all(b"more");
    kernel.turn(Some(kernel.now())).unwrap();
    drop((kernel, batch));
    assert!(!view.is_unmapped(), "a message is in the map");
    let place = bytes.place().unwrap();
    assert_eq!((&*bytes, view.read(place.offset, 1)), (&b"x"[..], b"x".to_vec()));
    drop(bytes);
    assert!(view.is_unmapped(), "nothing uses the map");
}

pub(crate) fn groups_are_bounded_and_unknown_ones_rejected(
    mut kernel: impl Kernel,
    far: &impl Far,
) {
    let config = EngineConfig::new(1, 1, 1);
    let mut other = Engine::new(Poll::default(), &config).unwrap();
    let (unknown, _view) = add_mapped(&mut other, 1);
    let group = unknown.unwrap();
    let (socket, mut peer) = plain(&mut kernel, far);
    let receives = Op::Receive { fd: number(&socket), group };
    let error = kernel.submit(receive(0), receives).unwrap_err();
    assert_eq!(error.kind, SubmitErrorKind::UnknownGroup);
    let added = (1..BufferGroup::MAX).map(|_| add_mapped(&mut kernel, 1).0.unwrap());
    assert_eq!(added.last().unwrap().index(), BufferGroup::MAX - 1);
    let (refused, view) = add_mapped(&mut kernel, 1);
    assert_eq!(refused, Err(BufferError::TooMany));
    assert!(view.is_unmapped(), "a group that was refused keeps no memory");
    // The name is known now.
    kernel.submit(receive(0), error.op).unwrap();
    peer.write_all(b"x");
    assert_eq!(collect(&mut kernel, &mut Batch::new(), receive(0), 1), b"x");
}

pub(crate) fn datagrams_keep_their_bytes_and_sources(mut kernel: impl Kernel, far: &impl Far) {
    let (group, view) = add_mapped(&mut kernel, 4);
    let group = group.unwrap();
    let (socket, peer) = far.datagrams();
    let (fd, mut batch) = (number(&socket), Batch::new());
    kernel.submit(receive(0), Op::ReceiveFrom { fd, group }).unwrap();
    let room = 100 - Datagram::HEADER_BYTES;
    let mut message = Transmit::new(peer.address());
    for len in [5, 0, 0, room, room + 1, 9_000, 1].into_iter().cycle().take(21) {
        let bytes: Vec<u8> = (0..len).map(|n| n as u8).collect();
        peer.send(&bytes);
        let received = next(&mut kernel, &mut batch, receive(0));
        assert!(!received.is_last);
        let Outcome::Datagram(datagram) = received.outcome else { panic!("{received:?}") };
        let kept = &bytes[..len.min(room)];
        assert_eq!((datagram.bytes(), datagram.source()), (kept, peer.address()));
        assert_eq!((datagram.sent_len(), datagram.is_truncated()), (len, len > room));
        // It goes back from where it lies.
        let buffer = datagram.into_buffer();
        let place = buffer.place().unwrap();
        assert_eq!((place.group, view.read(place.offset, kept.len())), (group, kept.to_vec()));
        message.data.hold(buffer);
        kernel.submit(send(0), Op::SendTo { fd, message }).unwrap();
        let sent = next(&mut kernel, &mut batch, send(0)).outcome;
        let Outcome::SentTo(back, Ok(())) = sent else { panic!("{sent:?}") };
        assert!(back.data.is_empty());
        assert_eq!(peer.receive(), kept);
        message = back;
    }
    // Two at once.
    peer.send(b"a");
    peer.send(b"b");
    for expected in [b"a", b"b"] {
        let received = next(&mut kernel, &mut batch, receive(0)).outcome;
        let Outcome::Datagram(datagram) = received else { panic!("{received:?}") };
        assert_eq!(datagram.bytes(), expected);
    }
    cancel(&mut kernel, &mut batch, receive(0));
    close(&mut kernel, socket);
    assert!(batch.is_empty(), "{batch:?}");
}

pub(crate) fn receive_of_datagrams_waits_for_a_buffer(mut kernel: impl Kernel, far: &impl Far) {
    let (group, _view) = add_mapped(&mut kernel, 1);
    let group = group.unwrap();
    let (socket, peer) = far.datagrams();
    let (fd, mut batch) = (number(&socket), Batch::new());
    kernel.submit(receive(0), Op::ReceiveFrom { fd, group }).unwrap();
    peer.send(b"x");
    let held = next(&mut kernel, &mut batch, receive(0));
    peer.send(b"y");
    while kernel.counters().buffer_shortages == 0 {
        soon(&mut kernel, &mut batch);
    }
    assert!(batch.is_empty(), "the group has no buffer: {batch:?}");
    let shortages = kernel.counters().buffer_shortages;
    drop(held);
    let received = next(&mut kernel, &mut batch, receive(0)).outcome;
    assert!(matches!(&received, Outcome::Datagram(datagram) if datagram.bytes() == b"y"));
    // While it waits, it can be cancelled.
    peer.send(b"z");
    while kernel.counters().buffer_shortages == shortages {
        soon(&mut kernel, &mut batch);
    }
    cancel(&mut kernel, &mut batch, receive(0));
}

pub(crate) fn memory_outlives_receives_of_datagrams(mut kernel: impl Kernel, far: &impl Far) {
    let (group, view) = add_mapped(&mut kernel, 4);
    let group = group.unwrap();
    let (socket, peer) = far.datagrams();
    let (fd, mut batch) = (number(&socket), Batch::new());
    kernel.submit(receive(0), Op::ReceiveFrom { fd, group }).unwrap();
    peer.send(b"x");
    let received = next(&mut kernel, &mut batch, receive(0)).outcome;
    let Outcome::Datagram(datagram) = received else { panic!("{received:?}") };
    // Datagrams that no completion was taken for.
    peer.send(b"more");
    kernel.turn(Some(kernel.now())).unwrap();
    drop((kernel, batch));
    assert!(!view.is_unmapped(), "a datagram is in the map");
    assert_eq!((datagram.bytes(), datagram.source()), (&b"x"[..], peer.address()));
    drop(datagram);
    assert!(view.is_unmapped(), "nothing uses the map");
}
