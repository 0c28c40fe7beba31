//! The table of operations, turns, and the end of a kernel.

use super::files::{at, folder};
use crate::*;

pub(crate) fn turn_does_not_wait_while_completions_remain(mut kernel: impl Kernel, far: &impl Far) {
    let mut connections = [0, 1].map(|slot| {
        let (socket, peer) = plain(&mut kernel, far);
        kernel
            .submit(receive(slot), Op::Receive { fd: number(&socket), group: BufferGroup::DEFAULT })
            .unwrap();
        (socket, peer)
    });
    soon(&mut kernel, &mut Batch::new());
    connections.iter_mut().for_each(|(_, peer)| peer.write_all(b"x"));
    let until = later(&kernel);
    for _ in &connections {
        let completion = loop {
            kernel.turn(Some(until)).unwrap();
            assert!(kernel.now() < until, "it waited for more");
            if let Some(completion) = kernel.next() {
                break completion;
            }
        };
        assert!(matches!(completion.outcome, Outcome::Received(_)), "{completion:?}");
    }
    connections.into_iter().for_each(|(socket, _)| kernel.host_mut().close_unused(socket));
}

pub(crate) fn wake_from_another_thread_ends_a_wait(mut kernel: impl Kernel, far: &impl Far) {
    let waker = kernel.waker();
    for _ in 0..20 {
        far.wake(waker.clone());
        let woken = next(&mut kernel, &mut Batch::new(), Token::WAKE);
        assert!(matches!(woken.outcome, Outcome::Woken) && !woken.is_last);
    }
}

pub(crate) fn wait_ends_at_its_deadline(mut kernel: impl Kernel, _far: &impl Far) {
    kernel.turn(Some(kernel.now())).unwrap();
    let until = kernel.now() + Duration::from_millis(30);
    let mut batch = Batch::new();
    let mut turns = 0;
    while kernel.now() < until {
        kernel.turn_into(Some(until), &mut batch).unwrap();
        turns += 1;
    }
    assert!(batch.is_empty() && turns < 10, "{turns} turns");
}

pub(crate) fn full_table_rejects_operations(mut kernel: impl Kernel, far: &impl Far) {
    let connections: Vec<_> = (0..3).map(|_| plain(&mut kernel, far)).collect();
    let [fd, other, third] = [0, 1, 2].map(|i| number(&connections[i].0));
    kernel.submit(receive(0), Op::Receive { fd, group: BufferGroup::DEFAULT }).unwrap();
    kernel.submit(receive(1), Op::Receive { fd: other, group: BufferGroup::DEFAULT }).unwrap();
    let error = kernel
        .submit(receive(2), Op::Receive { fd: third, group: BufferGroup::DEFAULT })
        .unwrap_err();
    assert_eq!(error.kind, SubmitErrorKind::Full);
    assert!(matches!(error.op, Op::Receive { fd, .. } if fd == third));
    // A cancellation needs no entry in the table.
    cancel(&mut kernel, &mut Batch::new(), receive(0));
    kernel.submit(receive(2), Op::Receive { fd: third, group: BufferGroup::DEFAULT }).unwrap();
}

pub(crate) fn token_in_use_is_rejected(mut kernel: impl Kernel, far: &impl Far) {
    let (socket, _peer) = plain(&mut kernel, far);
    let fd = number(&socket);
    let successor = Token::new(OpKind::Receive, 0, 8);
    kernel.submit(receive(0), Op::Receive { fd, group: BufferGroup::DEFAULT }).unwrap();
    for token in [receive(0), successor] {
        let error =
            kernel.submit(token, Op::Receive { fd, group: BufferGroup::DEFAULT }).unwrap_err();
        assert_eq!(error.kind, SubmitErrorKind::TokenInUse);
    }
    kernel.cancel(successor);
    cancel(&mut kernel, &mut Batch::new(), receive(0));
}

pub(crate) fn more_operations_than_the_queue_holds_complete(
    mut kernel: impl Kernel,
    far: &impl Far,
) {
    let mut batch = Batch::new();
    let mut connections: Vec<_> = (0..700).map(|_| plain(&mut kernel, far)).collect();
    // No turn between these.
    for (slot, (socket, _)) in connections.iter().enumerate() {
        let slot = slot as u32;
        kernel
            .submit(receive(slot), Op::Receive { fd: number(socket), group: BufferGroup::DEFAULT })
            .unwrap();
        let data = gather(&[b"hello"]);
        kernel.submit(send(slot), Op::Send { fd: number(socket), data }).unwrap();
    }
    for (slot, (_, peer)) in connections.iter_mut().enumerate() {
        let sent = next(&mut kernel, &mut batch, send(slot as u32));
        assert!(matches!(sent.outcome, Outcome::Sent(_, 5)), "{sent:?}");
        peer.write_all(b"x");
    }
    for slot in 0..700 {
        assert_eq!(collect(&mut kernel, &mut batch, receive(slot), 1), b"x");
    }
    for slot in 0..700 {
        kernel.cancel(receive(slot));
    }
    for slot in 0..700 {
        let done = next(&mut kernel, &mut batch, receive(slot));
        assert_eq!(failure(done), Errno::CANCELED);
    }
}

pub(crate) fn dropped_kernel_leaves_nothing_in_flight(mut kernel: impl Kernel, far: &impl Far) {
    let (listener, address) = listen(&mut kernel);
    kernel.submit(ACCEPT, Op::Accept { listener: number(&listener), per_turn: None }).unwrap();
    let (socket, mut peer) = connection(&mut kernel, far, SMALL);
    let fd = number(&socket);
    kernel.submit(receive(0), Op::Receive { fd, group: BufferGroup::DEFAULT }).unwrap();
    let shared = Bytes::from(vec![0u8; 8 << 20]);
    let mut list = Box::<GatherList>::default();
    list.shared(shared.clone());
    kernel.submit(send(0), Op::Send { fd, data: list }).unwrap();
    peer.write_all(b"kept");
    let mut batch = Batch::new();
    let Outcome::Received(kept) = next(&mut kernel, &mut batch, receive(0)).outcome else {
        panic!("not received")
    };
    let started = Instant::now();
    let _unaccepted = far.connect(address);
    drop(kernel);
    assert!(started.elapsed() < Duration::from_secs(4), "the drop ran into its timeout");
    batch.clear();
    assert!(shared.is_unique(), "the send's memory was released");
    assert_eq!(&*kept, b"kept", "the lent buffer stays valid");
}

pub(crate) fn dropped_kernel_completes_closes(mut kernel: impl Kernel, far: &impl Far) {
    let (socket, mut peer) = connection(&mut kernel, far, SMALL);
    // Queued behind more operations than the submission queue holds.
    let root = folder(&mut kernel, far);
    for slot in 0..1500 {
        let stat = Op::File(FileOp::Stat(at(&root, "file", SymlinkPolicy::Beneath)));
        kernel.submit(Token::new(OpKind::File, slot, 0), stat).unwrap();
    }
    kernel.submit(Token::new(OpKind::Close, 0, 0), Op::Close { socket }).unwrap();
    drop(kernel);
    assert!(!peer.read_some(&mut Vec::new()), "the connection has ended");
}
