//! Sends, of files too, and waits for room.

use shared_ring::WhenCold;

use super::calls::{CALL, called};
use super::files::{folder, open};
use crate::*;

pub(crate) fn long_list_arrives_in_order(mut kernel: impl Kernel, far: &impl Far) {
    let (socket, mut peer) = connection(&mut kernel, far, SMALL);
    let fd = number(&socket);
    let pieces: Vec<Vec<u8>> = (0..60u8).map(|i| vec![i; 20_000]).collect();
    let expected = pieces.concat();
    let (mut got, mut batch) = (Vec::new(), Batch::new());
    let mut list = gather(&pieces.iter().map(Vec::as_slice).collect::<Vec<_>>());
    while !list.is_empty() {
        let before = list.len();
        kernel.submit(send(0), Op::Send { fd, data: list }).unwrap();
        let sent = next_while_reading(&mut kernel, &mut batch, &mut peer, &mut got);
        let Outcome::Sent(unsent, n) = sent else { panic!("not sent") };
        assert!(n > 0 && n <= GatherList::MAX_BYTES && unsent.len() == before - n);
        list = unsent;
    }
    while got.len() < expected.len() && peer.read_some(&mut got) {}
    assert!(got == expected);
    assert!(kernel.counters().short_sends > 0);
}

pub(crate) fn send_to_a_full_socket_can_be_cancelled(mut kernel: impl Kernel, far: &impl Far) {
    let (socket, _peer) = connection(&mut kernel, far, SMALL);
    let fd = number(&socket);
    let mut batch = Batch::new();
    let block = vec![0; 250_000];
    // Send until an operation stays in flight.
    for round in 0.. {
        assert!(round < 1000, "the socket never fills");
        kernel.submit(send(0), Op::Send { fd, data: gather(&[&block]) }).unwrap();
        soon(&mut kernel, &mut batch);
        if batch.pop_front().is_none() {
            break;
        }
    }
    kernel.cancel(send(0));
    let done = next(&mut kernel, &mut batch, send(0));
    assert!(done.is_last);
    match done.outcome {
        Outcome::Failed(Errno::CANCELED, Some(list)) => assert!(!list.is_empty()),
        // The ring reports the bytes sent before.
        Outcome::Sent(list, n) => assert_eq!(list.len() + n, block.len()),
        other => panic!("{other:?}"),
    }
    close(&mut kernel, socket);
    assert!(batch.is_empty());
}

/// Sends until the socket has no room, and returns the number of bytes sent.
fn fill(kernel: &mut impl Kernel, batch: &mut Batch, fd: Fd) -> usize {
    let (block, mut sent) = (vec![0; 250_000], 0);
    for round in 0.. {
        assert!(round < 1000, "the socket never fills");
        kernel.submit(send(0), Op::Send { fd, data: gather(&[&block]) }).unwrap();
        kernel.turn_into(Some(kernel.now()), batch).unwrap();
        if batch.is_empty() {
            soon(kernel, batch);
        }
        match batch.pop_front().map(|completion| completion.outcome) {
            Some(Outcome::Sent(_, n)) => sent += n,
            Some(other) => panic!("{other:?}"),
            None => break,
        }
    }
    kernel.cancel(send(0));
    if let Outcome::Sent(_, n) = next(kernel, batch, send(0)).outcome {
        sent += n;
    }
    sent
}

/// Sends until the socket has no room and waits for it. Returns the number of bytes sent.
fn fill_and_wait(kernel: &mut impl Kernel, batch: &mut Batch, fd: Fd) -> usize {
    let mut sent = 0;
    loop {
        sent += fill(kernel, batch, fd);
        kernel.submit(send(0), Op::Writable { fd }).unwrap();
        soon(kernel, batch);
        // Bytes that were in transit may have left room.
        let Some(done) = batch.pop_front() else { return sent };
        assert!(matches!(done.outcome, Outcome::Writable), "{done:?}");
    }
}

pub(crate) fn wait_for_room_ends_when_the_peer_reads(mut kernel: impl Kernel, far: &impl Far) {
    let (socket, mut peer) = connection(&mut kernel, far, SMALL);
    let (fd, mut batch) = (number(&socket), Batch::new());
    for round in 0..3 {
        kernel.submit(send(0), Op::Writable { fd }).unwrap();
        let done = next(&mut kernel, &mut batch, send(0));
        assert!(matches!(done.outcome, Outcome::Writable) && done.is_last, "{round}: {done:?}");
        let sent = fill_and_wait(&mut kernel, &mut batch, fd);
        let again = kernel.submit(send(0), Op::Writable { fd }).unwrap_err();
        assert_eq!(again.kind, SubmitErrorKind::TokenInUse);
        let mut got = Vec::new();
        let outcome = next_while_reading(&mut kernel, &mut batch, &mut peer, &mut got);
        assert!(matches!(outcome, Outcome::Writable), "{outcome:?}");
        while got.len() < sent {
            peer.read_some(&mut got);
            kernel.turn_into(Some(kernel.now()), &mut batch).unwrap();
        }
        soon(&mut kernel, &mut batch);
        assert!(batch.is_empty(), "it completes once: {batch:?}");
    }
    close(&mut kernel, socket);
}

pub(crate) fn wait_for_room_can_be_cancelled(mut kernel: impl Kernel, far: &impl Far) {
    let (socket, _peer) = connection(&mut kernel, far, SMALL);
    let (fd, mut batch) = (number(&socket), Batch::new());
    for _ in 0..2 {
        fill_and_wait(&mut kernel, &mut batch, fd);
        cancel(&mut kernel, &mut batch, send(0));
    }
    close(&mut kernel, socket);
    assert!(batch.is_empty());
}

pub(crate) fn full_socket_had_room_once_its_peer_had_ended(
    mut kernel: impl Kernel,
    far: &impl Far,
) {
    let root = folder(&mut kernel, far);
    far.add_file("big", &[7; 200_000]);
    let Outcome::File(FileOutcome::Opened(opened)) = open(&mut kernel, &root, "big") else {
        panic!()
    };
    let file = opened.0;
    let (socket, mut peer) = connection(&mut kernel, far, SMALL);
    let (fd, mut batch) = (number(&socket), Batch::new());
    let mut sent = fill(&mut kernel, &mut batch, fd);
    peer.finish();
    let send_file = || {
        let (file, when_cold) = (file.clone(), WhenCold::Read);
        Op::SendFile { fd, file, offset: 0, len: 200_000, is_last: true, when_cold }
    };
    let writable = || Op::Writable { fd };
    for op in [&send_file as &dyn Fn() -> Op, &writable, &send_file, &writable] {
        let mut calls;
        loop {
            kernel.submit(send(0), op()).unwrap();
            calls = kernel.counters().system_calls;
            soon(&mut kernel, &mut batch);
            // Bytes that were in transit may have left room.
            let Some(done) = batch.pop_front() else { break };
            assert!(matches!(done.outcome, Outcome::Writable | Outcome::SentFile { .. }));
            sent += fill(&mut kernel, &mut batch, fd);
        }
        let calls = kernel.counters().system_calls - calls;
        assert!(calls < 20, "{calls} system calls");
        cancel(&mut kernel, &mut batch, send(0));
    }
    let mut calls;
    loop {
        calls = kernel.counters().system_calls;
        let write = Op::Call(Box::new(Call::write(fd, [7; 8])), Executor::WhenWritable);
        let done = match kernel.submit(CALL, write).unwrap() {
            Submitted::Done(outcome) => Some(outcome),
            Submitted::InFlight => {
                soon(&mut kernel, &mut batch);
                batch.pop_front().map(|completion| completion.outcome)
            }
        };
        let Some(outcome) = done else { break };
        match called(outcome).1 {
            Ok(n) => sent += n + fill(&mut kernel, &mut batch, fd),
            Err(errno) => assert_eq!(errno, Errno::INTR),
        }
    }
    let calls = kernel.counters().system_calls - calls;
    assert!(calls < 20, "{calls} system calls");
    kernel.cancel(CALL);
    let cancelled = called(next(&mut kernel, &mut batch, CALL).outcome);
    assert_eq!(cancelled.1, Err(Errno::CANCELED));
    kernel.submit(send(0), Op::Writable { fd }).unwrap();
    let mut got = Vec::new();
    let outcome = next_while_reading(&mut kernel, &mut batch, &mut peer, &mut got);
    assert!(matches!(outcome, Outcome::Writable), "{outcome:?}");
    while got.len() < sent {
        peer.read_some(&mut got);
        kernel.turn_into(Some(kernel.now()), &mut batch).unwrap();
    }
    close(&mut kernel, socket);
    assert!(batch.is_empty());
}

pub(crate) fn unsent_limit_bounds_what_a_socket_takes(mut kernel: impl Kernel, far: &impl Far) {
    let mut batch = Batch::new();
    let [limited, unlimited] = [Some(16 * 1024), None].map(|limit| {
        let (socket, _peer) = plain(&mut kernel, far);
        if let Some(bytes) = limit {
            kernel.host_mut().set_unsent_limit(&socket, bytes).unwrap();
        }
        let sent = fill(&mut kernel, &mut batch, number(&socket));
        close(&mut kernel, socket);
        sent
    });
    assert!(0 < limited && limited < unlimited, "{limited} of {unlimited} bytes");
}

pub(crate) fn file_is_sent_up_to_its_end(mut kernel: impl Kernel, far: &impl Far) {
    let root = folder(&mut kernel, far);
    let contents: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
    far.add_file("big", &contents);
    let Outcome::File(FileOutcome::Opened(opened)) = open(&mut kernel, &root, "big") else {
        panic!()
    };
    let file = opened.0;
    let (socket, mut peer) = plain(&mut kernel, far);
    let fd = number(&socket);
    let (mut got, mut offset, mut batch) = (Vec::new(), 0, Batch::new());
    let end = loop {
        let op = Op::SendFile {
            fd,
            file: file.clone(),
            offset,
            len: 256 * 1024,
            is_last: false,
            when_cold: WhenCold::Read,
        };
        kernel.submit(send(0), op).unwrap();
        match next_while_reading(&mut kernel, &mut batch, &mut peer, &mut got) {
            Outcome::SentFile { bytes: 0, .. } => break offset,
            Outcome::SentFile { bytes, .. } => offset += u64::from(bytes),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(end, contents.len() as u64);
    while got.len() < contents.len() && peer.read_some(&mut got) {}
    assert!(got == contents);
}
